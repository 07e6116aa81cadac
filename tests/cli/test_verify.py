"""`labkit verify`: lines, JSON, exit codes, and files that are no recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from labkit.cli.main import main
from labkit.errors import InputError
from labkit.experiments.verify import REPLAYERS, format_key, load_recording, verify_file

GOLDEN = Path(__file__).parents[1] / "golden" / "torch_allocator" / "19_boundaries.json.gz"


def verify(*args, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify", *map(str, args)])
    out, err = capsys.readouterr()
    return caught.value.code or 0, out, err


@pytest.fixture
def changed(tmp_path):
    recording = load_recording(GOLDEN)
    recording["rows"][17][recording["columns"].index("block_size")] = 99
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(recording))
    return path


def test_a_line_a_file_and_exit_0(capsys):
    code, out, err = verify(GOLDEN, capsys=capsys)
    assert (code, err) == (0, "")
    assert out == f"{GOLDEN}: cuda-caching-allocator-golden/1, 433 operations, 0 differing fields\n"


def test_the_first_difference_with_both_values_and_exit_1(changed, capsys):
    code, out, _ = verify(GOLDEN, changed, capsys=capsys)
    assert code == 1
    assert "1 differing fields; first: rows[17].block_size: recorded 99, replayed " in out.splitlines()[1]


def test_json(changed, capsys):
    code, out, _ = verify(changed, GOLDEN, "--json", capsys=capsys)
    assert code == 1
    first, second = json.loads(out)
    assert set(first) == set(second) == {"file", "format", "num_ops", "num_differences", "first"}
    assert (first["num_differences"], first["first"]["path"]) == (1, "rows[17].block_size")
    assert (second["file"], second["num_ops"], second["first"]) == (str(GOLDEN), 433, None)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[1, 2]", "holds a list; a recording is a JSON object"),
        (b"{}", "has no known format or system"),
        (b'{"format": "tomorrow/9"}', "known are: cuda-caching-allocator-golden/1"),
        (b'{"format": ["x"]}', "has no known format or system"),
        (b"\x1f\x8bgarbage", "is not JSON"),
        (gzip.compress(b'{"ops": 1}', mtime=0)[:-9], "is not JSON"),
        (b"\x80\x81\xff", "is not JSON"),
        (b'{"format": "cuda-caching-allocator-golden/1"}', "field config: is missing or not a dict"),
    ],
)
def test_a_file_that_is_no_recording_is_one_sentence_and_exit_2(content, text, tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    code, out, err = verify(path, capsys=capsys)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1
    assert str(path) in err


def test_a_missing_file_does_not_hide_the_others(tmp_path, capsys):
    code, out, err = verify(tmp_path / "none.json", GOLDEN, capsys=capsys)
    assert code == 2
    assert "0 differing fields" in out
    assert "cannot be read (No such file or directory)" in err


def test_every_known_kind_is_recognised():
    assert format_key({"system": "vllm"}) == "vllm"
    assert format_key({"system": "sglang", "steps": []}) == "sglang"
    assert format_key({"system": "sglang", "ops": [], "results": {}}) == "sglang-ops"
    assert format_key({"system": "tensorrt_llm", "format": "trtllm-steps-1"}) == "trtllm-steps-1"
    assert format_key({"system": "tensorrt_llm"}) == "tensorrt_llm"
    with pytest.raises(InputError):
        format_key({"system": "llama.cpp"})


def test_a_kind_whose_replayer_is_not_installed_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(REPLAYERS, "other/1", "labkit.memory.no_such_module:replay")
    path = tmp_path / "other.json"
    path.write_text('{"format": "other/1"}')
    with pytest.raises(InputError, match="nothing replays other/1 recordings in this installation"):
        verify_file(path)
