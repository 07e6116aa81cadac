"""Exercise 06: growing a contiguous cache by copying, and its peak. Checked on the lab's allocator with data behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.memory import make_allocator
from labkit.memory.base import Allocation, Allocator, OutOfMemory
from labkit.teach.exercises.base import Exercise, Mistake, Picture, that
from labkit.teach.exercises.pools import layout
from labkit.teach.exercises.watch import called, short


class Spy:
    """The lab's first-fit allocator with memory behind it: notes the calls in order and what is live at each."""

    last: Spy | None = None

    def __init__(self, capacity: int):
        Spy.last = self
        self.inner: Allocator = make_allocator("first-fit", capacity)
        self.memory = np.full(capacity, -1, dtype=np.int64)
        self.live: dict[int, Allocation] = {}
        self.calls: list[str] = []
        self.copied = 0

    def malloc(self, size: int) -> Allocation:
        self.calls.append("malloc")
        found = self.inner.malloc(size, lifetime="request")
        self.live[id(found)] = found
        self.memory[found.offset : found.offset + found.size] = -1  # fresh memory holds nothing
        return found

    def free(self, allocation: Allocation) -> None:
        self.calls.append("free")
        self.inner.free(allocation)
        del self.live[id(allocation)]
        self.memory[allocation.offset : allocation.offset + allocation.size] = -2

    def try_grow(self, allocation: Allocation, size: int) -> bool:
        self.calls.append("try_grow")
        return self.inner.try_grow(allocation, size)

    def copy(self, source: Allocation, target: Allocation, num_slots: int) -> None:
        self.calls.append("copy")
        that(
            id(source) in self.live,
            "copy() from an allocation that was freed already: its slots may belong to somebody else. Copy first, free "
            "the old one afterwards.",
            self.picture("at the copy"),
        )
        that(
            id(target) in self.live, "copy() to an allocation that is not live.", self.picture("at the copy")
        )
        self.copied += num_slots
        self.memory[target.offset : target.offset + num_slots] = self.memory[
            source.offset : source.offset + num_slots
        ]

    def picture(self, title: str) -> Picture:
        return layout(title, self.inner.layout(), "slots")


CAPACITY = 220
Grow = Callable[[Spy, Allocation, int, int], tuple[Allocation, int]]


def run(my_grow: Grow) -> str:
    my_grow = called(my_grow, passes=(OutOfMemory,))
    try:
        _in_place(my_grow)
        _by_copy(my_grow)
        _no_room(my_grow)
        num, peak = _random(my_grow)
    except Mistake as mistake:
        if mistake.pictures or Spy.last is None:
            raise
        raise Mistake(mistake.message, Spy.last.picture("the allocator")) from None
    return f"{num} growths on 40 seeds keep every token, copy no more than was written; the peak reached {peak:.2f} x the old size."


def _start(capacity: int, size: int, num_written: int, behind: int) -> tuple[Spy, Allocation]:
    """A cache of `size` slots with `num_written` tokens, and a neighbour of `behind` slots right behind it."""
    heap = Spy(capacity)
    old = heap.malloc(size)
    heap.memory[:num_written] = np.arange(num_written)
    if behind:
        heap.malloc(behind)
    heap.calls.clear()
    return heap, old


def _in_place(my_grow: Grow) -> None:
    heap, old = _start(100, 20, 20, 0)
    grown, peak = _answer(my_grow, heap, old, 20, 30)
    that(
        heap.copied == 0 and "malloc" not in heap.calls,
        "there is room right behind the cache, so nothing needs to move: try `allocator.try_grow(old, new_size)` before "
        "anything else.",
        heap.picture("after"),
    )
    that(grown is old, "a cache that grew in place is still the old allocation: return `old`.")
    that(peak == 30, f"growing in place from 20 to 30 slots never needs more than 30; you said {peak}.")


def _by_copy(my_grow: Grow) -> None:
    heap, old = _start(100, 20, 12, 10)
    grown, peak = _answer(my_grow, heap, old, 12, 30)
    that(
        "malloc" in heap.calls and grown is not old,
        "a neighbour stands right behind the cache: take a new allocation of new_size and move there.",
        heap.picture("after"),
    )
    that(heap.copied != 0, "the tokens were not copied: the new cache is empty.", heap.picture("after"))
    that(
        heap.copied >= 12,
        f"12 tokens were written and only {heap.copied} were copied.",
    )
    that(
        heap.copied == 12,
        f"12 of the 20 slots hold tokens and {heap.copied} were copied: copy what was written, not the whole allocation.",
    )
    that(
        id(old) not in heap.live,
        "the old allocation is still live after the move: free it, or every growth leaks a cache.",
        heap.picture("after"),
    )
    that(
        peak == 50,
        f"while the tokens are copied the old (20) and the new (30) allocation are both live: the peak is 50 slots, you "
        f"said {peak}.",
    )


def _no_room(my_grow: Grow) -> None:
    """40 slots are free in all, but no 30 beside the old cache's 20: even a free-first growth would be tempting here."""
    heap, old = _start(60, 20, 20, 15)
    try:
        my_grow(heap, old, 20, 30)
    except OutOfMemory:
        that(
            id(old) in heap.live and bool((heap.memory[:20] == np.arange(20)).all()),
            "there was no room for a second cache (OutOfMemory), and the old one is gone or damaged: a failed growth must "
            "leave the request as it was. So free nothing before the new allocation is there.",
            heap.picture("after the failure"),
        )
        return
    raise Mistake(
        "25 slots are free and 30 are needed BESIDE the old cache: this growth must fail with OutOfMemory (let it pass "
        "through), because both must be live during the copy. Yours freed the old cache first, or returned without room.",
        heap.picture("after"),
    )


def _random(my_grow: Grow) -> tuple[int, float]:
    num, highest = 0, 0.0
    for seed in range(40):
        rng = np.random.default_rng([6, seed])
        heap = Spy(CAPACITY)
        caches: list[tuple[Allocation, np.ndarray]] = []
        for _ in range(4):
            size = int(rng.integers(5, 30))
            mine = heap.malloc(size)
            tokens = rng.integers(0, 1 << 30, size=int(rng.integers(1, size + 1)))
            heap.memory[mine.offset : mine.offset + len(tokens)] = tokens
            caches.append((mine, tokens))
        for _ in range(8):
            number = int(rng.integers(len(caches)))
            old, tokens = caches[number]
            size, new_size, before = old.size, old.size + int(rng.integers(1, 25)), dict(heap.live)
            copied = heap.copied
            what = (
                f"(a heap of {CAPACITY} slots with live (offset, size) {sorted((a.offset, a.size) for a in before.values())}; "
                f"old.offset={old.offset}, old.size={size}, num_written={len(tokens)}, new_size={new_size})"
            )
            try:
                grown, peak = _answer(my_grow, heap, old, len(tokens), new_size)
            except OutOfMemory:
                that(heap.live == before, f"a failed growth changed the allocator {what}.")
                continue
            num += 1
            moved = grown is not old
            that(
                grown.size >= new_size and id(grown) in heap.live,
                f"the returned allocation is not a live one of at least {new_size} slots {what}.",
            )
            that(
                bool((heap.memory[grown.offset : grown.offset + len(tokens)] == tokens).all()),
                f"tokens were lost or changed by the growth {what}.",
                heap.picture("after"),
            )
            that(
                heap.copied - copied == (len(tokens) if moved else 0),
                f"{heap.copied - copied} slots were copied {what}; a move copies what was written, growing in place nothing.",
            )
            that(
                len(heap.live) == len(caches),
                f"{len(heap.live)} allocations are live and {len(caches)} caches exist {what}.",
            )
            expected = size + new_size if moved else new_size
            that(peak == expected, f"the peak of this growth is {expected}, you said {peak!r} {what}.")
            highest = max(highest, peak / size)
            caches[number] = (grown, tokens)
    return num, highest


def _answer(
    my_grow: Grow, heap: Spy, old: Allocation, num_written: int, new_size: int
) -> tuple[Allocation, int]:
    answer: Any = my_grow(heap, old, num_written, new_size)
    that(
        isinstance(answer, tuple) and len(answer) == 2,
        f"my_grow returned {short(answer)}; return (allocation, peak_slots).",
    )
    return answer[0], answer[1]


EXERCISE = Exercise(
    "06",
    "grow_by_copy",
    "A contiguous cache grows by copying: what moves, and the peak",
    ("my_grow",),
    (
        "Three steps when it has to move: malloc the new one, copy, free the old one. In this order.",
        "Before that: `if allocator.try_grow(old, new_size): return old, new_size`.",
        "OutOfMemory of malloc may simply pass through, as long as nothing was freed before.",
        "During the copy both are live: peak = old size + new size. Note the old size before you free.",
    ),
    run,
)
