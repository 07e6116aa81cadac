"""Planted bugs in the memory room: each must be caught by named checks of the suite.

A mutant replaces one method. The checks are those that the other test files run: a recording of PyTorch, random
operations with independent books, the plain list of holes, and misuse.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.experiments.verify import load_recording
from labkit.memory import make_allocator
from labkit.memory.best_fit import BestFitAllocator
from labkit.memory.caching import CachingAllocator, splitting
from labkit.memory.caching import allocator as caching_module
from labkit.memory.caching.blocks import Block, BlockPool
from labkit.memory.caching.replay import replay
from labkit.memory.fit import FitAllocator
from labkit.memory.free_spans import FreeSpans
from labkit.memory.pooled import PooledAllocator
from labkit.units import KIB, MIB
from tests.allocator_driver import CASES, drive, make_case

GOLDEN = Path(__file__).parents[1] / "golden" / "torch_allocator"

# --- checks: each returns True when it found something wrong


def recording(name: str) -> Callable[[], bool]:
    def check() -> bool:
        try:
            return replay(load_recording(GOLDEN / f"{name}.json.gz")).num_differences > 0
        except (AssertionError, LabError, LookupError):
            return True

    check.__name__ = f"recording {name}"
    return check


def random_operations(case: str) -> Callable[[], bool]:
    def check() -> bool:
        try:
            drive(make_case(case), seed=5, num_ops=1500, largest=CASES[case][3])
        except (AssertionError, LookupError):
            return True
        return False

    check.__name__ = f"random operations on {case}"
    return check


def double_free(name: str) -> Callable[[], bool]:
    def check() -> bool:
        allocator = make_allocator(name, 4 * MIB)
        allocation = allocator.malloc(512)
        allocator.malloc(512)
        allocator.free(allocation)
        try:
            allocator.free(allocation)
        except LabError:
            return False
        except (AssertionError, LookupError):
            return True
        return True

    check.__name__ = f"double free on {name}"
    return check


def lowest_of_equal_holes() -> bool:
    allocator = make_allocator("best-fit", 100)
    held = [allocator.malloc(10) for _ in range(10)]
    for place in (2, 6):
        allocator.free(held[place])
    return allocator.malloc(10).offset != 20


def short_and_long_stay_apart() -> bool:
    allocator = make_allocator("pooled", 100 * KIB, budgets={"short": 50 * KIB, "long": 50 * KIB})
    short = [allocator.malloc(KIB, lifetime="short").offset for _ in range(4)]
    long = [allocator.malloc(KIB, lifetime="long").offset for _ in range(4)]
    return not (max(short) < 50 * KIB <= min(long))


# --- the mutants of CachingAllocator


def coalesces_right_only(patch):
    def merge(block, neighbour):
        return 0 if neighbour is block.prev else original(block, neighbour)

    original = splitting.merge
    patch.setattr(splitting, "merge", merge)


def coalesces_over_the_segment_head(patch):
    def swallow(self, neighbour):
        original(self, neighbour)
        self.offset = min(self.offset, neighbour.offset) + 512

    original = Block.swallow
    patch.setattr(Block, "swallow", swallow)


def loses_the_remainder(patch):
    def cut(allocator, block, size):
        taken = original(allocator, block, size)
        if taken.next is block:
            block.pool.remove(block)
        return taken

    original = splitting.cut
    patch.setattr(caching_module, "cut", cut)


def accepts_a_double_free(patch):
    def free(self, allocation):
        if isinstance(allocation, Block) and not allocation.allocated:
            return
        original(self, allocation)

    original = CachingAllocator.free
    patch.setattr(CachingAllocator, "free", free)


def breaks_ties_by_newest_segment(patch):
    def insert(self, block):
        block.age_base = self.num_searches
        entries = self.free.setdefault(block.stream, [])
        newest_first = [(e[0], -e[1], -e[2]) for e in entries]
        place = bisect_left(newest_first, (block.size, -block.segment.ordinal, -block.offset))
        entries.insert(place, (block.size, block.segment.ordinal, block.offset, block))

    def remove(self, block):
        entries = self.free[block.stream]
        del entries[next(i for i, e in enumerate(entries) if e[3] is block)]

    patch.setattr(BlockPool, "insert", insert)
    patch.setattr(BlockPool, "remove", remove)


def one_mebibyte_counts_as_large(patch):
    patch.setattr(caching_module, "SMALL_SIZE", MIB - 1)


def frees_into_the_other_pool(patch):
    def insert(self, block):
        original(self if block.size != 2 * MIB else other[0], block)

    other = [BlockPool(True, None)]
    original = BlockPool.insert
    patch.setattr(BlockPool, "insert", insert)


def forgets_requested_bytes_of_merged_blocks(patch):
    def free_block(allocator, block):
        merges = block.next is not None and block.next.is_free
        original(allocator, block)
        if merges:
            allocator.all_stats.requested_bytes.increase(block.requested)

    original = splitting.free_block
    patch.setattr(caching_module, "free_block", free_block)


# --- the mutants of the fit family and of pools


def never_merges_to_the_left(patch):
    def give(self, offset, size):
        self.total_bytes += size
        insort(self.starts, offset)
        self.size_at[offset] = size
        insort(self.by_size, (size, offset))

    patch.setattr(FreeSpans, "give", give)


def drops_the_rest_of_a_span(patch):
    def take(self, offset, size):
        original(self, offset, self.size_at[offset])
        self.total_bytes += 0

    original = FreeSpans.take
    patch.setattr(FreeSpans, "take", take)


def frees_whatever_it_is_given(patch):
    def free(self, allocation):
        if allocation is not None and self._live.pop(allocation.offset, None) is not None:
            self._requested_bytes -= allocation.requested
            self.free_spans.give(allocation.offset, allocation.size)

    patch.setattr(FitAllocator, "free", free)


def takes_the_highest_of_equal_holes(patch):
    def choose(self, size):
        by_size = self.free_spans.by_size
        place = bisect_left(by_size, (size, -1))
        return (
            by_size[bisect_left(by_size, (by_size[place][0] + 1, -1)) - 1][1]
            if place < len(by_size)
            else None
        )

    patch.setattr(BestFitAllocator, "choose", choose)


def puts_everything_in_the_first_pool(patch):
    patch.setattr(PooledAllocator, "pool_of", lambda self, *, tag="", lifetime="": next(iter(self.pools)))


def requested_bytes_only_grow(patch):
    def free(self, allocation):
        before = self._requested_bytes
        original(self, allocation)
        self._requested_bytes = before

    original = FitAllocator.free
    patch.setattr(FitAllocator, "free", free)


MUTANTS = [
    (
        "wrong coalesce",
        coalesces_right_only,
        [recording("28_ties_bump"), random_operations("caching")],
    ),
    (
        "wrong coalesce",
        coalesces_over_the_segment_head,
        [recording("01_small"), random_operations("caching")],
    ),
    (
        "split remainder lost",
        loses_the_remainder,
        [recording("01_small"), random_operations("caching")],
    ),
    ("double free accepted", accepts_a_double_free, [double_free("caching"), random_operations("caching")]),
    ("tie order", breaks_ties_by_newest_segment, [recording("28_ties_bump"), recording("01_small")]),
    ("pool mix-up", one_mebibyte_counts_as_large, [recording("19_boundaries"), recording("14_roundup_4")]),
    ("pool mix-up", frees_into_the_other_pool, [random_operations("caching"), recording("02_mid")]),
    (
        "statistics drift",
        forgets_requested_bytes_of_merged_blocks,
        [recording("01_small"), random_operations("caching")],
    ),
    (
        "wrong coalesce",
        never_merges_to_the_left,
        [random_operations("first-fit"), random_operations("pooled")],
    ),
    ("split remainder lost", drops_the_rest_of_a_span, [random_operations("worst-fit")]),
    (
        "double free accepted",
        frees_whatever_it_is_given,
        [double_free("next-fit"), random_operations("next-fit")],
    ),
    ("tie order", takes_the_highest_of_equal_holes, [lowest_of_equal_holes]),
    ("pool mix-up", puts_everything_in_the_first_pool, [short_and_long_stay_apart]),
    ("statistics drift", requested_bytes_only_grow, [random_operations("best-fit")]),
]
CHECKS = {check.__name__: check for _, _, checks in MUTANTS for check in checks}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_check_is_silent_without_a_mutant(check):
    assert not check()


@pytest.mark.parametrize(
    ("mutant", "check"),
    [(mutant, check) for _, mutant, checks in MUTANTS for check in checks],
    ids=[f"{bug}: {m.__name__} / {c.__name__}" for bug, m, checks in MUTANTS for c in checks],
)
def test_a_check_catches_its_mutant(mutant, check, monkeypatch):
    mutant(monkeypatch)
    assert check()


def test_the_six_bugs_are_planted_in_both_families():
    bugs = [bug for bug, _, _ in MUTANTS]
    assert set(bugs) == {
        "wrong coalesce",
        "split remainder lost",
        "double free accepted",
        "tie order",
        "pool mix-up",
        "statistics drift",
    }
    assert all(bugs.count(bug) >= 2 for bug in bugs)
