"""Loaders: the quirks of real files, and one sentence with file, row and field for every mistake."""

from __future__ import annotations

import json

import numpy as np
import pytest

from labkit.errors import InputError, LabError
from labkit.workload.azure import load_azure
from labkit.workload.base import RequestSpec
from labkit.workload.lmcache_lengths import load_lmcache_lengths
from labkit.workload.mooncake import load_mooncake
from labkit.workload.own_format import load_own, save_own
from labkit.workload.servegen import load_servegen, read_client
from labkit.workload.traces import TRACES, find_trace, load_or_synthetic, load_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9000000,374,44\r\n2023-11-17 00:00:00.0000001,396,109"


def write(tmp_path, text: str, name: str = "trace.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_azure_quirks(tmp_path):
    first, second = load_azure(write(tmp_path, AZURE))
    assert (first.arrival_s, first.num_prompt_tokens, first.num_output_tokens) == (0.0, 374, 44)
    assert second.arrival_s == pytest.approx(0.1000001, abs=1e-12), "seven fractional digits, over midnight"
    assert len(load_trace(tmp_path / "trace.csv", 1)) == 1


@pytest.mark.parametrize(
    ("text", "row", "field"),
    [
        ("", None, None),
        ("a,b,c\n1,2,3\n", 1, None),
        (AZURE.replace("374", "-374"), 2, "ContextTokens"),
        (AZURE.replace("109", "many"), 3, "GeneratedTokens"),
        (AZURE.replace("109", "0"), 3, "GeneratedTokens"),
        (AZURE.replace("2023-11-17", "2023/11/17"), 3, "TIMESTAMP"),
        (AZURE.replace("2023-11-17", "2023-11-15"), 3, "TIMESTAMP"),
        (AZURE.replace("396,109", "396"), 3, None),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", None, None),
        ("arrival_s,prompt_tokens\n0,1\n", 1, "output_tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n-1,2,2\n", 3, "arrival_s"),
        ("arrival_s,prompt_tokens,output_tokens\n5,1,1\n1,2,2\n", 3, "arrival_s"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,1,1\n", 2, "arrival_s"),
        ("arrival_s,prompt_tokens,output_tokens,color\n0,1,1,red\n", 1, "color"),
        ("arrival_s,prompt_tokens,output_tokens\n0,,1\n", 2, "prompt_tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1.5,1\n", 2, "prompt_tokens"),
        ("arrival_s,prompt_tokens,output_tokens,max_output_tokens\n0,9,5,4\n", 2, "max_output_tokens"),
        ("request_id,arrival_s,prompt_tokens,output_tokens\nx,0,9,5\nx,0,9,5\n", 3, "request_id"),
        ('{"arrival_s": 0, "prompt_tokens": 4, "output_tokens": -1}', 1, "output_tokens"),
        ('{"arrival_s": 0, "prompt_tokens": 4}', 1, "output_tokens"),
        ('{"arrival_s": 0, "prompt_tokens": true, "output_tokens": 1}', 1, "prompt_tokens"),
        ('{"arrival_s": 0', 1, None),
        ('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0]}', 1, "hash_ids"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": "0"}', 1, "hash_ids"),
        ('{"timestamp": 0, "output_length": 5, "hash_ids": [0]}', 1, "input_length"),
        ('{"timestamp": -1, "input_length": 6, "output_length": 5, "hash_ids": [0]}', 1, "timestamp"),
    ],
)
def test_every_mistake_names_its_place(tmp_path, text, row, field):
    name = "trace.jsonl" if text.startswith("{") else "trace.csv"
    with pytest.raises(InputError) as raised:
        load_trace(write(tmp_path, text, name))
    assert (raised.value.row, raised.value.field) == (row, field)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_file_and_bad_limit(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_trace(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match="folder"):
        load_trace(tmp_path)
    path = tmp_path / "b.csv"
    path.write_bytes(b"arrival_s,prompt_tokens,output_tokens\n\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        load_trace(path)
    with pytest.raises(LabError, match="limit"):
        load_trace(write(tmp_path, AZURE), 0)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_own_format_round_trip(tmp_path, suffix):
    load = [
        RequestSpec("a", 0.0, 5, 2, max_output_tokens=9, priority=-1, session_id="s,1", kind="chat"),
        RequestSpec("b", 1.25, 70000, 1),
    ]
    if suffix == "jsonl":
        load.append(RequestSpec("c", 2.0, 33, 1, prefix_hashes=[7, 8], prefix_block_size=16))
    path = tmp_path / f"mine.{suffix}"
    save_own(load, path)
    assert load_trace(path) == load_own(path) == load
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_csv_cannot_lose_prefix_hashes_silently(tmp_path):
    with pytest.raises(InputError, match="jsonl"):
        save_own(
            [RequestSpec("c", 2.0, 33, 1, prefix_hashes=[7, 8], prefix_block_size=16)], tmp_path / "x.csv"
        )


def test_mooncake_blocks(tmp_path):
    row = {"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 4, 9]}
    path = write(tmp_path, json.dumps(row), "m.jsonl")
    assert load_mooncake(path)[0].prefix_hashes == [0, 4], "full blocks only"
    assert load_mooncake(path, partial_blocks=True)[0].prefix_hashes == [0, 4, 9]
    assert load_mooncake(path)[0].arrival_s == 3.0


LMCACHE = "agent,session,step,t_us,input_chars,prefix_reused_chars,output_chars\nx,s,0,0,640,0,8\nx,s,1,2000000,1280,600,8\n"


def test_lmcache_lengths_are_characters(tmp_path):
    first, second = load_trace(write(tmp_path, LMCACHE))
    assert (first.num_prompt_tokens, first.num_output_tokens) == (160, 2)
    assert second.prefix_hashes[:9] == first.prefix_hashes[:9], "600 characters are 9 full blocks of 64"
    assert not set(second.prefix_hashes[9:]) & set(first.prefix_hashes)
    with pytest.raises(InputError, match="row 3, field prefix_reused_chars"):
        load_lmcache_lengths(write(tmp_path, LMCACHE.replace("1280,600", "500,600")))


def servegen(tmp_path, dataset: str, trace: str = "0,2.0,1,Gamma,1.0,0.5\n600,0,0,,0,0\n"):
    write(tmp_path, dataset, "c-dataset.json")
    return write(tmp_path, trace, "c-trace.csv")


GOOD = '{"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{3: 1.0}"}}'


def test_servegen_draws_from_its_windows(tmp_path):
    path = servegen(tmp_path, GOOD)
    load = load_servegen(path, 5000, np.random.default_rng(1))
    assert 1000 < len(load) < 1400, "2 requests a second for 600 s"
    assert {r.num_prompt_tokens for r in load} == {10, 20}
    assert load == load_servegen(path, 5000, np.random.default_rng(1))
    with pytest.raises(InputError, match="ServeGen"):
        load_trace(path)


@pytest.mark.parametrize(
    ("dataset", "trace", "field"),
    [
        ("[]", "0,2,1,Gamma,1,1\n", None),
        (GOOD.replace("{10: 0.5", "__import__('os'): 1, 10: {"), "0,2,1,Gamma,1,1\n", "input_tokens"),
        (GOOD.replace("0.5, 20", "-0.5, 20"), "0,2,1,Gamma,1,1\n", "input_tokens"),
        (GOOD, "0,2,1,Pareto,1,1\n", "pattern"),
        (GOOD, "0,x,1,Gamma,1,1\n", "rate"),
        (GOOD, "0,2,1,,1,1\n", "pattern"),
        (GOOD, "0,2,1\n", None),
    ],
)
def test_servegen_mistakes(tmp_path, dataset, trace, field):
    with pytest.raises(InputError) as raised:
        read_client(servegen(tmp_path, dataset, trace))
    assert raised.value.field == field


@pytest.mark.parametrize("name", sorted(TRACES))
def test_the_public_traces(name):
    path = find_trace(name)
    if path is None:
        pytest.skip(f"the trace {name} is not on this machine")
    if name.startswith("servegen"):
        if not name.endswith("dataset"):
            assert len(read_client(path).windows) == 2016
        return
    load = load_trace(path)
    expected = {"azure-conv": (19366, 1154.7, 211.1), "azure-code": (8819, 2047.8, 27.9)}
    expected |= {"mooncake-conversation": (12031, 12035.1, 342.6)}
    assert len(load) == expected.get(name, (1619, 0, 0))[0]
    if name in expected:
        prompts = np.mean([r.num_prompt_tokens for r in load])
        outputs = np.mean([r.num_output_tokens for r in load])
        assert (round(prompts, 1), round(outputs, 1)) == expected[name][1:]


def test_a_missing_trace_is_said_and_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr("labkit.workload.traces.trace_folders", lambda: [tmp_path])
    load, sentence = load_or_synthetic("azure-conv", 50)
    assert len(load) == 50
    assert "synthetic" in sentence
    with pytest.raises(LabError, match="labkit traces fetch azure-conv"):
        load_trace("azure-conv")
    with pytest.raises(LabError, match="stand-in"):
        load_or_synthetic("nothing")


@pytest.mark.parametrize("number", ["1_0", "١٢", "9" * 5000, "0x10", "1e3"])
def test_a_count_is_written_with_plain_digits(tmp_path, number):
    path = tmp_path / "azure.csv"
    path.write_text(
        f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,{number},5\n", encoding="utf-8"
    )
    with pytest.raises(InputError, match="write a whole number") as raised:
        load_azure(path)
    assert raised.value.row == 2
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("load", [load_mooncake, load_own])
def test_deep_nesting_names_the_row(tmp_path, load):
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 100_000 + "]" * 100_000 + "\n")
    with pytest.raises(InputError, match="nested too deeply") as raised:
        load(path)
    assert raised.value.row == 1
