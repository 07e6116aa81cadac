"""Exercise 03: first fit with coalescing. Checked against the lab's `FirstFitAllocator` after every operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.memory import make_allocator
from labkit.memory.base import Allocation, OutOfMemory
from labkit.teach.exercises.base import Exercise, Mistake, Picture, that
from labkit.teach.exercises.pools import addresses, layout
from labkit.teach.exercises.shorten import Op, any_of, judge
from labkit.teach.exercises.watch import Watched, anything, because, offset_or_none, shown

Make = Callable[..., Any]


def run(first_fit_class: type) -> str:
    make = Watched(first_fit_class, {"malloc": offset_or_none, "free": anything}, {"free_spans": pairs})
    with shown(make, lambda heap: [picture("yours", spans_of(heap), heap._args[0])]):
        _fresh(make)
        _lowest_first(make)
        _coalescing(make)
        num = _random(make)
    return (
        f"{num:,} random operations on {SEEDS} seeds: the same offsets and free spans as the lab's first fit."
    )


def pairs(answer: Any) -> str:
    try:
        good = all(len(pair) == 2 and all(hasattr(n, "__index__") for n in pair) for pair in answer)
    except TypeError:
        good = False
    return "" if good else "it must be a list of (offset, size), two ints each"


def _fresh(cls: Make) -> None:
    heap = cls(1000)
    that(
        spans_of(heap) == [(0, 1000)],
        f"a fresh allocator of 1000 has one free span (0, 1000), not {spans_of(heap)}.",
    )
    got = heap.malloc(300)
    why = (
        ": a way that finds a span must end in `return`" if got is None else ", the low end of the only span"
    )
    that(got == 0, f"malloc(300) in a fresh allocator of 1000 returned {got!r} and should return 0{why}.")
    got = spans_of(heap)
    _not_ends(got, [(300, 700)])
    why = ": what was handed out is still free" if got == [(0, 1000)] else ""
    that(
        got == [(300, 700)],
        f"after malloc(300) of 1000 free_spans() is {got} and should be [(300, 700)]{why}.",
    )
    heap = cls(1000)
    got = heap.malloc(1001)
    that(got is None, f"malloc(1001) of 1000 free units must return None; it returned {got!r}.")
    offset = heap.malloc(1000)
    why = (
        ": a span of exactly the asked length fits (>=, not >)" if offset is None else " and should return 0"
    )
    that(offset == 0, f"malloc(1000) in a fresh allocator of 1000 returned {offset!r}{why}.")
    that(
        spans_of(heap) == [],
        f"after malloc(1000) of 1000 nothing is free, but free_spans() is {spans_of(heap)}: after an exact fit nothing is left, "
        "so drop the span (none has length 0).",
    )


def _lowest_first(cls: Make) -> None:
    """Holes of 300, 100, 200 (in address order)."""
    heap = cls(1000)
    at = [heap.malloc(size) for size in (300, 50, 100, 50, 200, 300)]
    that(
        at == [0, 300, 350, 450, 500, 700],
        f"six mallocs in a row lie side by side from offset 0 on (the low end of a span is handed out); yours are at {at}.",
    )
    for offset in (at[4], at[0], at[2]):
        heap.free(offset)
    holes = [(0, 300), (350, 100), (500, 200)]
    got = spans_of(heap)
    _not_ends(got, holes)
    why = " (is the list kept in address order?)" if sorted(got) == holes else ""
    that(
        got == holes,
        f"three holes should be free: {holes}; free_spans() is {got}{why}.",
        picture("yours", got, 1000),
        picture("should be free", holes, 1000),
    )
    got = heap.malloc(90)
    why = {
        350: ": that is the hole that fits best: first fit takes the lowest one that is long enough",
        500: ": that is the highest hole, or the one freed first: first fit takes the lowest address",
        210: ": cut the low end of the hole, not its high end",
    }.get(got, ": first fit takes the lowest hole that is long enough")
    that(
        got == 0,
        f"malloc(90) with holes {holes} returned {got!r} and should return 0{why}.",
        picture("before malloc(90)", holes, 1000, yours=got, expected=0, size=90),
    )
    that(
        (90, 210) in spans_of(heap),
        f"malloc(90) from the hole (0, 300) leaves (90, 210) free; free_spans() is {spans_of(heap)}.",
    )


def _not_ends(got: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    if got == [(offset, offset + size) for offset, size in right]:
        raise Mistake(
            f"free_spans() is {got}: these look like (start, end), and (offset, size) is asked for: {right}."
        )


def _coalescing(cls: Make) -> None:
    orders = {
        "left": ((0, 100), "the freed span lies right behind a free one: merge with the LEFT neighbour"),
        "right": ((100, 0), "the freed span lies right before a free one: merge with the RIGHT neighbour"),
        "both": ((0, 200, 100), "the freed span lies between two free ones: merge with BOTH neighbours"),
    }
    for order, why in orders.values():
        heap = cls(400)
        for _ in range(4):
            heap.malloc(100)
        with because(f"Here {why}."):
            for offset in order:
                heap.free(offset)
        expected = [(0, 100 * len(order))]
        got = spans_of(heap)
        that(
            got == expected,
            f"{why}. After freeing the spans at {list(order)} of four of 100, free_spans() is {got} and should be {expected}.",
            picture("yours", got, 400),
            picture("expected", expected, 400),
        )
        heap = cls(400)  # the same, and nobody looks before the malloc
        for _ in range(4):
            heap.malloc(100)
        for offset in order:
            heap.free(offset)
        size = 100 * len(order)
        taken = heap.malloc(size)
        that(
            taken == 0,
            f"after free of {list(order)} the units 0..{size} are free side by side, and malloc({size}) returned {taken!r}: "
            "`free` itself must merge. A merge in free_spans() comes too late, malloc does not see it.",
            picture("before the malloc", expected, 400, yours=taken, expected=0, size=size),
        )


SEEDS = 30


def _random(cls: Make) -> int:
    """Small heaps first: what fails there is easy to read."""
    num = 0
    for seed in range(SEEDS):
        rng = np.random.default_rng([3, seed])
        capacity, largest = (24, 8) if seed < SEEDS // 2 else (512, 60)
        ops: list[Op] = []
        for step in range(100):
            if ops and rng.random() < 0.45:
                ops.append(("free", any_of(int(rng.integers(1000)))))
            else:
                ops.append(("malloc", f"m{step}", int(rng.integers(1, largest))))
        judge(lambda capacity: _Both(cls, capacity), (capacity,), ops)
        num += len(ops)
    return num


class _Both:
    """The learner's allocator and the lab's, side by side."""

    def __init__(self, cls: Make, capacity: int):
        self.capacity = capacity
        self.mine, self.lab = cls(capacity), make_allocator("first-fit", capacity)
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
        free = [(s.offset, s.size) for s in self.lab.layout() if s.state == "free"]
        got = spans_of(self.mine)
        if got != free:
            raise Mistake(
                f"after {did} free_spans() is {got} and should be {free}{_difference(got, free)}.",
                picture("yours", got, self.capacity),
                picture("expected", free, self.capacity),
            )

    def _malloc(self, name: str, size: int) -> None:
        before = self.lab.layout()
        try:
            self.live[name] = self.lab.malloc(size)
            expected: int | None = self.live[name].offset
        except OutOfMemory:
            expected = None
        got = self.mine.malloc(size)
        if got != expected:
            raise Mistake(
                f"malloc({size}) returned {got!r} and should return {expected}.",
                layout(
                    f"before malloc({size})",
                    before,
                    "units",
                    yours=None if got is None else (got, size),
                    expected=None if expected is None else (expected, size),
                ),
            )


def _difference(yours: Sequence[tuple[int, int]], free: Sequence[tuple[int, int]]) -> str:
    return ": the order differs" if sorted(yours) == sorted(free) else ""


def spans_of(heap: Any) -> list[tuple[int, int]]:
    return [(int(offset), int(size)) for offset, size in heap.free_spans()]


def picture(
    title: str,
    free: list[tuple[int, int]],
    capacity: int,
    *,
    yours: int | None = None,
    expected: int | None = None,
    size: int = 0,
) -> Picture:
    return addresses(
        title,
        free,
        capacity,
        "units",
        yours=None if yours is None else (yours, size),
        expected=None if expected is None else (expected, size),
    )


EXERCISE = Exercise(
    "03",
    "first_fit",
    "First fit with coalescing",
    ("MyFirstFit",),
    (
        "Keep a list of free (offset, size) in address order, and a dict from live offset to size.",
        "malloc: walk the list; the first span with size >= asked is it. Hand out its low end; replace the span by its rest, "
        "or drop it when nothing is left.",
        "free: insert the span at its place in the list (bisect), then look at the entry behind it and the entry before "
        "it. If one ends where the other starts, join them.",
        "Merge right first, then left: then the left merge takes the already joined span.",
    ),
    run,
)
