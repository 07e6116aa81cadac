"""Exercise 03: first fit with coalescing. Checked against the lab's `FirstFitAllocator` after every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.memory import make_allocator
from labkit.memory.base import Allocation, OutOfMemory, Span
from labkit.teach.exercises.base import Exercise, Mistake, Picture, Remember, drawn, framed, that


def run(first_fit_class: type) -> str:
    make = Remember(first_fit_class)
    with drawn(lambda: picture("yours", spans_of(make.last), make.args[0])):
        _fresh(make)
        _lowest_first(make)
        _coalescing(make)
        num = _random(make)
    return f"{num:,} random operations on 30 seeds: the same offsets and free spans as the lab's first fit."


def _fresh(cls: Callable[..., Any]) -> None:
    heap = cls(1000)
    that(
        spans_of(heap) == [(0, 1000)],
        f"a fresh allocator of 1000 has one free span (0, 1000), not {spans_of(heap)}.",
    )
    that(heap.malloc(1001) is None, "malloc(1001) of 1000 free bytes must return None.")
    offset = heap.malloc(1000)
    that(
        offset == 0,
        f"malloc(1000) in a fresh allocator of 1000 returned {offset}: a span of exactly the asked length fits (>=, not >).",
    )
    that(
        spans_of(heap) == [],
        f"after malloc(1000) of 1000 nothing is free, but free_spans() is {spans_of(heap)}: drop spans of length 0.",
    )


def _lowest_first(cls: Callable[..., Any]) -> None:
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
    that(
        spans_of(heap) == holes,
        f"three holes should be free: {holes}; free_spans() is {spans_of(heap)} (is the list kept in address order?).",
        picture("should be free", holes, 1000),
        picture("yours", spans_of(heap), 1000),
    )
    got = heap.malloc(90)
    why = {
        350: "that is the hole that fits best: first fit takes the lowest one that is long enough",
        500: "that is the highest hole, or the one freed first: first fit takes the lowest address",
    }.get(got, "first fit takes the lowest hole that is long enough")
    if got == 210:
        why = "cut the low end of the hole, not its high end"
    that(
        got == 0,
        f"malloc(90) with holes {holes} returned {got} and should return 0: {why}.",
        picture("framed: where malloc(90) belongs", holes, 1000, (" ", 0, 90)),
    )
    that(
        (90, 210) in spans_of(heap),
        f"malloc(90) from the hole (0, 300) leaves (90, 210) free; free_spans() is {spans_of(heap)}.",
    )


def _coalescing(cls: Callable[..., Any]) -> None:
    orders = {
        "left": ((0, 100), "the freed span lies right behind a free one: merge with the LEFT neighbour"),
        "right": ((100, 0), "the freed span lies right before a free one: merge with the RIGHT neighbour"),
        "both": ((0, 200, 100), "the freed span lies between two free ones: merge with BOTH neighbours"),
    }
    for order, why in orders.values():
        heap = cls(400)
        for _ in range(4):
            heap.malloc(100)
        for offset in order:
            heap.free(offset)
        expected = [(0, 100 * len(order))]
        got = spans_of(heap)
        that(
            got == expected,
            f"{why}. After freeing the blocks at {list(order)} of four blocks of 100, free_spans() is {got} and should be "
            f"{expected}.",
            picture("yours", got, 400),
            picture("expected", expected, 400),
        )


def _random(cls: Callable[..., Any]) -> int:
    num = 0
    for seed in range(30):
        rng = np.random.default_rng([3, seed])
        mine, lab = cls(4096), make_allocator("first-fit", 4096)
        live: list[Allocation] = []
        for step in range(150):
            num += 1
            if live and rng.random() < 0.45:
                gone = live.pop(int(rng.integers(len(live))))
                mine.free(gone.offset)
                lab.free(gone)
                did = f"free({gone.offset})"
            else:
                size = int(rng.integers(1, 400))
                before = lab.layout()
                try:
                    live.append(lab.malloc(size))
                    expected: int | None = live[-1].offset
                except OutOfMemory:
                    expected = None
                did, got = f"malloc({size})", mine.malloc(size)
                if got != expected:
                    raise Mistake(
                        f"{did} returned {got} and the lab's first fit {expected} (seed {seed}, operation {step}).",
                        Picture("layout", f"before {did}", before),
                    )
            free = [(s.offset, s.size) for s in lab.layout() if s.state == "free"]
            if spans_of(mine) != free:
                raise Mistake(
                    f"after {did} free_spans() differs from the lab's (seed {seed}, operation {step}): {_difference(mine, free)}.",
                    picture("yours", spans_of(mine), 4096),
                    Picture("layout", "the lab's", lab.layout()),
                )
    return num


def _difference(mine: Any, free: list[tuple[int, int]]) -> str:
    yours = spans_of(mine)
    extra, missing = sorted(set(yours) - set(free)), sorted(set(free) - set(yours))
    return (
        f"you have {extra or 'nothing'} where it has {missing or 'nothing'}"
        if extra or missing
        else "the order differs"
    )


def spans_of(heap: Any) -> list[tuple[int, int]]:
    return [(int(offset), int(size)) for offset, size in heap.free_spans()]


def picture(
    title: str, free: list[tuple[int, int]], capacity: int, frame: tuple[str, int, int] | None = None
) -> Picture:
    """Free spans as given, all between them allocated."""
    spans, at = [], 0
    for offset, size in sorted(free):
        if offset > at:
            spans.append(Span(at, offset - at, "allocated", offset - at, "", "request"))
        spans.append(Span(offset, size, "free"))
        at = max(at, offset + size)
    if at < capacity:
        spans.append(Span(at, capacity - at, "allocated", capacity - at, "", "request"))
    if len(free) <= 6:
        title = f"{title}: free {', '.join(map(str, free)) or 'nothing'}"
    frames = framed(free) if frame is None else {frame[0]: frame[1:]}
    return Picture("layout", title, spans, {"highlight": frames} if frames else {})


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
