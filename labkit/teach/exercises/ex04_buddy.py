"""Exercise 04: the buddy system. Checked against the lab's `BuddyAllocator` after every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.memory import make_allocator
from labkit.memory.base import Allocation, OutOfMemory
from labkit.teach.exercises.base import Exercise, Mistake, Picture, that
from labkit.teach.exercises.pools import addresses, layout
from labkit.teach.exercises.shorten import Op, any_of, judge
from labkit.teach.exercises.watch import Watched, anything, offset_or_none, shown

Make = Callable[..., Any]
SEEDS = 30


def run(buddy_class: type) -> str:
    make = Watched(buddy_class, {"malloc": offset_or_none, "free": anything}, {"free_blocks": sizes})
    with shown(make, lambda heap: [picture("yours", free_of(heap), heap._args[0])]):
        _rounding(make)
        _splitting(make)
        _merging(make)
        num = _random(make)
    return f"{num:,} random operations on {SEEDS} seeds: the same offsets and free blocks as the lab's buddy allocator."


def sizes(answer: Any) -> str:
    try:
        good = all(
            hasattr(size, "__index__") and all(hasattr(o, "__index__") for o in offsets)
            for size, offsets in answer.items()
        )
    except (TypeError, AttributeError):
        good = False
    return "" if good else "it must be a dict {size: list of offsets}, all of them ints"


def _rounding(cls: Make) -> None:
    for size, block in ((64, 64), (65, 128), (128, 128), (1, 16), (16, 16), (17, 32)):
        heap = cls(1024, 16)
        got = heap.malloc(size)
        that(
            got is not None, f"malloc({size}) in a fresh allocator of 1024 returned None and should return 0."
        )
        left = free_of(heap)
        taken = 1024 - sum(size * len(offsets) for size, offsets in left.items())
        why = "round up to the next power of two"
        if taken == 2 * block and block == size:
            why = f"{size} is a power of two already and takes a block of {block}, not twice that ((size - 1).bit_length())"
        elif size < 16:
            why = "no block is smaller than min_block (16 here)"
        elif taken == 0:
            why = "what was handed out is still free"
        elif taken < 0:
            why = "more is free than there is: a block that was halved is still on its list"
        elif taken == 1024:
            why = "nothing is free any more: of a block that is halved the upper half stays free"
        elif taken < size:
            why = "the block is shorter than what was asked: round up, not down"
        that(
            taken == block,
            f"malloc({size}) took {taken} units and should take {block}: {why}.",
            picture("yours", left),
        )


def _splitting(cls: Make) -> None:
    heap = cls(1024, 16)
    first = heap.malloc(64)
    that(
        first == 0,
        f"malloc(64) in a fresh allocator of 1024 returned {first!r}: of two halves take the lower one.",
    )
    expected = {64: [64], 128: [128], 256: [256], 512: [512]}
    got = free_of(heap)
    that(
        got == expected,
        f"after malloc(64) of 1024 the free blocks are {got} and should be {expected}: halve again and again, and keep the "
        "upper half of every split free.",
        picture("yours", got),
        picture("expected", expected),
    )
    second = heap.malloc(256)
    that(
        second == 256,
        f"malloc(256) with {expected} free returned {second!r} and should return 256: a free block of that size is taken unsplit.",
    )
    heap = cls(256, 64)
    for _ in range(4):
        heap.malloc(64)
    heap.free(192)
    heap.free(64)
    got = heap.malloc(64)
    that(
        got == 64,
        f"with free blocks of 64 at 64 and 192, malloc(64) returned {got!r} and should return 64: of equal blocks take the lowest.",
    )
    got = heap.malloc(128)
    that(got is None, f"malloc(128) with one block of 64 free must return None; it returned {got!r}.")


def _merging(cls: Make) -> None:
    heap = cls(256, 64)
    for _ in range(4):
        heap.malloc(64)
    heap.free(64)
    heap.free(128)
    got = free_of(heap)
    that(
        got == {64: [64, 128]},
        f"the blocks at 64 and 128 lie side by side but are not buddies (the buddy of 64 is 0): free blocks are {got} and "
        "should be {64: [64, 128]}. The buddy is offset XOR size.",
        picture("yours", got, 256),
    )
    heap.free(192)
    got = free_of(heap)
    that(
        got == {64: [64], 128: [128]},
        f"freeing 192 merges it with its buddy 128 (offset XOR size, the buddy may lie below): free blocks are {got} and "
        "should be {64: [64], 128: [128]}.",
        picture("yours", got, 256),
    )
    heap.free(0)
    got = free_of(heap)
    that(
        got == {256: [0]},
        f"freeing the last block merges 0 with 64, then 0..128 with 128..256: go on merging with the buddy of the larger "
        f"block until it is not free. Free blocks are {got} and should be {{256: [0]}}.",
        picture("yours", got, 256),
    )
    heap = cls(256, 64)  # the same, and nobody looks before the malloc
    for offset in [heap.malloc(64) for _ in range(4)]:
        heap.free(offset)
    got = heap.malloc(256)
    that(
        got == 0,
        f"all four blocks of 64 were freed, and malloc(256) returned {got!r} and should return 0: `free` itself must merge. A merge "
        "in free_blocks() comes too late, malloc does not see it.",
    )


def _random(cls: Make) -> int:
    """Small heaps first: what fails there is easy to read."""
    num = 0
    for seed in range(SEEDS):
        rng = np.random.default_rng([4, seed])
        capacity, least, largest = (64, 4, 24) if seed < SEEDS // 2 else (1024, 16, 200)
        ops: list[Op] = []
        for step in range(100):
            if ops and rng.random() < 0.45:
                ops.append(("free", any_of(int(rng.integers(1000)))))
            else:
                ops.append(("malloc", f"m{step}", int(rng.integers(1, largest))))

        def start(capacity: int, least: int) -> _Both:
            return _Both(cls, capacity, least)

        judge(start, (capacity, least), ops, smaller_params=False)
        num += len(ops)
    return num


class _Both:
    """The learner's allocator and the lab's, side by side."""

    def __init__(self, cls: Make, capacity: int, least: int):
        self.capacity = capacity
        self.mine, self.lab = cls(capacity, least), make_allocator("buddy", capacity, min_block_bytes=least)
        self.live: dict[str, Allocation] = {}

    def __call__(self, op: Op) -> None:
        if op[0] == "free":
            gone = self.live.pop(op[1], None)
            if gone is None:
                return
            did = f"free({gone.offset})"
            self.mine.free(gone.offset)
            self.lab.free(gone)
        else:
            did = f"malloc({op[2]})"
            self._malloc(op[1], op[2])
        free: dict[int, list[int]] = {}
        for span in self.lab.layout():
            if span.state == "free":
                free.setdefault(span.size, []).append(span.offset)
        free, got = dict(sorted(free.items())), free_of(self.mine)
        if got != free:
            raise Mistake(
                f"after {did} the free blocks are {got} and should be {free}.",
                picture("yours", got, self.capacity),
                picture("expected", free, self.capacity),
            )

    def _malloc(self, name: str, size: int) -> None:
        before = self.lab.layout()
        try:
            self.live[name] = self.lab.malloc(size)
            expected: int | None = self.live[name].offset
            block = self.live[name].size
        except OutOfMemory:
            expected, block = None, size
        got = self.mine.malloc(size)
        if got != expected:
            raise Mistake(
                f"malloc({size}) returned {got!r} and should return {expected}.",
                layout(
                    f"before malloc({size})",
                    before,
                    "units",
                    yours=None if got is None else (got, block),
                    expected=None if expected is None else (expected, block),
                ),
            )


def free_of(heap: Any) -> dict[int, list[int]]:
    """Sizes without free blocks left out."""
    found = {int(size): sorted(int(o) for o in offsets) for size, offsets in heap.free_blocks().items()}
    return {size: offsets for size, offsets in sorted(found.items()) if offsets}


def picture(title: str, free: dict[int, list[int]], capacity: int = 1024) -> Picture:
    return addresses(title, [(o, size) for size, offsets in free.items() for o in offsets], capacity, "units")


EXERCISE = Exercise(
    "04",
    "buddy",
    "The buddy system: split, and merge with the right one",
    ("MyBuddy",),
    (
        "Keep a dict from block size to a sorted list of free offsets, and a dict from live offset to its block size.",
        "The block of a request: max(size, min_block), rounded up to a power of two: 1 << (size - 1).bit_length().",
        "malloc: go up from that size until a size has a free block; take its lowest one; while it is too large, halve it "
        "and put the upper half on the list of its size.",
        "free: while the buddy (offset ^ size) is free as a block of the same size, take it off its list, go on with the "
        "lower of the two and twice the size. Then put the block on its list.",
    ),
    run,
)
