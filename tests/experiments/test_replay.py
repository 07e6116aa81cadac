"""`labkit replay` on small files: the table, JSON, and one sentence for every kind of bad input."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from labkit.cli.main import main
from labkit.models import get_gpu, get_model
from labkit.planning.planner import make_plan
from labkit.planning.request import PlanRequest
from labkit.workload.base import RequestSpec
from labkit.workload.own_format import save_own
from labkit.workload.traces import find_trace

HEADER = "arrival_s,prompt_tokens,output_tokens,request_id\n"


@pytest.fixture
def trace(tmp_path):
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(0.2, 200))
    load = [
        RequestSpec(f"r{i}", round(float(t), 4), int(rng.integers(10, 3000)), int(rng.integers(1, 300)))
        for i, t in enumerate(times)
    ]
    path = tmp_path / "load.csv"
    save_own(load, path)
    return path


def call(*args) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["replay", *map(str, args)])
    return stopped.value.code


def rows_of(capsys, *args) -> dict[str, dict]:
    assert call(*args, "--json") == 0
    return {row["kv"]: row for row in json.loads(capsys.readouterr().out)["rows"]}


def test_three_caches_on_one_load(trace, capsys):
    rows = rows_of(
        capsys, trace, "--kv", "paged,reserve-max,grow", "--kv-memory", "8 GiB", "--max-model-len", "8192"
    )
    assert all(row["num_admitted"] == row["num_finished"] == 200 for row in rows.values())
    assert rows["paged"]["waste"] < 0.05 < 0.5 < rows["reserve-max"]["waste"]
    assert rows["paged"]["fragmentation"] == 0 < rows["grow"]["fragmentation"]
    assert rows["reserve-max"]["peak_running"] == 8  # 8 GiB hold 65,536 tokens: 8 x 8,192
    assert rows["paged"]["ttft_s"]["p50"] < rows["reserve-max"]["ttft_s"]["p50"]


def test_every_scheduler_gives_a_full_row(trace, capsys):
    assert call(trace, "--scheduler", "lab,vllm,sglang,tensorrt_llm", "--limit", "60", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["scheduler"] for row in rows] == ["lab", "vllm", "sglang", "tensorrt_llm"]
    for row in rows:
        assert row["num_finished"] == 60
        assert row["peak_bytes"] > 0
        assert 0 <= row["waste"] < 0.2
        assert row["ttft_s"]["p99"] > 0


def test_table_for_people(trace, capsys):
    assert call(trace, "--kv", "paged", "--limit", "50") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "50 requests, Llama-3.1-8B on A100-80GB" in lines[0]
    for word in ("admitted", "refused", "preempted", "waste %", "ext frag %", "TTFT", "TPOT", "peak KV"):
        assert word in lines[1]


def test_no_bar_where_nobody_looks(trace):
    code = f"from labkit.cli.main import main; main(['replay', {str(trace)!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_longer_than_the_model_is_refused_and_counted(tmp_path, capsys):
    path = tmp_path / "long.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,5000,10\n")
    rows = rows_of(capsys, path, "--max-model-len", "4096")
    assert (rows["paged"]["num_refused"], rows["paged"]["num_finished"]) == (1, 1)


def test_shared_blocks_of_a_trace_are_hit(tmp_path, capsys):
    path = tmp_path / "shared.jsonl"
    lines = [
        {
            "arrival_s": i,
            "prompt_tokens": 1100,
            "output_tokens": 5,
            "prefix_hashes": [1, 2],
            "prefix_block_size": 512,
        }
        for i in range(10)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert rows_of(capsys, path)["paged"]["hit_ratio"] == 0
    assert rows_of(capsys, path, "--prefix", "hash")["paged"]["hit_ratio"] == pytest.approx(0.9 * 1024 / 1100)
    # a real server has its prefix cache on; "off" switches it off
    for scheduler in ("vllm", "sglang"):
        assert rows_of(capsys, path, "--scheduler", scheduler)["paged"]["hit_ratio"] > 0.8
        assert rows_of(capsys, path, "--scheduler", scheduler, "--prefix", "off")["paged"]["hit_ratio"] == 0


BAD_ROWS = {
    "wrong header": ("a,b,c\n1,2,3\n", "row 1: the first line 'a,b,c' is not the header"),
    "negative": (HEADER + "0,5,5,a\n1,-3,5,b\n", "row 3, field prompt_tokens: is negative (-3)"),
    "no number": (HEADER + "0,5,five,a\n", "row 2, field output_tokens: is 'five'"),
    "out of order": (HEADER + "5,5,5,a\n1,5,5,b\n", "row 3, field arrival_s: goes back in time"),
    "twice": (HEADER + "0,5,5,a\n1,5,5,a\n", "row 3, field request_id: 'a' is there twice"),
    "short row": (HEADER + "0,5\n", "row 2: has 2 fields"),
    "empty": ("", "is empty"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_rows(kind, tmp_path, capsys):
    text, words = BAD_ROWS[kind]
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert words in sentence(capsys, path)


def test_the_budget_is_what_the_planner_finds(trace, capsys):
    assert call(trace, "--limit", "5", "--max-model-len", "8192", "--max-num-seqs", "64", "--json") == 0
    replayed = json.loads(capsys.readouterr().out)["kv_bytes"]
    model, gpu = get_model("Llama-3.1-8B"), get_gpu("A100-80GB")
    options = {"max_model_len": 8192, "max_num_seqs": 64, "max_batched_tokens": 2048, "block_size": 16}
    assert replayed == make_plan(PlanRequest(model, gpu, **options)).kv_bytes
    smaller = make_plan(PlanRequest(model, gpu, memory_fraction=0.8, **options)).kv_bytes
    assert (
        call(
            trace,
            "--limit",
            "5",
            "--max-model-len",
            "8192",
            "--max-num-seqs",
            "64",
            "--json",
            "--gpu-memory-utilization",
            "0.8",
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["kv_bytes"] == smaller < replayed


def test_bad_options(trace, capsys):
    for args, words in (
        (["--model", "Llama-9"], "unknown model 'Llama-9'; choose one of"),
        (["--gpu", "A100-81GB"], "unknown GPU 'A100-81GB'; choose one of"),
        (["--kv", "pages"], "unknown KV cache 'pages'; choose one of"),
        (["--scheduler", "orca"], "unknown scheduler 'orca'; choose one of"),
        (["--scheduler", "vllm", "--kv", "grow"], "brings its own paged cache"),
        (["--kv-memory", "1 MiB"], "smaller than two blocks of 16 tokens"),
        (["--kv-memory", "much"], "'much' is not a size"),
        (["--gpu", "T4-16GB"], "does not fit T4-16GB"),
        (["--gpu-memory-utilization", "1.2"], "not a share of the GPU"),
        (["--max-model-len", "0"], "--max-model-len 0 is too small"),
        (["--block-size", "0"], "--block-size 0 is too small"),
        (["--limit", "-1"], "--limit -1 is negative"),
        (["--kv", ","], "--kv is empty"),
        (["--kv", "paged,grow", "--prefix", "radix"], "--prefix radix needs --kv paged"),
        (["--prefix", "tree"], "unknown prefix cache 'tree'; choose one of: off, hash, radix"),
        (["--max-model-len", "200000"], "longer than Llama-3.1-8B was made for; at most 131072"),
    ):
        assert words in sentence(capsys, trace, *args)
    assert "no such file" in sentence(capsys, "missing.csv")


def sentence(capsys, *args) -> str:
    assert call(*args) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.count("\n") == 1
    assert "Traceback" not in out.err
    return out.err


def test_one_bad_row_in_many_is_named(tmp_path, capsys):
    path = tmp_path / "large.csv"
    with path.open("w") as file:
        file.write("arrival_s,prompt_tokens,output_tokens\n")
        for i in range(100_000):
            file.write(f"{i},5,{'x' if i == 99_990 else 5}\n")
    assert "row 99992, field output_tokens: is 'x'" in sentence(capsys, path)


def test_the_whole_azure_conversation(capsys):
    path = find_trace("AzureLLMInferenceTrace_conv.csv")
    if path is None:
        pytest.skip("AzureLLMInferenceTrace_conv.csv is not on this machine")
    rows = rows_of(capsys, path, "--kv", "paged")
    assert rows["paged"]["num_finished"] == rows["paged"]["num_requests"] == 19_366
