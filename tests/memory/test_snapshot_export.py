"""A run of any allocator, opened by PyTorch's own viewer: it must show the same bytes."""

import contextlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from snapshot_files import churned, snapshot_of

from labkit.memory import ALLOCATORS, OutOfMemory, make_allocator
from labkit.memory.measures import measure
from labkit.memory.snapshot import parse_snapshot, read_snapshot
from labkit.memory.snapshot_export import Recorded, export_snapshot, write_snapshot
from labkit.memory.snapshot_sums import snapshot_sums

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def driven(name, seed=0):
    allocator = Recorded(make_allocator(name, 256 << 20))
    rng, live = np.random.default_rng(seed), []
    for index in range(300):
        if rng.random() < 0.6:
            with contextlib.suppress(OutOfMemory):
                live.append(
                    allocator.malloc(int(rng.integers(1, 6 << 20)), tag=f"r{index}", lifetime="request")
                )
        elif live:
            allocator.free(live.pop(int(rng.integers(len(live)))))
    allocator.check_integrity()
    return allocator


@pytest.mark.parametrize("name", ALLOCATORS)
def test_every_allocator_is_exported_with_its_bytes(name, tmp_path):
    allocator = driven(name)
    snapshot = read_snapshot(write_snapshot(tmp_path / "run.pickle", export_snapshot(allocator)))
    sums, stats = snapshot_sums(snapshot), allocator.stats()
    assert sums["allocated_bytes.all.current"] == stats.allocated_bytes
    assert sums["requested_bytes.all.current"] == stats.requested_bytes
    assert sums["reserved_bytes.all.current"] == stats.reserved_bytes
    assert sums["allocation.all.current"] == stats.num_allocations
    if not any(span.state == "unmapped" for span in allocator.layout()):
        assert max(span.size for span in snapshot.spans() if span.state == "free") == stats.largest_free_bytes
    num_mallocs = sum(event.action == "alloc" for event in snapshot.trace(0))
    num_frees = sum(event.action == "free_completed" for event in snapshot.trace(0))
    assert num_mallocs - num_frees == stats.num_allocations
    assert [path.name for path in tmp_path.iterdir()] == ["run.pickle"]


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_caching_allocator_comes_back_span_for_span(conf):
    allocator = churned(6, conf)
    snapshot = snapshot_of(allocator)
    mapped = [span for span in allocator.layout() if span.state != "unmapped"]
    shown = [(span.size, span.state, span.requested) for span in snapshot.spans()]
    assert shown == [(span.size, span.state, span.requested) for span in mapped]
    assert measure(snapshot.spans()).free_bytes == allocator.stats().free_bytes
    assert {s.is_expandable for s in snapshot.segments} == {bool(conf)}


def viewer(*commands):
    """`python -m torch.cuda._memory_viz` for each command, in one process: importing torch takes seconds."""
    script = (
        "import json, runpy, sys\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['_memory_viz', *command]\n"
        "    runpy.run_module('torch.cuda._memory_viz', run_name='__main__')\n"
        "    print('=====')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout.split("=====\n")


def printed(text, key):
    number, unit = re.search(rf"{key}: ([0-9.]+)(B|KiB|MiB|GiB)", text).groups()
    return float(number), UNITS[unit]


def test_pytorchs_own_viewer_opens_them_and_shows_the_same_bytes(tmp_path):
    """The viewer counts requested bytes as allocated, and calls rounding waste internal free."""
    names, plot = ("caching", "best-fit", "virtual-memory"), tmp_path / "plot.html"
    runs = {name: driven(name) for name in names}
    files = {
        name: str(write_snapshot(tmp_path / f"{name}.pickle", export_snapshot(run)))
        for name, run in runs.items()
    }
    *stats_texts, trace, _, _ = viewer(
        *(["stats", files[name]] for name in names),
        ["trace", files["caching"]],
        ["segment_plot", files["caching"], "-o", str(plot)],
    )
    for name, text in zip(names, stats_texts, strict=True):
        stats = runs[name].stats()
        free = stats.reserved_bytes - stats.requested_bytes
        for key, value in (
            ("total_reserved", stats.reserved_bytes),
            ("total_allocated", stats.requested_bytes),
            ("total_free", free),
        ):
            number, unit = printed(text, key)
            assert number == pytest.approx(value / unit, abs=0.05 + 1e-9), (name, key)
    snapshot = parse_snapshot(export_snapshot(runs["caching"]))
    assert f"{len(snapshot.trace(0))} entries" in trace
    assert trace.count("cudaMalloc(") == sum(event.action == "segment_alloc" for event in snapshot.trace(0))
    assert trace.count("OutOfMemoryError") == runs["caching"].stats().num_ooms
    assert "Allocator State History" in plot.read_text()


def test_growth_in_place_is_a_free_and_an_allocation():
    allocator = Recorded(make_allocator("first-fit", 1 << 20))
    block = allocator.malloc(1000)
    assert allocator.try_grow(block, 5000)
    actions = [entry.action for entry in allocator.history]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed", "alloc"]
    assert allocator.history[-1].size == 5000
