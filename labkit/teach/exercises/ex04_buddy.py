"""Exercise 04: the buddy system. Checked against the lab's `BuddyAllocator` after every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.memory import make_allocator
from labkit.memory.base import Allocation, OutOfMemory, Span
from labkit.teach.exercises.base import Exercise, Mistake, Picture, Remember, drawn, framed, that


def run(buddy_class: type) -> str:
    make = Remember(buddy_class)
    with drawn(lambda: picture("yours", free_of(make.last), make.args[0])):
        _rounding(make)
        _splitting(make)
        _merging(make)
        num = _random(make)
    return f"{num:,} random operations on 30 seeds: the same offsets and free blocks as the lab's buddy allocator."


def _rounding(cls: Callable[..., Any]) -> None:
    for size, block in ((64, 64), (65, 128), (128, 128), (1, 16), (16, 16), (17, 32)):
        heap = cls(1024, 16)
        heap.malloc(size)
        left = free_of(heap)
        taken = 1024 - sum(size * len(offsets) for size, offsets in left.items())
        why = "round up to the next power of two"
        if taken == 2 * block and block == size:
            why = f"{size} is a power of two already and takes a block of {block}, not twice that ((size - 1).bit_length())"
        elif size < 16:
            why = "no block is smaller than min_block (16 here)"
        elif taken < size:
            why = "the block is shorter than what was asked: round up, not down"
        that(
            taken == block,
            f"malloc({size}) took {taken} bytes and should take {block}: {why}.",
            picture("yours", left),
        )


def _splitting(cls: Callable[..., Any]) -> None:
    heap = cls(1024, 16)
    first = heap.malloc(64)
    that(
        first == 0,
        f"malloc(64) in a fresh allocator of 1024 returned {first}: of two halves take the lower one.",
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
        f"malloc(256) with {expected} free returned {second}: a free block of that size is taken unsplit.",
    )
    heap = cls(256, 64)
    for _ in range(4):
        heap.malloc(64)
    heap.free(192)
    heap.free(64)
    got = heap.malloc(64)
    that(
        got == 64,
        f"with free blocks of 64 at 64 and 192, malloc(64) returned {got}: of equal blocks take the lowest.",
    )
    that(heap.malloc(128) is None, "malloc(128) with one block of 64 free must return None.")


def _merging(cls: Callable[..., Any]) -> None:
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


def _random(cls: Callable[..., Any]) -> int:
    num = 0
    for seed in range(30):
        rng = np.random.default_rng([4, seed])
        mine, lab = cls(4096, 32), make_allocator("buddy", 4096, min_block_bytes=32)
        live: list[Allocation] = []
        for step in range(120):
            num += 1
            if live and rng.random() < 0.45:
                gone = live.pop(int(rng.integers(len(live))))
                mine.free(gone.offset)
                lab.free(gone)
                did = f"free({gone.offset})"
            else:
                size = int(rng.integers(1, 500))
                try:
                    live.append(lab.malloc(size))
                    expected: int | None = live[-1].offset
                except OutOfMemory:
                    expected = None
                did, got = f"malloc({size})", mine.malloc(size)
                if got != expected:
                    raise Mistake(
                        f"{did} returned {got} and the lab's buddy allocator {expected} (seed {seed}, operation {step}).",
                        Picture("layout", "the lab's blocks after it", lab.layout()),
                    )
            free: dict[int, list[int]] = {}
            for span in lab.layout():
                if span.state == "free":
                    free.setdefault(span.size, []).append(span.offset)
            if free_of(mine) != free:
                raise Mistake(
                    f"after {did} the free blocks are {free_of(mine)} and the lab's {free} (seed {seed}, operation {step}).",
                    Picture("layout", "the lab's", lab.layout()),
                )
    return num


def free_of(heap: Any) -> dict[int, list[int]]:
    """Sizes without free blocks left out."""
    found = {int(size): sorted(int(o) for o in offsets) for size, offsets in heap.free_blocks().items()}
    return {size: offsets for size, offsets in sorted(found.items()) if offsets}


def picture(title: str, free: dict[int, list[int]], capacity: int = 1024) -> Picture:
    spans, at = [], 0
    for offset, size in sorted((o, size) for size, offsets in free.items() for o in offsets):
        if offset > at:
            spans.append(Span(at, offset - at, "allocated", offset - at, "", "request"))
        spans.append(Span(offset, size, "free"))
        at = max(at, offset + size)
    if at < capacity:
        spans.append(Span(at, capacity - at, "allocated", capacity - at, "", "request"))
    frames = framed([(offset, size) for size, offsets in free.items() for offset in offsets])
    title = f"{title}: free {free}" if len(str(free)) < 80 else title
    return Picture("layout", title, spans, {"highlight": frames} if frames else {})


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
