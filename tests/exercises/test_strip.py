"""Pictures of the checks: pools, addresses, slots, in the exercise's own words."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from labkit.memory.base import Span
from labkit.teach.exercises.pools import addresses, layout, pool_picture
from labkit.teach.exercises.prefix_books import Books
from labkit.teach.exercises.run import draw
from labkit.teach.exercises.strip import Mark, Piece, counted, draw_strip


def texts(figure: object) -> list[str]:
    from matplotlib.text import Text

    return [t.get_text() for t in figure.findobj(Text) if t.get_text()]  # type: ignore[attr-defined]


def test_counted() -> None:
    assert [counted(n, "blocks") for n in (0, 1, 1024)] == ["0 blocks", "1 block", "1,024 blocks"]


def test_a_pool_has_one_tick_a_block_and_a_legend_without_shares() -> None:
    pieces = [Piece(i, 1, "free" if i % 2 else "in one table", "" if i % 2 else "a") for i in range(40)]
    figure = draw_strip(pieces, title="the pool", unit="blocks")
    said = texts(figure)
    assert len(figure.axes) == 2, "40 blocks need two rows"
    assert {str(i) for i in range(40)} <= set(said)
    assert "free: 20 blocks" in said
    assert not any("%" in text for text in said)
    assert len(figure._repr_png_()) > 2000  # type: ignore[attr-defined]


def test_addresses_mark_what_came_and_what_should_have_come() -> None:
    picture = addresses("before", [(0, 30), (50, 50)], 100, "units", yours=(50, 20), expected=(0, 20))
    said = texts(draw(picture))
    assert {"expected: 0", "yours: 50", "free: 80 units", "allocated: 20 units"} <= set(said)
    beyond = addresses("before", [(0, 30)], 100, "units", yours=(400, 20))
    assert beyond.options["marks"] == [], "an offset outside of the picture is said, not drawn"


def test_slots_of_a_block_are_parted() -> None:
    pieces = [Piece(i, 1, "not of a") for i in range(32)]
    figure = draw_strip(pieces, unit="slots", group=4, marks=[Mark(5, 1, "yours: 5")])
    lines = [
        line for line in figure.axes[0].lines if len({float(x) for x in np.asarray(line.get_xdata())}) == 1
    ]
    assert len(lines) == 9


def test_lost_blocks_stand_out() -> None:
    pool = SimpleNamespace(block_table=lambda name: [0, 1], num_free_blocks=1)
    picture = pool_picture("yours", pool, ["a"], 4)
    assert [piece.label for piece in picture.content] == [
        "in one table",
        "in one table",
        "free",
        "neither in a table nor counted as free",
    ]
    assert picture.title == "yours; num_free_blocks is 1"


@pytest.mark.parametrize(
    ("tables", "sharing", "label"),
    [
        ({"a": [0], "b": [0]}, False, "in two tables: a mistake"),
        ({"a": [0], "b": [0]}, True, "in several tables"),
        ({"a": [0, 0]}, True, "twice in one table: a mistake"),
    ],
)
def test_a_block_in_two_places(tables: dict[str, list[int]], sharing: bool, label: str) -> None:
    pool = SimpleNamespace(block_table=lambda name: tables[name], num_free_blocks=1)
    assert pool_picture("", pool, tables, 2, sharing=sharing).content[0].label == label


def test_rounding_is_drawn_apart() -> None:
    picture = layout("", [Span(0, 64, "allocated", 50, "a"), Span(64, 64, "free")], "bytes")
    assert [(p.start, p.size, p.label) for p in picture.content] == [
        (0, 50, "allocated"),
        (50, 14, "rounding"),
        (64, 64, "free"),
    ]


def test_books_of_a_prefix_cache_know_the_order_of_eviction() -> None:
    books = Books(6, 4)
    books.admitted("a", [1] * 4 + [2] * 4 + [3], [5, 4, 3], 0)
    books.admitted("b", [1] * 4 + [7] * 4, [5, 2], 4)
    assert [piece.label for piece in books.picture("").content] == [
        "free", "free", "in one table", "in one table", "in one table", "in several tables",
    ]  # fmt: skip
    books.freed("a")
    books.freed("b")
    assert books.idle == [4, 2, 5], "a's second block, then b's from its last to its first"
    shown = {piece.start: piece.text for piece in books.picture("").content}
    assert shown == {0: "", 1: "", 2: "2. b[1]", 3: "", 4: "1. a[1]", 5: "3. b[0]"}
