"""The trace: who lived when, what was held when, curves, and replays under other settings."""

import contextlib

import numpy as np
import pytest
from snapshot_files import NAMES, churned, handed, handed_stats, snapshot_of

from labkit.errors import LabError
from labkit.memory import OutOfMemory
from labkit.memory.caching import CachingAllocator
from labkit.memory.snapshot import Snapshot, parse_snapshot
from labkit.memory.snapshot_export import export_snapshot
from labkit.memory.snapshot_timeline import timeline
from labkit.memory.snapshot_trace import capacity_of, device_free_of, held_ranges, lives
from labkit.memory.snapshot_whatif import what_if, with_setting
from labkit.units import MIB

CONFS = ["", "expandable_segments:True"]


@pytest.mark.parametrize("name", NAMES)
def test_the_trace_ends_in_the_blocks_of_the_snapshot(name):
    snapshot = handed(name)
    curves = timeline(snapshot)
    stats = handed_stats(name)
    assert curves.used[-1] == stats["allocated_bytes.all.current"]
    assert curves.used[-1] + curves.pending[-1] == stats["active_bytes.all.current"]
    assert curves.reserved[-1] == stats["reserved_bytes.all.current"]
    assert curves.largest_free[-1] == max(span.size for span in snapshot.spans() if span.state == "free")
    assert np.all(np.diff(curves.times_ms) > 0)
    assert capacity_of(snapshot) == 4 << 30


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(4))
def test_curves_of_a_whole_run_equal_the_allocators_statistics_after_every_event(conf, seed):
    allocator = CachingAllocator(256 * MIB, alloc_conf=conf)
    allocator.history, live, expected = [], [], []
    rng = np.random.default_rng(seed)
    for _ in range(200):
        if rng.random() < 0.6:
            # sizes that need no rounding and are cut exactly: the trace does not say more
            with contextlib.suppress(OutOfMemory):
                live.append(allocator.malloc(int(rng.integers(1, 24)) * 2 * MIB))
        elif live:
            allocator.free(live.pop(int(rng.integers(len(live)))))
        stats = allocator.stats()
        if not allocator.history:
            continue
        expected.append(
            (
                len(allocator.history) - 1,
                stats.allocated_bytes,
                stats.reserved_bytes,
                stats.largest_free_bytes,
            )
        )
    curves = timeline(snapshot_of(allocator))
    for event, used, reserved, largest in expected:
        assert (curves.used[event], curves.reserved[event], curves.largest_free[event]) == (
            used,
            reserved,
            largest,
        )


@pytest.mark.parametrize("conf", CONFS)
def test_a_trace_that_begins_in_the_middle_gives_the_same_end(conf):
    allocator = churned(5, conf)
    whole = export_snapshot(allocator)
    late = {**whole, "device_traces": [whole["device_traces"][0][150:]]}
    full, cut = timeline(parse_snapshot(whole)), timeline(parse_snapshot(late))
    assert np.array_equal(full.used[150:], cut.used)
    assert np.array_equal(full.reserved[150:], cut.reserved)
    before = [life for life in lives(parse_snapshot(late)) if life.born < 0]
    assert len(before) == full_live_at(full, 150)


def full_live_at(curves, event):
    return sum(life.born < event <= life.done for life in curves.lives)


@pytest.mark.parametrize("conf", CONFS)
def test_held_ranges_add_up_to_what_is_reserved_at_the_end(conf):
    allocator = churned(2, conf)
    snapshot = snapshot_of(allocator)
    last = len(snapshot.trace(0))
    assert sum(held.size for held in held_ranges(snapshot) if held.end == last) == allocator.reserved_bytes


@pytest.mark.parametrize("conf", CONFS)
def test_device_free_follows_from_the_last_failure(conf):
    allocator = CachingAllocator(256 * MIB, alloc_conf=conf)
    allocator.history = []
    with pytest.raises(OutOfMemory):
        allocator.malloc(512 * MIB)
    allocator.malloc(30 * MIB)
    snapshot = snapshot_of(allocator)
    assert capacity_of(snapshot) == 256 * MIB
    assert device_free_of(snapshot) == allocator.device.free_bytes


@pytest.mark.parametrize("name", NAMES)
def test_replaying_the_recorded_setting_gives_the_recorded_bytes(name):
    first = what_if(handed(name))[0]
    stats = handed_stats(name)
    assert first.reserved == stats["reserved_bytes.all.current"]
    assert first.active == stats["active_bytes.all.current"]
    assert (first.failed, first.served, first.new_ooms) == (1, 0, 0)


@pytest.mark.parametrize("conf", CONFS)
def test_replaying_a_whole_run_reproduces_it_exactly(conf):
    allocator = churned(4, conf)
    first = what_if(snapshot_of(allocator))[0]
    assert first.reserved == allocator.reserved_bytes
    assert first.peak_reserved == allocator.all_stats.reserved_bytes.peak
    assert first.failed == allocator.num_ooms
    assert first.served == first.new_ooms == 0


def test_a_comb_is_served_by_expandable_segments_and_the_replay_says_so():
    """4 x 16 MiB in their own segments, 0 and 2 freed, then 32 MiB on a card that is full: 32 MiB are free, in two pieces."""
    allocator = CachingAllocator(100 * MIB)
    allocator.history = []
    tail = [allocator.malloc(size * MIB) for size in (16, 4, 4, 4, 4, 16)]
    for block in tail[1::2][:2]:
        allocator.free(block)
    with pytest.raises(OutOfMemory):
        allocator.malloc(50 * MIB)
    outcomes = {outcome.name: outcome for outcome in what_if(snapshot_of(allocator))}
    recorded, expandable = outcomes["as recorded"], outcomes["expandable_segments:True"]
    assert recorded.served == 0
    assert expandable.largest_request > recorded.largest_request


def test_max_split_saves_what_the_known_order_effect_says():
    """(100, free, 8, 100) MiB: 200 reserved, with max_split_size_mb:50 120."""
    allocator = CachingAllocator(1024 * MIB)
    allocator.history = []
    allocator.free(allocator.malloc(100 * MIB))
    allocator.malloc(8 * MIB)
    allocator.malloc(100 * MIB)
    recorded, _, split = what_if(snapshot_of(allocator), capacity=1024 * MIB, split_limits_mb=(50,))
    assert (recorded.reserved, split.reserved) == (200 * MIB, 120 * MIB)
    assert split.conf == "max_split_size_mb:50"


def test_what_empty_cache_would_return_and_a_program_that_calls_it():
    allocator = CachingAllocator(1024 * MIB)
    allocator.history = []
    allocator.free(allocator.malloc(100 * MIB))
    first = what_if(snapshot_of(allocator), capacity=1024 * MIB)[0]
    assert first.reserved - first.after_empty_cache == 100 * MIB
    allocator.empty_cache()
    allocator.malloc(8 * MIB)
    again = what_if(snapshot_of(allocator), capacity=1024 * MIB)[0]
    assert again.reserved == allocator.reserved_bytes == 20 * MIB


def test_without_capacity_no_largest_request_is_claimed_and_without_trace_nothing():
    allocator = CachingAllocator(1024 * MIB)
    allocator.history = []
    allocator.malloc(8 * MIB)
    assert {outcome.largest_request for outcome in what_if(snapshot_of(allocator))} == {None}
    with pytest.raises(LabError, match="no trace was recorded"):
        what_if(Snapshot("bare", snapshot_of(allocator).segments))


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("", "k:1"),
        ("k:2", "k:1"),
        ("a:True,k:2,b:[64:8,>:4]", "a:True,b:[64:8,>:4],k:1"),
    ],
)
def test_one_key_of_a_settings_string_is_replaced(conf, expected):
    assert with_setting(conf, "k", "1") == expected
