"""Free kinds, pinners, largest request, verdicts."""

import pytest
from snapshot_files import NAMES, churned, handed, snapshot_of

from labkit.errors import LabError
from labkit.memory import OutOfMemory
from labkit.memory.caching import CachingAllocator
from labkit.memory.snapshot import Snapshot
from labkit.memory.snapshot_largest import largest_request
from labkit.memory.snapshot_report import pinners, report
from labkit.memory.snapshot_whatif import largest_request as largest_by_asking
from labkit.units import MIB


@pytest.mark.parametrize("name", NAMES)
def test_every_reserved_byte_of_the_handed_snapshots_is_accounted_for(name):
    found = report(handed(name))
    sums = found.sums
    parts = found.hole_bytes + found.cached_bytes + found.private_free_bytes + found.pending_bytes
    assert sums["allocated_bytes.all.current"] + parts == sums["reserved_bytes.all.current"]
    assert found.pending_bytes == sums["active_bytes.all.current"] - sums["allocated_bytes.all.current"]
    assert found.capacity == 4 << 30
    assert found.verdict == "exceeds capacity"
    assert found.state == "fragmentation"
    assert any("kv_grow" in frame for pinner in found.pinners for frame in pinner.frames)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("seed", range(40))
def test_the_largest_request_is_what_the_allocator_really_grants(conf, seed):
    allocator = churned(seed, conf, num_ops=120 + 20 * seed)
    free = allocator.device.free_bytes
    largest = largest_request(snapshot_of(allocator), 0, 0, free)
    granted = largest_by_asking(allocator)
    assert granted == largest.request // (2 * MIB) * (2 * MIB)
    assert largest.block <= largest.request


def full(conf="", capacity=100 * MIB):
    allocator = CachingAllocator(capacity, alloc_conf=conf)
    allocator.history = []
    return allocator


def verdict_of(allocator, size):
    with pytest.raises(OutOfMemory):
        allocator.malloc(size)
    return report(snapshot_of(allocator))


def test_a_comb_is_fragmentation_and_the_teeth_are_named():
    allocator = full()
    blocks = [allocator.malloc(4 * MIB, tag=f"tooth {i % 2}") for i in range(25)]
    for block in blocks[1::2]:
        allocator.free(block)
    found = verdict_of(allocator, 20 * MIB)
    assert found.verdict == "fragmentation"
    assert {pinner.frames[0].split(" request")[0].rsplit(" ", 1)[0] for pinner in found.pinners} == {
        "tooth 0"
    }
    assert found.pinners[0].hole_bytes <= found.hole_bytes
    assert found.pinners[0].num_blocks == 13


def test_live_tensors_everywhere_is_truly_full():
    allocator = full()
    for _ in range(9):
        allocator.malloc(10 * MIB)
    found = verdict_of(allocator, 30 * MIB)
    assert found.verdict == "truly full"
    assert found.last_failed == 30 * MIB


def test_free_bytes_of_a_private_pool_are_told_from_holes():
    allocator = full()
    pool = allocator.create_pool()
    with allocator.use_pool(pool):
        graph = [allocator.malloc(20 * MIB) for _ in range(3)]
    for block in graph:
        allocator.free(block)
    allocator.malloc(20 * MIB)
    found = verdict_of(allocator, 40 * MIB)
    assert found.verdict == "private pools"
    assert found.private_free_bytes == 60 * MIB
    assert found.cached_bytes == 0


def test_more_than_the_card_is_no_fault_of_the_allocator():
    allocator = full()
    allocator.malloc(10 * MIB)
    assert verdict_of(allocator, 200 * MIB).verdict == "exceeds capacity"


def test_without_a_failure_the_state_names_what_is_unused():
    allocator = full()
    block = allocator.malloc(20 * MIB)
    allocator.malloc(20 * MIB)
    allocator.free(block)
    assert report(snapshot_of(allocator)).verdict == "cached segments"
    waiting = full()
    waiting.hold_stream(7)
    block = waiting.malloc(20 * MIB)
    waiting.malloc(20 * MIB)
    waiting.record_stream(block, 7)
    waiting.free(block)
    found = report(snapshot_of(waiting))
    assert found.verdict == "pending frees"
    assert found.pending_bytes == 20 * MIB
    used = full()
    used.malloc(20 * MIB)
    assert report(snapshot_of(used)).verdict == "truly full"


def test_a_hole_between_two_owners_counts_for_both_and_once_for_one():
    allocator = full()
    a, hole, b, c = (allocator.malloc(4 * MIB, tag=tag) for tag in ("a", "hole", "b", "c"))
    allocator.free(hole)
    found = {pinner.frames[0].split()[0]: pinner for pinner in pinners(list(snapshot_of(allocator).segments))}
    assert found["a"].hole_bytes == found["b"].hole_bytes == 4 * MIB
    assert found["a"].num_holes == 1
    allocator.free(b)
    found = {pinner.frames[0].split()[0]: pinner for pinner in pinners(list(snapshot_of(allocator).segments))}
    assert found["a"].hole_bytes == 8 * MIB
    assert a.size == c.size


def test_a_given_capacity_replaces_what_the_trace_does_not_say():
    allocator = full()
    allocator.malloc(20 * MIB)
    snapshot = snapshot_of(allocator)
    assert report(snapshot).capacity is None
    assert report(snapshot).largest_request == 0
    assert report(snapshot, capacity=100 * MIB).largest_request == 80 * MIB


def test_a_device_that_holds_nothing_is_refused():
    with pytest.raises(LabError, match="holds nothing of device 3; it has: 0"):
        report(handed("plain"), 3)
    with pytest.raises(LabError, match="it has: none"):
        report(Snapshot("empty", ()))
