"""The model of PyTorch's allocator against recordings of the real one."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from labkit.errors import InputError
from labkit.experiments.verify import load_recording, verify_file
from labkit.memory.caching.replay import replay
from labkit.memory.caching.replay_format import COLUMNS, RELEASE
from labkit.memory.caching.replay_run import Run
from tests.flip import assert_every_flip_is_named

GOLDEN = Path(__file__).parents[1] / "golden" / "torch_allocator"
FILES = sorted(GOLDEN.glob("*.json.gz"))
PARTS = ["torch_version", "torch_git", "rows", "events", "layout_digests", "reservations", "final", "columns"]


def test_all_sixteen_recordings_are_here():
    assert len(FILES) == 16


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split(".")[0])
def test_recording_replays_without_a_difference(path):
    verdict = verify_file(path)
    assert verdict.comparison.first is None
    assert verdict.comparison.num_differences == 0
    assert verdict.comparison.num_ops > 400


@pytest.mark.parametrize("name", ["19_boundaries", "11_expandable"])
def test_one_flipped_value_of_each_field_is_named(name):
    recording = load_recording(GOLDEN / f"{name}.json.gz")
    fields = assert_every_flip_is_named(recording, replay, PARTS)
    assert {f"rows[].{column}" for column in recording["columns"]} <= set(fields)
    assert len(fields) > 80


def test_the_same_decisions_come_out_under_every_address_policy():
    recording = load_recording(GOLDEN / "28_ties_bump.json.gz")
    for policy in ("first-fit", "descending"):
        other = copy.deepcopy(recording)
        other["config"]["address_policy"] = policy
        for row in other["rows"]:
            row[1] = None  # addresses are the policy's own
        paths = [difference.path for difference in replay(other, max_kept=10**9).kept]
        assert any(path.endswith(".addr") for path in paths)
        assert not [path for path in paths if path.startswith("rows") and not path.endswith(".addr")]


@pytest.mark.parametrize("policy", ["descending", "last-fit"])
def test_a_heap_that_grows_downwards_is_recognised_by_most_addresses(policy):
    recording = load_recording(GOLDEN / "06_frag_oom.json.gz")
    recording["config"]["address_policy"] = "descending"
    top = 5 << 40
    run = Run(recording, address_policy=policy)
    for row, op in zip(recording["rows"], recording["ops"], strict=True):
        address = run.step(op)[1]
        row[1] = None if address is None else address + top
    recording["rows"][1][1] += 512
    paths = [d.path for d in replay(recording, max_kept=10**9).kept if d.path.startswith("rows")]
    assert paths == ["rows[1].addr"]


def test_a_recording_with_two_streams_replays_whatever_the_handle_was():
    """Made here from the model (no recording with two streams is at hand): the point is the mapping of handles."""
    ops = [["alloc", 0, 4 << 20, 1], ["alloc", 1, 600, 0], ["alloc", 2, 700, 1], ["free", 1], ["free", 9]]
    config = {
        "total_memory": 1 << 30,
        "alloc_conf": "",
        "memory_fraction": None,
        "address_policy": "bump",
        "two_streams": True,
    }
    run = Run({"config": config}, streams=(0, 0xBEEF))
    recording = {"config": config, "ops": ops, "columns": COLUMNS, "rows": [run.step(op) for op in ops]}
    recording |= {"events": run.events, "layout_digests": run.digests, "reservations": [], **RELEASE}
    recording["final"] = {
        "segments": run.final_segments(),
        "device": run.device.counters(),
        "stats": run.final_stats(),
    }
    assert {segment["stream"] for segment in recording["final"]["segments"]} == {0, 0xBEEF}
    assert replay(recording).num_differences == 0
    assert recording["rows"][-1][0] == "skipped"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: r.pop("events"), "events"),
        (lambda r: r["config"].pop("alloc_conf"), "config.alloc_conf"),
        (lambda r: r["rows"].pop(), "rows"),
        (lambda r: r["ops"].__setitem__(3, ["alloc", 1, -5]), "ops"),
        (lambda r: r["ops"].__setitem__(3, ["steal", 1]), "ops"),
        (lambda r: r["rows"].__setitem__(3, [1]), "rows"),
        (lambda r: r["final"].pop("segments"), "final.segments"),
    ],
)
def test_a_recording_with_a_missing_part_is_refused_in_one_sentence(change, field):
    recording = load_recording(GOLDEN / "19_boundaries.json.gz")
    change(recording)
    with pytest.raises(InputError) as caught:
        replay(recording)
    assert f"field {field}" in str(caught.value)
    assert "\n" not in str(caught.value)
