"""A snapshot in the player shows, at its end, the snapshot's own blocks."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "memory"))

import itertools

from snapshot_files import NAMES, handed

from labkit.viz.player import player
from labkit.viz.snapshot_run import snapshot_run


@pytest.mark.parametrize("name", NAMES)
def test_the_last_step_shows_the_blocks_of_the_snapshot(name):
    snapshot = handed(name)
    run = snapshot_run(snapshot)
    shown, real = run.layout(run.num_steps - 1), snapshot.spans()
    for state in ("allocated", "pending"):
        expected = sorted(span.size for span in real if span.state == state)
        assert sorted(span.size for span in shown if span.state == state) == expected
    free = sum(span.size for span in real if span.state == "free")
    assert sum(span.size for span in shown if span.state == "free") == free == run.free[-1]
    assert run.used[-1] == sum(span.size for span in real if span.state == "allocated")
    assert [kind for _, kind, _ in run.events].count("oom") == 1


@pytest.mark.parametrize("name", NAMES)
def test_blocks_lie_inside_reserved_ranges_at_every_step(name):
    run = snapshot_run(handed(name))
    for step in range(0, run.num_steps, 97):
        spans = run.layout(step)
        assert all(left.end <= right.offset for left, right in itertools.pairwise(spans)), step
        assert sum(span.size for span in spans if span.state == "free") == run.free[step], step
        assert sum(span.size for span in spans if span.state == "allocated") == run.used[step], step


def test_owners_are_frames_and_colours_say_what_was_seen():
    run = snapshot_run(handed("plain"), title="plain")
    assert any(owner.startswith("kv_alloc serve_demo.py:8 < kv_grow") for owner in run.owners)
    assert run.texts["weights"] == "there all the time"
    assert player(run).opens == pytest.approx(
        float(run.times[next(s for s, kind, _ in run.events if kind == "oom")])
    )
