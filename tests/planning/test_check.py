"""Printed capacity lines are reproduced step by step, wrong ones are flagged, and the documented table is the real one."""

from __future__ import annotations

import copy
import json
import re
from importlib import resources
from pathlib import Path

import pytest

from labkit.cli.main import main
from labkit.errors import InputError
from labkit.planning.check import check_line, check_lines, table
from labkit.planning.printed import read_line, read_lines

LINES = resources.files("labkit").joinpath("data/kv_capacity_lines.json")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "planner.md"

#: the steps that the terms of each line allow
TESTED = {
    "K2": ["bytes_per_token", "kv_tokens from kv_gib", "concurrency"],
    "K3": ["bytes_per_token", "kv_tokens from kv_gib", "concurrency"],
    "K4": ["bytes_per_token", "kv_tokens from kv_gib", "concurrency"],
    "K5": [
        "bytes_per_token",
        "kv_gib",
        "gpu_blocks from kv_gib",
        "kv_tokens from kv_gib",
        "kv_tokens from gpu_blocks",
        "concurrency",
    ],
    "K7": ["bytes_per_token", "kv_tokens from kv_gib"],
    "K8": ["bytes_per_token", "kv_tokens from kv_gib"],
    "K10": ["bytes_per_token", "kv_tokens from kv_gib", "concurrency"],
    "K11": ["bytes_per_token", "kv_tokens from kv_gib", "concurrency"],
    "K14": ["bytes_per_token"],
    "K15": ["bytes_per_token"],
    "K17": ["bytes_per_token", "kv_gib", "gpu_blocks from kv_gib", "cpu_blocks"],
    "K19": ["bytes_per_token", "kv_tokens from gpu_blocks", "concurrency"],
    "K20": [],
    "K21": ["bytes_per_token"],
    "K22": ["bytes_per_token", "concurrency"],
    "K24": ["needs_gib", "estimated_max_len"],
    "K25": ["K_mib", "V_mib", "swa_mib"],
    "K28": ["concurrency"],
    "K30": ["kv_tokens from gpu_blocks", "result", "cpu_blocks"],
}
#: estimates that do not contain the printed number, with the size of the miss in percent
OUTSIDE = {
    ("K7", "kv_gib, terms estimated"): 37,
    ("K15", "kv_gib, terms estimated (after)"): 47,
    ("K19", "kv_gib, terms estimated"): 33,
    ("K21", "kv_gib, terms estimated (before)"): -13,
}


@pytest.fixture(scope="module")
def results():
    return check_lines(read_lines(str(LINES)))


def test_every_line_is_reproduced_but_the_wrong_one(results):
    assert {r.line.id: [s.name for s in r.steps] for r in results} == TESTED
    for result in results:
        for step in result.steps:
            assert step.holds == (result.line.id != "K28"), (result.line.id, step)
            assert step.tolerance <= (0.002 if result.line.num_ranks == 1 else 0.015)
    assert [r.line.id for r in results if r.flagged] == ["K28"]


def test_estimates_contain_the_printed_number_or_are_listed(results):
    outside = {}
    for result in results:
        for step in result.estimates:
            assert step.tolerance <= 0.12
            if not step.holds:
                outside[result.line.id, step.name] = round(100 * step.deviation)
    assert outside == OUTSIDE


def test_the_table_in_the_documentation(results):
    """`docs/planner.md` shows what the code says, cell by cell."""
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.split("<!-- printed-lines -->")[1]
    rows = [
        tuple(c.strip() for c in line.strip("| \n").split("|"))
        for line in section.splitlines()
        if line.startswith("| K")
    ]
    assert rows == [tuple(str(c) for c in row) for row in table(results)]


def test_two_published_wrong_numbers_are_flagged(tmp_path, capsys):
    lines = [
        {"id": "W1", "model": "Llama-3.1-405B", "tokens": 128000, "kv_dtype": "16-bit", "kv_gib": 123.05},
        {"id": "W2", "model": "DeepSeek-V3", "per_token_bytes": 124928},
    ]
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(lines))
    with pytest.raises(SystemExit) as done:
        main(["plan", "check", str(path), "--json"])
    assert done.value.code == 1
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert first["verdict"] == second["verdict"] == "flagged"
    assert first["steps"][0]["planned"] == pytest.approx(61.52, abs=0.01)
    assert second["steps"][0]["planned"] == 70272
    lines[0]["kv_gib"], lines[1]["per_token_bytes"] = 61.52, 70272
    path.write_text(json.dumps(lines))
    with pytest.raises(SystemExit) as done:
        main(["plan", "check", str(path)])
    assert not done.value.code


def test_a_changed_number_is_noticed(results):
    """Every printed number that a step tests: one that is 4 % larger is flagged."""
    entries = json.loads(LINES.read_text())
    fields = (
        "kv_gib",
        "kv_tokens",
        "concurrency",
        "per_token_bytes",
        "gpu_blocks",
        "cpu_blocks",
        "needs_gib",
    )
    fields += ("estimated_max_len", "K_mib", "V_mib", "swa_mib")
    changed = 0
    for entry, result in zip(entries, results, strict=True):
        tested = {field for step in result.steps for field in fields if field in step.name}
        for field in tested:
            if not isinstance(entry.get(field), int | float) or result.flagged:
                continue
            wrong = copy.deepcopy(entry)
            wrong[field] = type(entry[field])(entry[field] * 1.04 + 1e-9)
            assert check_line(read_line(wrong)).flagged, (entry["id"], field)
            changed += 1
    assert changed >= 30


def test_hybrid_groups_print_fewer_tokens_than_blocks_hold():
    line = {
        "model": "gpt-oss-20b",
        "kv_gib": 52.55,
        "kv_tokens": 1147968,
        "concurrency": 16.47,
        "max_model_len": 131072,
    }
    assert check_line(read_line(line)).verdict == "ok"
    states = {"model": "Qwen3-Next-80B-A3B", "tp": 2, "kv_gib": 45.573, "kv_tokens": 994752}
    assert check_line(read_line({**states, "concurrency": 14.96, "max_model_len": 262144})).verdict == "ok"
    assert check_line(read_line({**states, "concurrency": 21.6, "max_model_len": 262144})).flagged


def test_other_engines():
    sglang = {"model": "Llama-3.1-8B on SGLang", "util": 0.88, "kv_gib": 54.39}
    sglang["ledger_gib"] = {"free_before": 78.84, "free_after": 63.85}
    assert [s.name for s in check_line(read_line(sglang)).steps] == ["kv_gib"]
    assert not check_line(read_line(sglang)).flagged
    trt = {"model": "Llama-3.1-8B, TensorRT-LLM", "util": 0.9, "kv_gib": 54.0, "ledger_gib": {"free": 60.0}}
    assert check_line(read_line(trt)).verdict == "ok"
    assert check_line(read_line({**trt, "kv_gib": 60.0})).flagged, "the fraction was forgotten"


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ([{"model": "x", "kv_gib": -1}], "kv_gib"),
        ([{"model": "x", "kv_gib": 0}], "kv_gib"),
        ([{"model": "x", "kv_tokens": "many"}], "kv_tokens"),
        ([{"model": "x", "gpu_blocks": [1, None]}], "gpu_blocks"),
        ([{"model": "x", "ledger_gib": {"weights": "?"}}], "ledger_gib.weights"),
        ([{"model": "x", "max_model_len": 0}], "max_model_len"),
        ([{"note": "nothing"}], None),
        ([3], None),
        ([], None),
        ("text", None),
    ],
)
def test_bad_files(tmp_path, capsys, entry, field):
    path = tmp_path / "lines.json"
    path.write_text(json.dumps(entry))
    with pytest.raises(InputError) as raised:
        read_lines(path)
    assert raised.value.field == field
    with pytest.raises(SystemExit) as done:
        main(["plan", "check", str(path)])
    assert done.value.code == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"labkit: .*lines\.json.*\n", error)


def test_free_text_is_read():
    line = read_line(
        {
            "model": "Meta-Llama-3.1-70B-Instruct w8a8",
            "gpu": "RTX 3090 (total 23.58 GiB)",
            "util": "0.9 default",
        }
    )
    assert (line.model.name, line.quantization.name, line.total_gib, line.utilisation) == (
        "Llama-3.1-70B",
        "int8",
        23.58,
        0.9,
    )
    assert line.gpu.name == "RTX3090-24GB"
    assert read_line({"model": "a model", "gpu": "A100 40GB"}).gpu.name == "A100-40GB"
    assert read_line({"model": "Qwen3.5-27B hybrid"}).model is None, "not one of Qwen3's"


def test_graphs_inside_or_outside_the_budget():
    """The newest rule subtracts CUDA graphs, older ones do not; a line that prints them says by its result which."""
    ledger = {
        "budget": 71.29,
        "weights": 19.86,
        "non_torch": 0.16,
        "peak_activation": 36.63,
        "cuda_graphs": 1.5,
    }
    for printed in (14.65, 13.14):
        assert check_line(read_line({"model": "x", "ledger_gib": ledger, "kv_gib": printed})).verdict == "ok"
    assert check_line(read_line({"model": "x", "ledger_gib": ledger, "kv_gib": 14.0})).flagged


def test_lists_are_several_lines(tmp_path):
    path = tmp_path / "two.json"
    path.write_text(
        json.dumps([{"id": "A", "model": "Qwen3-14B", "kv_gib": [11.57, 11.0], "kv_tokens": [75824, 72064]}])
    )
    assert [(r.line.id, r.verdict) for r in check_lines(read_lines(path))] == [("A[0]", "ok"), ("A[1]", "ok")]
