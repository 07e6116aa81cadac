"""What every allocator promises, whatever its rules; and what single variants add."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.memory import ALLOCATORS, Allocation, OutOfMemory, make_allocator
from labkit.units import KIB, MIB

CAPACITY = 64 * MIB


@pytest.fixture(params=list(ALLOCATORS))
def allocator(request):
    return make_allocator(request.param, CAPACITY)


@pytest.mark.parametrize("size", [0, -1, -(10**30), 1.0, True, None, "12"])
def test_a_size_that_is_not_a_positive_integer_is_one_sentence(allocator, size):
    allocator.malloc(1000)
    before = allocator.stats(), allocator.layout()
    with pytest.raises(LabError, match=r"allocation size is .*; it must be a positive whole number of bytes"):
        allocator.malloc(size)
    assert (allocator.stats(), allocator.layout()) == before


@pytest.mark.parametrize("size", [CAPACITY + 1, 10**30])
def test_a_size_above_the_capacity_is_out_of_memory(allocator, size):
    allocator.malloc(1000)
    before = allocator.stats()
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(size)
    assert caught.value.kind == "capacity"
    assert caught.value.asked == size
    assert "\n" not in str(caught.value)
    assert allocator.stats().allocated_bytes == before.allocated_bytes
    allocator.check_integrity()


def test_double_and_foreign_free_are_refused(allocator):
    kept, gone = allocator.malloc(1000), allocator.malloc(1000)
    allocator.free(gone)
    foreign = make_allocator(allocator.name, CAPACITY).malloc(1000)
    before = allocator.stats(), allocator.layout()
    for bad in (gone, foreign, Allocation(kept.offset, kept.size, 1000), None, "x"):
        with pytest.raises(LabError, match="not live in this"):
            allocator.free(bad)
        if bad is not None:
            with pytest.raises((LabError, AttributeError)):
                allocator.try_grow(bad, 2000)
    assert (allocator.stats(), allocator.layout()) == before
    allocator.free(kept)
    allocator.check_integrity()


def test_labels_and_requested_bytes_are_in_the_layout(allocator):
    allocation = allocator.malloc(1000, tag="kv", lifetime="request")
    (span,) = [span for span in allocator.layout() if span.state == "allocated"]
    assert (span.offset, span.requested, span.tag, span.lifetime) == (
        allocation.offset,
        1000,
        "kv",
        "request",
    )
    assert allocator.stats().requested_bytes == 1000


def test_the_cheap_reading_is_that_of_the_statistics(allocator):
    first, second = allocator.malloc(1000), allocator.malloc(3 * MIB)
    for gone in (None, first, second):
        if gone is not None:
            allocator.free(gone)
        stats = allocator.stats()
        assert allocator.held_bytes() == (stats.allocated_bytes, stats.reserved_bytes)


def test_an_unknown_option_names_the_accepted_ones(allocator):
    with pytest.raises(LabError, match=f"allocator '{allocator.name}' has no option 'speed'; it takes: "):
        make_allocator(allocator.name, CAPACITY, speed=11)


def test_an_unknown_name_lists_the_valid_ones():
    with pytest.raises(
        LabError, match="unknown allocator 'slab'; choose one of: best-fit, buddy, caching, first-fit"
    ):
        make_allocator("slab", CAPACITY)


@pytest.mark.parametrize("capacity", [0, -5, 1.5, None])
def test_a_bad_capacity_is_one_sentence(capacity):
    for name in ALLOCATORS:
        with pytest.raises(LabError, match="capacity_bytes is"):
            make_allocator(name, capacity)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("buddy", {"min_block_bytes": 500}, "must be a power of two"),
        ("buddy", {"min_block_bytes": 2**40}, "less than one block"),
        ("first-fit", {"alignment_bytes": 2**40}, "more than the capacity"),
        ("size-class", {"slab_bytes": 1000}, "multiple of min_class_bytes"),
        ("pooled", {"by": "colour"}, "'lifetime' or 'tag'"),
        ("pooled", {"inner": "caching"}, "choose one of: first-fit"),
        ("pooled", {"budgets": {"a": CAPACITY + 1}}, "do not fit"),
        ("pooled", {"budgets": {"a": 0}}, "budget of 'a' is 0"),
        ("virtual-memory", {"granule_bytes": -2}, "granule_bytes is -2"),
    ],
)
def test_a_bad_option_is_one_sentence(name, options, text):
    with pytest.raises(LabError, match=text) as caught:
        make_allocator(name, CAPACITY, **options)
    assert "\n" not in str(caught.value)


class TestFitFamily:
    def test_a_hole_between_two_live_neighbours_is_fragmentation(self):
        """The hotel: 20 of 100 rooms are free, a party of 8 adjoining rooms is turned away."""
        hotel = make_allocator("first-fit", 100)
        rooms = [hotel.malloc(1) for _ in range(100)]
        for room in rooms[::5]:
            hotel.free(room)
        with pytest.raises(OutOfMemory) as caught:
            hotel.malloc(8)
        error = caught.value
        assert (error.kind, error.free, error.num_free_spans, error.largest_free) == (
            "fragmentation",
            20,
            20,
            1,
        )

    def test_growth_takes_the_free_span_behind_and_nothing_else(self):
        allocator = make_allocator("first-fit", 100)
        a, b = allocator.malloc(10), allocator.malloc(10)
        assert not allocator.try_grow(a, 11)
        allocator.free(b)
        assert allocator.try_grow(a, 15)
        assert (a.size, a.requested, allocator.stats().free_bytes) == (15, 15, 85)
        assert not allocator.try_grow(a, 101)
        allocator.check_integrity()

    def test_alignment_rounds_up(self):
        allocator = make_allocator("best-fit", 1000, alignment_bytes=64)
        assert [allocator.malloc(n).size for n in (1, 64, 65)] == [64, 64, 128]
        assert allocator.stats().reserved_bytes == 960


class TestBuddy:
    def test_blocks_are_powers_of_two_and_merge_back(self):
        allocator = make_allocator("buddy", 1 * MIB, min_block_bytes=512)
        held = [allocator.malloc(size) for size in (1, 513, 5000, 300 * KIB)]
        assert [a.size for a in held] == [512, 1024, 8192, 512 * KIB]
        for a in held:
            allocator.free(a)
        assert [s.size for s in allocator.layout()] == [1 * MIB]

    def test_any_capacity_is_covered(self):
        allocator = make_allocator("buddy", 7 * 512 + 5, min_block_bytes=512)
        assert [s.size for s in allocator.layout()] == [2048, 1024, 512]


class TestSizeClasses:
    def test_four_classes_to_a_doubling(self):
        allocator = make_allocator("size-class", CAPACITY)
        classes = {allocator.size_class(size) for size in range(1, 4097)}
        assert sorted(classes) == [512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096]
        assert all(allocator.size_class(c) == c for c in classes)

    def test_one_class_a_slab_and_empty_slabs_go_back(self):
        allocator = make_allocator("size-class", 64 * KIB, slab_bytes=8 * KIB)
        small = [allocator.malloc(512) for _ in range(16)]
        other = allocator.malloc(1024)
        assert {a.offset // (8 * KIB) for a in small} == {0}
        assert other.offset // (8 * KIB) == 1
        for a in small:
            allocator.free(a)
        assert allocator.malloc(8 * KIB).offset == 0
        allocator.check_integrity()

    def test_a_full_slab_of_small_slots_cannot_serve_a_larger_class(self):
        allocator = make_allocator("size-class", 8 * KIB, slab_bytes=8 * KIB)
        allocator.malloc(512)
        with pytest.raises(OutOfMemory) as caught:
            allocator.malloc(1024)
        assert caught.value.kind == "fragmentation"


class TestVirtualMemory:
    def test_granules_are_mapped_on_demand_and_contiguous_to_the_reader(self):
        allocator = make_allocator("virtual-memory", 16 * MIB)
        a = allocator.malloc(1, reserve=10 * MIB)
        b = allocator.malloc(1, reserve=10 * MIB)
        assert allocator.stats().reserved_bytes == 4 * MIB
        assert allocator.try_grow(a, 5 * MIB)
        assert (a.size, allocator.granules(a), allocator.granules(b)) == (6 * MIB, [0, 2, 3], [1])
        allocator.shrink(a, 1)
        assert (a.size, allocator.granules(a)) == (2 * MIB, [0])
        assert not allocator.try_grow(a, 11 * MIB), "past its reservation"
        assert (allocator.num_maps, allocator.num_unmaps) == (4, 2)
        allocator.check_integrity()

    def test_growth_fails_when_granules_are_out_and_nothing_changes(self):
        allocator = make_allocator("virtual-memory", 4 * MIB)
        a, _ = allocator.malloc(1, reserve=64 * MIB), allocator.malloc(1)
        assert not allocator.try_grow(a, 3 * MIB)
        assert a.size == 2 * MIB
        with pytest.raises(OutOfMemory) as caught:
            allocator.malloc(1)
        assert caught.value.kind == "capacity"

    def test_scattered_granules_serve_one_large_request(self):
        allocator = make_allocator("virtual-memory", 20 * MIB)
        held = [allocator.malloc(2 * MIB) for _ in range(10)]
        for a in held[::2]:
            allocator.free(a)
        assert allocator.granules(allocator.malloc(10 * MIB)) == [0, 2, 4, 6, 8]


BUDGETS = {"request": 40 * KIB, "prefix": 20 * KIB}


class TestPools:
    def test_each_lifetime_stays_in_its_part(self):
        allocator = make_allocator("pooled", 100 * KIB, budgets=BUDGETS)
        offsets = {
            life: allocator.malloc(KIB, lifetime=life).offset for life in ("prefix", "request", "other")
        }
        assert offsets == {"request": 0, "prefix": 40 * KIB, "other": 60 * KIB}
        assert {span.segment for span in allocator.layout()} == {0, 1, 2}

    def test_a_budget_holds_unless_borrowing_is_allowed(self):
        for borrow in (False, True):
            allocator = make_allocator("pooled", 60 * KIB, budgets=BUDGETS, borrow=borrow)
            allocator.malloc(20 * KIB, lifetime="prefix")
            if not borrow:
                with pytest.raises(OutOfMemory):
                    allocator.malloc(KIB, lifetime="prefix")
                continue
            assert allocator.malloc(KIB, lifetime="prefix").offset == 0
            assert allocator.borrowed_bytes() == {"request": KIB, "prefix": 0}
            with pytest.raises(OutOfMemory) as caught:
                allocator.malloc(50 * KIB, lifetime="prefix")
            assert caught.value.capacity == 60 * KIB
            allocator.check_integrity()

    def test_a_label_without_a_pool_is_refused_when_nothing_is_left(self):
        allocator = make_allocator("pooled", 60 * KIB, budgets=BUDGETS)
        with pytest.raises(
            LabError, match="lifetime 'session' has no pool; budgets exist for 'request', 'prefix'"
        ):
            allocator.malloc(1, lifetime="session")

    def test_pools_by_tag_and_with_another_inner_allocator(self):
        allocator = make_allocator("pooled", 64 * KIB, budgets={"kv": 32 * KIB}, by="tag", inner="buddy")
        assert allocator.malloc(5000, tag="kv").size == 8192
        assert allocator.malloc(1, tag="ws").offset == 32 * KIB
