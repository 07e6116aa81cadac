"""`CachingAllocator`: what the recordings do not reach, and the effects that the lab teaches with it."""

from __future__ import annotations

import random

import pytest

from labkit.errors import LabError
from labkit.memory import OutOfMemory, make_allocator
from labkit.memory.caching import CachingAllocator
from labkit.units import GIB, MIB


def reserved_after(rounds, **options):
    """Run rounds of ("alloc", count, MiB); each round is freed before the next. Reserved MiB at the end."""
    allocator = CachingAllocator(4 * GIB, **options)
    for count, size in rounds:
        held = [allocator.malloc(size * MIB) for _ in range(count)]
        for allocation in held:
            allocator.free(allocation)
    allocator.check_integrity()
    return allocator.reserved_bytes // MIB


class TestOrderEffects:
    def test_small_before_large_doubles_what_is_reserved(self):
        assert reserved_after([(8, 16), (4, 32)]) == 256
        assert reserved_after([(4, 32), (8, 16)]) == 128

    def test_expandable_segments_end_at_the_same_place_both_ways(self):
        assert reserved_after([(8, 16), (4, 32)], alloc_conf="expandable_segments:True") == 140
        assert reserved_after([(4, 32), (8, 16)], alloc_conf="expandable_segments:True") == 140

    @pytest.mark.parametrize(("conf", "reserved"), [("", 96), ("expandable_segments:True", 100)])
    def test_two_holes_of_half_the_size_do_not_make_one(self, conf, reserved):
        allocator = CachingAllocator(4 * GIB, alloc_conf=conf)
        held = [allocator.malloc(16 * MIB) for _ in range(4)]
        allocator.free(held[0])
        allocator.free(held[2])
        allocator.malloc(32 * MIB)
        assert allocator.reserved_bytes == reserved * MIB

    @pytest.mark.parametrize(("conf", "reserved"), [("", 200), ("max_split_size_mb:50", 120)])
    def test_a_small_request_spoils_a_large_cached_block(self, conf, reserved):
        allocator = CachingAllocator(4 * GIB, alloc_conf=conf)
        allocator.free(allocator.malloc(100 * MIB))
        allocator.malloc(8 * MIB)
        allocator.malloc(100 * MIB)
        assert allocator.reserved_bytes == reserved * MIB


class TestStreams:
    def test_a_block_used_on_another_stream_waits_for_it(self):
        allocator = CachingAllocator(64 * MIB)
        block = allocator.malloc(8 * MIB)
        allocator.record_stream(block, 7)
        allocator.hold_stream(7)
        allocator.free(block)
        stats = allocator.stats()
        assert (stats.allocated_bytes, stats.active_bytes) == (0, 8 * MIB)
        assert [s.state for s in allocator.layout()] == ["pending", "free"]
        other = allocator.malloc(8 * MIB)
        assert other.offset == block.offset + 8 * MIB  # not reused while stream 7 works
        allocator.check_integrity()
        allocator.finish_stream(7)
        allocator.malloc(512)  # events are looked at here
        assert allocator.stats().active_bytes == 8 * MIB + 512
        allocator.check_integrity()

    def test_a_use_on_its_own_stream_does_not_wait(self):
        allocator = CachingAllocator(64 * MIB)
        block = allocator.malloc(8 * MIB, stream=3)
        allocator.record_stream(block, 3)
        allocator.hold_stream(3)
        allocator.free(block)
        assert allocator.stats().active_bytes == 0

    def test_empty_cache_waits_for_busy_streams(self):
        allocator = CachingAllocator(64 * MIB)
        block = allocator.malloc(8 * MIB)
        for stream in (1, 2):
            allocator.record_stream(block, stream)
            allocator.hold_stream(stream)
        allocator.free(block)
        allocator.empty_cache()
        assert allocator.reserved_bytes == 0
        assert allocator.memory_stats()["num_sync_all_streams"] == 1
        allocator.check_integrity()

    def test_the_flush_before_the_last_attempt_waits_for_busy_streams(self):
        allocator = CachingAllocator(40 * MIB)
        block = allocator.malloc(30 * MIB)
        allocator.record_stream(block, 1)
        allocator.hold_stream(1)
        allocator.free(block)
        allocator.malloc(30 * MIB)
        allocator.check_integrity()

    def test_free_blocks_serve_their_own_stream_only(self):
        allocator = CachingAllocator(1 * GIB)
        allocator.free(allocator.malloc(30 * MIB, stream=0))
        allocator.malloc(30 * MIB, stream=1)
        assert allocator.reserved_bytes == 60 * MIB
        allocator.check_integrity()


class TestPrivatePools:
    def test_a_private_pool_shares_nothing_and_goes_back_when_its_user_is_gone(self):
        allocator = CachingAllocator(1 * GIB)
        allocator.free(allocator.malloc(30 * MIB))
        pool = allocator.create_pool()
        with allocator.use_pool(pool):
            inside = allocator.malloc(30 * MIB)
        assert allocator.reserved_bytes == 60 * MIB
        allocator.free(inside)
        allocator.empty_cache()
        assert allocator.reserved_bytes == 30 * MIB  # still in use by its owner
        allocator.check_integrity()
        allocator.release_pool(pool)
        allocator.empty_cache()
        assert allocator.reserved_bytes == 0
        with pytest.raises(LabError, match="unknown private pool"), allocator.use_pool(pool):
            pass

    def test_its_bytes_count_in_the_same_statistics(self):
        allocator = CachingAllocator(1 * GIB)
        with allocator.use_pool(allocator.create_pool()):
            allocator.malloc(700)
        stats = allocator.memory_stats()
        assert stats["allocated_bytes.small_pool.current"] == 1024
        assert stats["allocated_bytes.all.current"] == 1024


class TestLimits:
    def test_a_memory_fraction_refuses_before_the_device_is_asked(self):
        allocator = CachingAllocator(1 * GIB, memory_fraction=0.5)
        allocator.malloc(400 * MIB)
        with pytest.raises(OutOfMemory) as caught:
            allocator.malloc(200 * MIB)
        assert caught.value.capacity == 512 * MIB
        assert allocator.device.num_malloc_fail == 0
        by_setting = CachingAllocator(1 * GIB, alloc_conf="per_process_memory_fraction:0.5")
        assert by_setting.memory_limit == 512 * MIB
        assert CachingAllocator(1 * GIB, memory_fraction=1.0).memory_limit is None

    def test_garbage_collection_needs_a_fraction(self):
        for fraction, reserved in ((None, 902), (0.99, 602)):
            allocator = CachingAllocator(
                1000 * MIB, alloc_conf="garbage_collection_threshold:0.5", memory_fraction=fraction
            )
            held = [allocator.malloc(300 * MIB) for _ in range(2)]
            allocator.free(held[0])
            allocator.malloc(301 * MIB)
            assert allocator.reserved_bytes == reserved * MIB, fraction

    def test_a_refusal_has_flushed_the_cache_and_says_why(self):
        allocator = CachingAllocator(100 * MIB)
        held = [allocator.malloc(2 * MIB) for _ in range(50)]
        for allocation in held[::2]:
            allocator.free(allocation)
        with pytest.raises(OutOfMemory) as caught:
            allocator.malloc(30 * MIB)
        error = caught.value
        assert error.kind == "fragmentation"
        assert error.free == 50 * MIB
        assert error.largest_free == 2 * MIB
        assert allocator.num_ooms == allocator.num_alloc_retries == 1
        with pytest.raises(OutOfMemory) as caught:
            allocator.malloc(60 * MIB)
        assert caught.value.kind == "capacity"
        allocator.check_integrity()

    def test_one_exbibyte_is_refused_before_anything(self):
        allocator = CachingAllocator(100 * MIB)
        allocator.free(allocator.malloc(30 * MIB))
        with pytest.raises(OutOfMemory):
            allocator.malloc(1 << 60)
        assert allocator.num_ooms == 0
        assert allocator.reserved_bytes == 30 * MIB


class TestSettingsThatChange:
    def test_expandable_blocks_are_passed_over_once_the_setting_is_off(self):
        allocator = CachingAllocator(1 * GIB, alloc_conf="expandable_segments:True")
        allocator.free(allocator.malloc(30 * MIB))
        assert allocator.reserved_bytes == 40 * MIB
        allocator.set_allocator_settings("expandable_segments:False")
        allocator.malloc(30 * MIB)
        assert allocator.reserved_bytes == 70 * MIB
        allocator.empty_cache()
        assert allocator.reserved_bytes == 30 * MIB
        allocator.check_integrity()

    def test_a_bad_string_is_one_sentence(self):
        allocator = CachingAllocator(1 * GIB)
        with pytest.raises(LabError, match="Unrecognized key 'speed'"):
            allocator.set_allocator_settings("speed:11")
        with pytest.raises(LabError, match="Unrecognized key 'speed'"):
            make_allocator("caching", GIB, alloc_conf="speed:11")
        with pytest.raises(LabError, match="invalid fraction"):
            allocator.set_memory_fraction(1.5)
        with pytest.raises(LabError, match="unknown address policy 'up'"):
            make_allocator("caching", GIB, address_policy="up")
        allocator.check_integrity()


def test_an_allocation_handed_out_is_never_handed_out_again():
    """So a stale handle cannot free the next owner of the same bytes."""
    allocator = CachingAllocator(64 * MIB)
    first = allocator.malloc(20 * MIB)
    allocator.free(first)
    second = allocator.malloc(20 * MIB)
    assert second.offset == first.offset
    with pytest.raises(LabError, match="not live"):
        allocator.free(first)
    assert allocator.stats().num_allocations == 1
    allocator.free(second)


def test_history_holds_what_a_snapshot_would():
    allocator = CachingAllocator(64 * MIB)
    allocator.history = []
    block = allocator.malloc(700, tag="kv")
    allocator.free(block)
    allocator.empty_cache()
    assert [(e.action, e.size) for e in allocator.history] == [
        ("segment_alloc", 2 * MIB),
        ("alloc", 700),
        ("free_requested", 700),
        ("free_completed", 700),
        ("segment_free", 2 * MIB),
    ]
    assert allocator.history[1].tag == "kv"


def test_an_expandable_block_is_never_released_to_make_room():
    """The step that returns oversize blocks finds none, so the device is asked twice for one refusal, not three times."""
    allocator = CachingAllocator(200 * MIB, alloc_conf="expandable_segments:True,max_split_size_mb:20")
    held = [allocator.malloc(60 * MIB) for _ in range(3)]
    allocator.free(held[0])
    allocator.free(held[2])
    with pytest.raises(OutOfMemory):
        allocator.malloc(150 * MIB)
    assert allocator.device.num_create_fail == 2
    allocator.check_integrity()


def test_oversize_blocks_go_back_from_the_largest_down():
    allocator = CachingAllocator(220 * MIB, alloc_conf="max_split_size_mb:20")
    for allocation in [allocator.malloc(size * MIB) for size in (60, 50, 40, 30, 22)]:
        allocator.free(allocation)
    allocator.history = []
    allocator.malloc(100 * MIB)
    assert [e.size // MIB for e in allocator.history if e.action == "segment_free"] == [60, 50]
    assert allocator.num_alloc_retries == 0
    allocator.history = []
    allocator.malloc(45 * MIB)  # 40 + 22 + 30 are cached: 45 asks for 45, one block of 40 is not enough
    assert [e.size // MIB for e in allocator.history if e.action == "segment_free"] == [40, 30]
    allocator.check_integrity()


@pytest.mark.parametrize("seed", range(10))
def test_settings_that_change_between_allocations(seed):
    """A smaller `max_split_size_mb` finds parts of segments that were cut before it; they are not given back alone."""
    rng, mib = random.Random(seed), 1 << 20
    settings = [
        "",
        "expandable_segments:True",
        "max_split_size_mb:20",
        "max_split_size_mb:32",
        "max_split_size_mb:64",
    ]
    allocator, live, num_ooms = CachingAllocator(300 * mib), [], 0
    for step in range(800):
        draw = rng.random()
        if draw < 0.5:
            size = rng.choice([1, mib, 5 * mib, rng.randrange(1, 90 * mib)])
            try:
                live.append(allocator.malloc(size, stream=rng.randrange(2)))
            except OutOfMemory:
                num_ooms += 1
        elif draw < 0.9 and live:
            allocator.free(live.pop(rng.randrange(len(live))))
        elif draw < 0.95:
            allocator.set_allocator_settings(rng.choice(settings))
        if step % 10 == 0:
            allocator.check_integrity()
    assert num_ooms > 0
    for block in live:
        allocator.free(block)
    allocator.empty_cache()
    allocator.check_integrity()
    assert allocator.reserved_bytes == 0
