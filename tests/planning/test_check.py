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


def test_pipeline_stages_hold_their_layers_only():
    """Llama-3.1-8B on 4 x 2 ranks: 16 layers of 2 heads, 16,384 B a token; 61 layers in two stages: the larger counts."""
    line = {"model": "Llama-3.1-8B", "tp": 4, "pp": 2, "kv_gib": 54.0, "kv_tokens": 3_538_944}
    assert check_line(read_line(line)).verdict == "ok"
    assert check_line(read_line({**line, "kv_tokens": 1_769_472})).flagged
    assert check_line(read_line({**line, "gpu": "8x H100 80GB"})).estimates[0].planned > 60
    uneven = {"model": "DeepSeek-V3", "pp": 2, "per_token_bytes": 31 * 1152}
    assert check_line(read_line(uneven)).verdict == "ok"
    assert check_line(read_line({**uneven, "per_token_bytes": 61 * 1152})).flagged


LLAMA_POOL = {"model": "Llama-3.1-8B", "kv_tokens": 442_368}


@pytest.mark.parametrize(
    "pool",
    [
        {"kv_gib": "54.0 GB"},
        {"kv_gib": "54.00 GiB (available)"},
        {"kv_gib": "57.98 GB (decimal)"},
        {"kv_gb": 57.98},
        {"kv_gb": 54.0},
        {"kv_gb": "57.98 GB = 10^9 bytes"},
        {"kv_mib": 55_296},
        {"kv_mib": "54 GiB"},
        {"K_gib": 27.0, "V_gib": "27.0 GB"},
        {"kv_cache_gib": 54},
    ],
)
def test_units_of_the_pool(pool):
    result = check_line(read_line({**LLAMA_POOL, **pool}))
    assert (result.verdict, [s.name for s in result.steps]) == ("ok", ["kv_tokens from kv_gib"])
    assert check_line(read_line({**LLAMA_POOL, **pool, "kv_tokens": 430_000})).flagged


@pytest.mark.parametrize("length", ["128k", "131072 tokens", "131,072", "131072 (default)", 131072])
def test_lengths_in_words(length):
    line = {**LLAMA_POOL, "max_model_len": length, "concurrency": "3.38x"}
    assert [s.name for s in check_line(read_line(line)).steps] == ["concurrency"]
    assert check_line(read_line(line)).verdict == "ok"
    assert read_line({**line, "max_model_len": "default"}).max_model_len is None
    assert read_line({**line, "max_model_len": "100k"}).max_model_len == 100_000


def test_budget_terms_beside_the_others():
    line = {"model": "x", "gpu": "H100 (79.22 GiB)", "util": 0.9, "kv_gib": 54.41}
    line |= {"weights_gib": 14.99, "non_torch_gib": 0.2, "activation_gib": "1.7 GiB"}
    assert check_line(read_line(line)).steps[0].holds
    line |= {"activation_gib": None, "peak_activation_mib": 1740.8, "util": "90 %"}
    assert check_line(read_line(line)).steps[0].holds
    assert check_line(read_line({**line, "kv_gib": 53.0})).flagged


@pytest.mark.parametrize(
    ("result", "kv_tokens", "verdict"),
    [
        ("ok", 200_000, "ok"),
        ("ok", 100_000, "flagged"),
        ("started", 131_072, "ok"),
        ("ValueError: the model's max seq len is larger than the KV cache", 100_000, "ok"),
        ("engine failed to start", 200_000, "flagged"),
        ("", 200_000, "untested"),
    ],
)
def test_results_in_words(result, kv_tokens, verdict):
    line = {"model": "a model", "max_model_len": 131072, "kv_tokens": kv_tokens, "result": result}
    assert check_line(read_line(line)).verdict == verdict


def test_numbers_in_the_sentence_of_a_refusal():
    """vLLM's two sentences, the old one in tokens and the new one in GiB."""
    old = "The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache (6048)."
    assert [s.name for s in check_line(read_line({"model": "x", "result": old})).steps] == ["result"]
    new = "To serve at least one request (10.12 GiB KV cache is needed, which is larger than the available KV cache memory "
    new += "(5.59 GiB). Based on the available memory, the estimated maximum model length is 122080."
    line = {"model": "Qwen3-30B-A3B", "kv_dtype": "fp8", "max_model_len": 221000, "result": new}
    result = check_line(read_line(line))
    assert [s.name for s in result.steps] == ["needs_gib", "result", "estimated_max_len"]
    assert result.verdict == "ok"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("llama3.1-8b", "Llama-3.1-8B"),
        ("Llama3 70B", "Llama-3-70B"),
        ("Llama 3.3 70B Instruct", "Llama-3.1-70B"),
        ("meta-llama/Llama-3.3-70B", "Llama-3.1-70B"),
        ("Mistral Nemo", "Mistral-Nemo-12B"),
        ("Qwen3 Next 80B", "Qwen3-Next-80B-A3B"),
        ("qwen3-235b in fp8", "Qwen3-235B-A22B"),
        ("Qwen2-7B", "Qwen2-7B"),
        ("Qwen2 72B Instruct", "Qwen2-72B"),
        ("DeepSeek R1, 8 ranks", "DeepSeek-V3"),
        ("opt_13b", "OPT-13B"),
        ("Qwen3.5-27B hybrid", None),
        ("Llama 70B", None),
        ("DeepSeek-V3.2", None),
        ("CodeLlama-2-7Bx", None),
        ("DeepSeek-R1-Distill-Foo-9B", None),
    ],
)
def test_models_by_how_people_write_them(said, name):
    model = read_line({"model": said, "kv_gib": 1}).model
    assert (model.name if model else None) == name


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("V100-16GB", "V100-16GB"),
        ("Tesla V100 32 GB", "V100-32GB"),
        ("V100", None),
        ("H100 NVL 94GB", "H100NVL-94GB"),
        ("NVIDIA H100 94GB", "H100NVL-94GB"),
        ("NVIDIA H100 PCIe", "H100-80GB"),
        ("GH200 96GB", "GH200-96GB"),
        ("2x L40", "L40-48GB"),
        ("8 x H20", "H20-96GB"),
        ("AMD MI300X", "MI300X-192GB"),
        ("A100", "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("L40S", "L40S-48GB"),
    ],
)
def test_cards_by_how_people_write_them(said, name):
    gpu = read_line({"model": "x", "kv_gib": 1, "gpu": said}).gpu
    assert (gpu.name if gpu else None) == name


def test_ranks_from_the_cards():
    for gpu, tp in {"4x H100 80GB": 4, "8 GPUs": 8, "A100 x2": 2, "RTX 3090": 1, "TPU v5e-8": 1}.items():
        assert read_line({"model": "x", "kv_gib": 1, "gpu": gpu}).tp == tp
    assert read_line({"model": "x", "kv_gib": 1, "gpu": "8x H100", "pp": 2}).tp == 4
    with pytest.raises(InputError, match=r"field tp: is 2\.5; expected a whole number"):
        read_line({"model": "x", "tp": 2.5})
    with pytest.raises(InputError, match="field kv_gib") as raised:
        read_line({"model": "x", "kv_gib": "9" * 5000})
    assert len(str(raised.value)) < 200


def test_the_text_says_per_line_what_was_tested(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "check", str(LINES)])
    out = capsys.readouterr().out
    assert "\nK7: ok; tested: bytes_per_token, kv_tokens from kv_gib\n" in out
    assert "\nK20: estimated; tested: nothing" in out
