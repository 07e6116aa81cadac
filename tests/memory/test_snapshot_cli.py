"""`labkit snapshot`: report, JSON, page, and one sentence for bad files."""

import json
import pickle

import pytest
from snapshot_files import NAMES, churned, handed_stats, raw

from labkit.cli.main import main
from labkit.memory.snapshot_export import export_snapshot, write_snapshot


@pytest.fixture(params=NAMES)
def file(request, tmp_path):
    path = tmp_path / f"{request.param}.pickle"
    path.write_bytes(raw(request.param))
    return path


def test_the_report_names_verdict_pinners_and_replays(file, capsys):
    main_ok(["snapshot", str(file)])
    shown = capsys.readouterr().out
    assert shown.startswith("exceeds capacity: The failed request of 1024 GiB")
    assert "kv_alloc serve_demo.py:8 < kv_grow serve_demo.py:9" in shown
    assert "as recorded" in shown
    assert "max_split_size_mb:" in shown
    assert "empty_cache() at the end would return" in shown


def test_json_has_the_same_numbers_as_pytorch(file, capsys):
    main_ok(["snapshot", str(file), "--json"])
    found = json.loads(capsys.readouterr().out)
    stats = handed_stats(file.stem)
    assert {key: stats[key] for key in found["sums"]} == found["sums"]
    assert sum(segment["size"] for segment in found["segments"]) == stats["reserved_bytes.all.current"]
    assert next(outcome["name"] for outcome in found["what_if"]) == "as recorded"


def test_the_page_stands_alone(file, tmp_path, capsys):
    page = tmp_path / "report.html"
    main_ok(["snapshot", str(file), "--html", str(page)])
    text = page.read_text()
    assert "labkit-player" in text
    assert "who pins the holes" in text
    assert "https://" not in text


def test_bad_files_are_one_sentence_and_exit_2(tmp_path, capsys):
    path = tmp_path / "bad.pickle"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(SystemExit) as stopped:
        main(["snapshot", str(path)])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "os.system" in error
    assert error.count("\n") == 1


def main_ok(arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert not stopped.value.code


def test_a_trace_that_contradicts_the_blocks_is_left_out_and_said(tmp_path, capsys):
    data = export_snapshot(churned(1, ""))
    place = next(i for i, event in enumerate(data["device_traces"][0]) if event["action"] == "free_requested")
    del data["device_traces"][0][place + 1]
    path = write_snapshot(tmp_path / "odd.pickle", data)
    main_ok(["snapshot", str(path), "--html", str(tmp_path / "odd.html")])
    shown = capsys.readouterr().out
    assert "note: nothing was replayed: " in shown
    assert "the trace does not belong to these segments" in shown
    assert "who pins the holes" in shown


def test_a_segment_twice_and_a_capacity_of_nothing_are_refused(tmp_path, capsys):
    data = export_snapshot(churned(1, ""))
    path = tmp_path / "twice.pickle"
    for segments, args, said in (
        ([*data["segments"], data["segments"][0]], [], "overlaps segments[0]"),
        (data["segments"], ["--capacity", "0GiB"], "--capacity is 0GiB"),
        (data["segments"], ["--capacity", ""], "'' is not a size"),
    ):
        path.write_bytes(pickle.dumps({**data, "segments": segments}))
        with pytest.raises(SystemExit) as done:
            main(["snapshot", str(path), *args])
        assert done.value.code == 2
        assert said in capsys.readouterr().err
