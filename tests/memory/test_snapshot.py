"""Reading snapshots: the handed ones exactly, strangers' with one sentence, hostile ones not at all."""

import copy
import pickle
import pickletools
from pathlib import Path

import pytest
from snapshot_files import NAMES, churned, handed, handed_stats, raw, snapshot_of

from labkit.errors import InputError
from labkit.memory.snapshot import parse_snapshot, read_snapshot
from labkit.memory.snapshot_export import export_snapshot
from labkit.memory.snapshot_sums import snapshot_sums


@pytest.mark.parametrize("name", NAMES)
def test_sums_of_the_handed_snapshots_equal_pytorchs_own_statistics(name):
    recorded = {key: value for key, value in handed_stats(name).items() if key.endswith(".current")}
    assert len(recorded) == 32
    assert snapshot_sums(handed(name)) == recorded


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:20"])
def test_sums_of_an_exported_allocator_equal_its_statistics(conf):
    allocator = churned(3, conf)
    recorded = {key: value for key, value in allocator.memory_stats().items() if key.endswith(".current")}
    assert snapshot_sums(snapshot_of(allocator)) == recorded


@pytest.mark.parametrize("name", NAMES)
def test_blocks_fill_their_segments_and_become_spans(name):
    snapshot = handed(name)
    spans = snapshot.spans()
    assert sum(span.size for span in spans) == sum(segment.size for segment in snapshot.segments)
    assert {span.state for span in spans} == {"allocated", "pending", "free"}
    assert any(span.tag.startswith("kv_alloc serve_demo.py:") for span in spans)


class Attack:
    ran = False

    def __reduce__(self):
        return (exec, ("import tests_were_attacked",))


def hostile_files():
    yield "reduce", pickle.dumps(Attack()), "builtins.exec"
    yield "protocol 0", pickle.dumps(Attack(), protocol=0), "exec"
    yield "global os.system", b"cos\nsystem\n(S'true'\ntR.", "os.system"
    yield "inst", b"(S'true'\nios\nsystem\n.", "os.system"
    yield "harmless class too", pickle.dumps({"segments": [Path("x")]}), "pathlib"
    yield "persistent id", b"Psomething\n.", "outside of the file"
    yield "extension", b"\x82\x01.", "registered extension 1"


@pytest.mark.parametrize(
    ("kind", "data", "named"), [pytest.param(*case, id=case[0]) for case in hostile_files()]
)
def test_a_hostile_pickle_is_refused_by_name_and_nothing_runs(tmp_path, monkeypatch, kind, data, named):
    import os

    monkeypatch.setattr(os, "system", lambda command: pytest.fail("it ran"))
    path = tmp_path / "hostile.pickle"
    path.write_bytes(data)
    with pytest.raises(InputError, match=named) as caught:
        read_snapshot(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_few_bytes_cannot_ask_for_gigabytes(tmp_path):
    """A memo index of 2**31: the C unpickler would reserve 32 GiB for it."""
    path = tmp_path / "memo.pickle"
    path.write_bytes(b"\x80\x04]r\xff\xff\xff\x7f.")
    assert read_snapshot(path).segments == ()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.9999])
def test_a_truncated_pickle_is_one_sentence(tmp_path, share):
    path = tmp_path / "cut.pickle"
    data = raw("plain")
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError, match=r"cut off or damaged|is empty") as caught:
        read_snapshot(path)
    assert "\n" not in str(caught.value)


def test_text_and_missing_files_are_one_sentence(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("this is not a pickle at all\n" * 20)
    with pytest.raises(InputError):
        read_snapshot(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_snapshot(tmp_path / "absent.pickle")


def changed(path, value):
    """An exported snapshot as plain data, with one entry replaced (or removed when `value` is None)."""
    data = copy.deepcopy(export_snapshot(churned(1, "")))
    place = data
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("segments",), None, "no list 'segments'"),
        (("segments",), 7, "no list 'segments'"),
        (("segments", 0), "x", r"segments\[0\]: is a str"),
        (("segments", 0, "address"), None, "no 'address'"),
        (("segments", 0, "total_size"), None, "no 'total_size'"),
        (("segments", 0, "total_size"), -1, "total_size: is -1"),
        (("segments", 0, "total_size"), 12, "blocks of"),
        (("segments", 0, "blocks"), None, "no list 'blocks'"),
        (("segments", 0, "blocks", 0, "size"), None, "no 'size'"),
        (("segments", 0, "blocks", 0, "size"), True, "whole number"),
        (("segments", 0, "blocks", 0, "state"), "busy", "is 'busy'; one of: active_allocated"),
        (("segments", 0, "blocks", 0, "state"), None, "is None; one of"),
        (("segments", 0, "blocks", 0, "address"), 5, "begins at 5"),
        (("segments", 0, "segment_pool_id"), "x", "pool id 'x'"),
        (("device_traces",), 7, "not a list of lists"),
        (("device_traces", 0, 3), {}, r"device_traces\[0\]\[3\]: has no 'action'"),
        (("device_traces", 0, 3, "size"), None, "no 'size'"),
        (("device_traces", 0, 3, "frames"), 3, "frames of type int"),
    ],
)
def test_a_snapshot_that_is_not_one_is_named_by_its_place(path, value, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_snapshot(changed(path, value), "their.pickle")
    assert str(caught.value).startswith("their.pickle")
    assert "\n" not in str(caught.value)


def test_keys_that_other_releases_lack_are_inferred_and_noted():
    data = export_snapshot(churned(1, ""))
    full = parse_snapshot(copy.deepcopy(data))
    for segment in data["segments"]:
        for key in ("segment_type", "segment_pool_id", "is_expandable", "device"):
            del segment[key]
        for block in segment["blocks"]:
            block["history"] = [{"real_size": block.pop("requested_size"), "frames": block.pop("frames")}]
            del block["address"]
    del data["allocator_settings"]
    for event in data["device_traces"][0]:
        del event["time_us"], event["pool_id"]
    old = parse_snapshot(data)
    assert snapshot_sums(old) == snapshot_sums(full)
    assert old.spans() == full.spans()
    assert any("segment_type" in note for note in old.notes)
    assert any("time_us" in note for note in old.notes)


def test_a_bare_list_of_segments_is_accepted_and_says_that_there_is_no_trace():
    data = export_snapshot(churned(1, ""))
    snapshot = parse_snapshot(data["segments"])
    assert snapshot_sums(snapshot)["allocation.all.current"] > 0
    assert any("no trace was recorded" in note for note in snapshot.notes)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol_is_read(tmp_path, protocol):
    data = export_snapshot(churned(2, ""))
    path = tmp_path / "p.pickle"
    path.write_bytes(pickletools.optimize(pickle.dumps(data, protocol=protocol)))
    assert read_snapshot(path).spans() == parse_snapshot(data).spans()
