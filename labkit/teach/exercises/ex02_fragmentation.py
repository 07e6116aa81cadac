"""Exercise 02: fragmentation measures. Checked against `labkit.memory.measures` on layouts by hand and at random."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from labkit.memory.base import Span
from labkit.memory.measures import (
    contiguity_loss,
    external_fragmentation,
    internal_fragmentation,
    unusable_free_index,
)
from labkit.teach.exercises.base import Exercise, Mistake, Picture, that
from labkit.teach.exercises.pools import layout as layout_picture
from labkit.teach.exercises.watch import called

RANDOM = "a layout drawn at random"
KEYS = ("internal", "external", "contiguity_loss", "unusable")


Measures = Callable[[list[Span], int], dict[str, float]]


def run(my_measures: Measures) -> str:
    my_measures = called(my_measures)
    for title, layout in (("nothing is free", _full()), ("nothing is allocated", [Span(0, 640, "free")])):
        try:
            my_measures(list(layout), 64)
        except Mistake as mistake:
            empty = "ZeroDivisionError" in mistake.kind
            why = (
                f" Division by zero when {title}: think of the empty cases (see the table in the task)."
                if empty
                else ""
            )
            raise Mistake(f"{mistake.message}{why}", _picture(title, layout)) from None
    rng = np.random.default_rng(2)
    cases = [
        ("a rounded allocation", [Span(0, 512, "allocated", 100), Span(512, 512, "free")], 64),
        ("a freed span that waits for an event", [Span(0, 256, "allocated", 256), Span(256, 256, "pending")]
         + [Span(512, 512, "free")], 64),
        ("two free spans", [Span(0, 300, "free"), Span(300, 100, "allocated", 100), Span(400, 100, "free")], 200),
        ("an address range that is not mapped", [Span(0, 256, "allocated", 200), Span(256, 256, "free")]
         + [Span(512, 4096, "unmapped")], 64),
        ("nothing is free", _full(), 64),
        ("nothing is allocated", [Span(0, 640, "free")], 64),
    ]  # fmt: skip
    cases += [(RANDOM, _random(rng), int(rng.integers(1, 400))) for _ in range(60)]
    for title, layout, request in cases:
        try:
            _check(my_measures, title, layout, request)
        except Mistake as mistake:
            if title != RANDOM:
                raise
            raise _shortest(my_measures, layout, request, mistake) from None
    return f"all four measures agree with the lab on {len(cases)} layouts."


def _shortest(my_measures: Measures, layout: list[Span], request: int, mistake: Mistake) -> Mistake:
    """The same mistake on as few spans as show it, with the call to paste."""
    at = 0
    while at < len(layout):
        fewer = side_by_side(layout[:at] + layout[at + 1 :])
        try:
            _check(my_measures, RANDOM, fewer, request)
            at += 1
        except Mistake as found:
            if found.kind == mistake.kind:
                layout, mistake = fewer, found
            else:
                at += 1
    spans = ", ".join(
        f'Span({s.offset}, {s.size}, "{s.state}"{f", requested={s.requested}" if s.requested else ""})'
        for s in layout
    )
    text = f"{mistake.message}\nThe call that shows it:\n    my_measures([{spans}], {request})"
    return Mistake(text, *mistake.pictures, kind=mistake.kind)


def side_by_side(layout: list[Span]) -> list[Span]:
    """The same spans without gaps; of free neighbours only one, as an allocator would leave them."""
    placed: list[Span] = []
    for span in layout:
        if not (placed and placed[-1].state == span.state == "free"):
            at = placed[-1].end if placed else 0
            placed.append(Span(at, span.size, span.state, span.requested, span.tag, span.lifetime))
    return placed


def _check(my_measures: Measures, title: str, layout: list[Span], request: int) -> None:
    answer = my_measures(list(layout), request)
    that(
        isinstance(answer, dict), f"my_measures returned {type(answer).__name__}; return a dict with {KEYS}."
    )
    missing = [key for key in KEYS if key not in answer]
    that(not missing, f"the dict lacks {missing}; it needs {KEYS}.")
    for key in KEYS:
        number = isinstance(answer[key], int | float | np.number)
        that(number, f"{key} is {answer[key]!r}: it must be a number.", _picture(title, layout), kind="type")
    expected = {
        "internal": internal_fragmentation(layout),
        "external": external_fragmentation(layout),
        "contiguity_loss": contiguity_loss(layout),
        "unusable": unusable_free_index(layout, request),
    }
    for key in KEYS:
        if math.isclose(answer[key], expected[key], abs_tol=1e-9):
            continue
        why = [
            text
            for value, text in _slips(layout, request, key)
            if math.isclose(answer[key], value, abs_tol=1e-9)
        ]
        raise Mistake(
            f"{key} of '{title}' is {answer[key]:.4f} and should be {expected[key]:.4f}"
            f"{': ' + why[0] if why else ''}. (request_bytes={request})",
            _picture(title, layout),
            kind=key,
        )


def _slips(layout: list[Span], request: int, key: str) -> list[tuple[float, str]]:
    """What classic mistakes come to on this layout."""
    free = [s.size for s in layout if s.state == "free"]
    pending = sum(s.size for s in layout if s.state == "pending")
    unmapped = sum(s.size for s in layout if s.state == "unmapped")
    allocated = sum(s.size for s in layout if s.state == "allocated")
    asked = sum(s.requested for s in layout if s.state == "allocated")
    reserved, total = allocated + pending + sum(free), sum(free)
    if key == "internal" and allocated:
        return [
            ((allocated - asked) / asked if asked else 0.0, "divide by the allocated bytes, not by the requested ones"),
            ((allocated - asked) / reserved, "divide by the allocated bytes, not by all reserved ones"),
            ((allocated + pending - asked) / (allocated + pending), "a pending span is not allocated any more"),
        ]  # fmt: skip
    if key == "external" and reserved:
        return [
            ((total + pending) / reserved, "a pending span is not free yet: it waits for an event"),
            (total / (reserved + unmapped), "unmapped addresses are not reserved: leave them out"),
            (total / (reserved - pending) if reserved > pending else 0.0, "pending bytes are reserved too"),
            ((total + unmapped) / (reserved + unmapped), "unmapped addresses are neither free nor reserved"),
        ]
    if key == "contiguity_loss" and total:
        return [
            (max(free) / total, "that is the share of the largest span; the loss is 1 minus it"),
            (
                1 - max(free) / reserved,
                "divide the largest free span by all free bytes, not by all reserved ones",
            ),
            (1 - 1 / len(free), "count bytes, not spans"),
            (1 - min(free) / total, "it is the largest free span that counts"),
        ]
    if key == "unusable" and total:
        return [
            (sum(f for f in free if f < request) / total, "a span of 3.5 requests wastes half a request: subtract "
             "request * (size // request) of every span, not only the spans that are too short"),
            (sum(f // request for f in free) * request / total, "that is the usable share; the index is 1 minus it"),
            (1 - request * (total // request) / total, "requests do not stretch over two spans: divide each span, "
             "not the sum"),
        ]  # fmt: skip
    if key == "unusable":
        return [(0.0, "when nothing is free not one request fits: the index is 1")]
    return []


def _picture(title: str, layout: list[Span]) -> Picture:
    return layout_picture(title, layout, "bytes")


def _full() -> list[Span]:
    return [Span(0, 320, "allocated", 300, "a", "request"), Span(320, 320, "allocated", 320, "b", "request")]


def _random(rng: np.random.Generator) -> list[Span]:
    """Spans side by side; free neighbours are merged, as an allocator would leave them."""
    layout: list[Span] = []
    at = 0
    for _ in range(int(rng.integers(1, 24))):
        states = ["allocated", "allocated", "free", "pending", "unmapped"]
        if layout and layout[-1].state == "free":
            states.remove("free")
        state, size = str(rng.choice(states)), int(rng.integers(1, 16)) * 64
        asked = int(rng.integers(1, size + 1)) if state == "allocated" else 0
        layout.append(Span(at, size, state, asked, "", "request" if asked else ""))  # type: ignore[arg-type]
        at += size
    return layout


EXERCISE = Exercise(
    "02",
    "fragmentation",
    "Four measures of fragmentation",
    ("my_measures",),
    (
        "First collect four sums over the layout: allocated, pending, free bytes, and requested bytes of the allocated "
        "spans. Unmapped spans count nowhere.",
        "reserved = allocated + pending + free.",
        "unusable: each free span of f bytes serves f // request_bytes requests; the rest of it is unusable.",
        "Empty cases: internal is 0 without allocations, external 0 without reserved bytes, contiguity_loss 0 and "
        "unusable 1 without free bytes.",
    ),
    run,
)
