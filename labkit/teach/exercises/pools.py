"""Pictures of a pool of blocks and of a range of addresses, from what the learner's object says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from labkit.memory.base import Span
from labkit.teach.exercises.base import Picture
from labkit.teach.exercises.strip import Mark, Piece

YOURS, EXPECTED = "#B2182B", "#000000"


def pool_picture(
    title: str, pool: Any, names: Iterable[str], num_blocks: int, *, sharing: bool = False
) -> Picture:
    """Which blocks the tables of `names` list, and how many of the others the object counts as free. Which of the others are
    lost, only the learner's code knows: the last ones are drawn so."""
    owners: list[list[str]] = [[] for _ in range(num_blocks)]
    for name in names:
        try:
            blocks = list(pool.block_table(name))
        except Exception:  # not admitted, or freed
            continue
        for block in blocks:
            if isinstance(block, int) and 0 <= block < num_blocks:
                owners[block].append(name)
    try:
        num_free = int(pool.num_free_blocks)
    except Exception:
        num_free = num_blocks
    several = "in several tables" if sharing else "in two tables: a mistake"
    rest = [block for block, held in enumerate(owners) if not held]
    lost = set(rest[num_free:])
    pieces = []
    for block, held in enumerate(owners):
        if len(set(held)) < len(held):
            label = "twice in one table: a mistake"
        elif held:
            label = "in one table" if len(held) == 1 else several
        else:
            label = "neither in a table nor counted as free" if block in lost else "free"
        pieces.append(Piece(block, 1, label, " ".join(dict.fromkeys(held))))
    return Picture("strip", f"{title}; num_free_blocks is {num_free}", pieces, {"unit": "blocks"})


def addresses(
    title: str,
    free: Sequence[tuple[int, int]],
    capacity: int,
    unit: str,
    *,
    yours: tuple[int, int] | None = None,
    expected: tuple[int, int] | None = None,
) -> Picture:
    """Free (offset, size) ranges as given, all between them allocated. `yours` and `expected` are framed (offset, size)."""
    pieces, at = [], 0
    for offset, size in sorted(free):
        if offset > at:
            pieces.append(Piece(at, offset - at, "allocated"))
        pieces.append(Piece(offset, size, "free"))
        at = max(at, offset + size)
    if at < capacity:
        pieces.append(Piece(at, capacity - at, "allocated"))
    if len(free) <= 6:
        title = f"{title}: free {', '.join(map(str, free)) or 'nothing'}"
    return Picture("strip", title, pieces, {"unit": unit, "marks": _marks(yours, expected, capacity)})


def layout(
    title: str,
    spans: Sequence[Span],
    unit: str,
    *,
    yours: tuple[int, int] | None = None,
    expected: tuple[int, int] | None = None,
) -> Picture:
    """Spans as they are, each under the name of its state, what nobody asked for apart; `tag` stands in it."""
    pieces = []
    for s in spans:
        used = s.requested if s.state == "allocated" and 0 < s.requested < s.size else s.size
        pieces.append(Piece(s.offset, used, s.state, s.tag))
        if used < s.size:
            pieces.append(Piece(s.offset + used, s.size - used, "rounding"))
    end = max((s.end for s in spans), default=1)
    return Picture("strip", title, pieces, {"unit": unit, "marks": _marks(yours, expected, end)})


def _marks(yours: tuple[int, int] | None, expected: tuple[int, int] | None, capacity: int) -> list[Mark]:
    marks = []
    for text, place, color in (("expected", expected, EXPECTED), ("yours", yours, YOURS)):
        if place is not None and 0 <= place[0] < capacity:
            marks.append(Mark(place[0], min(place[1], capacity - place[0]), f"{text}: {place[0]}", color))
    return marks
