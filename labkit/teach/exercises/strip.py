"""A strip of memory in the exercise's own words: blocks with their ids, or a range of addresses, what is in each, and marks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: label in a legend -> colour; other labels get one of `OTHER`
COLORS = {
    "free": "#E4E4E4",
    "pending": "#4D4D4D",
    "unmapped": "#FFFFFF",
    "allocated": "#56B4E9",
    "rounding": "#C4A78E",
    "in one table": "#56B4E9",
    "in several tables": "#009E73",
    "in two tables: a mistake": "#D55E00",
    "twice in one table: a mistake": "#D55E00",
    "idle, findable": "#94CDB2",
    "of a, with its position": "#56B4E9",
    "not of a": "#E4E4E4",
    "right row": "#56B4E9",
    "rightly untouched": "#E4E4E4",
    "wrong row": "#D55E00",
    "right": "#56B4E9",
    "wrong": "#D55E00",
    "nan": "#E69F00",
    "not written": "#E69F00",
    "should not be written": "#882255",
    "the row of the last token": "#56B4E9",
    "asked for (rounded)": "#56B4E9",
    "the rest": "#E4E4E4",
    "neither in a table nor counted as free": "#CC79A7",
}
OTHER = ("#D55E00", "#E69F00", "#882255", "#0072B2", "#999933")
PER_ROW = 32  # cells
CHARS = 118  # of a title's line, 10 pt


@dataclass(frozen=True)
class Piece:
    """`[start, start + size)`; `label` is its class in the legend, `text` stands in it."""

    start: int
    size: int
    label: str
    text: str = ""


@dataclass(frozen=True)
class Mark:
    """An outlined range with a word on it: where something was asked, got or expected."""

    start: int
    size: int
    text: str
    color: str = "#000000"


def draw_strip(
    pieces: Sequence[Piece],
    *,
    title: str = "",
    unit: str = "units",
    marks: Sequence[Mark] = (),
    group: int = 0,
) -> Figure:
    """One row, or several of `PER_ROW` cells when every piece has size 1 (a pool of blocks). `group` > 1 draws a line behind
    every `group` cells (slots of a block)."""
    from labkit.viz.figure import WIDTH, margins, new_figure

    cells = all(piece.size == 1 for piece in pieces) and len(pieces) > 0
    first = min((p.start for p in pieces), default=0)
    last = max((p.start + p.size for p in pieces), default=1)
    row = min(PER_ROW if group < 2 else PER_ROW // group * group, last - first) if cells else last - first
    num_rows = -(-(last - first) // row)
    heading = "\n".join(textwrap.wrap(title, CHARS))
    labels = list(dict.fromkeys(piece.label for piece in pieces))
    top = 0.22 * (heading.count("\n") + 1) + (0.38 if marks else 0.08)
    figure = new_figure(WIDTH, top + 0.62 * num_rows + 0.42 + 0.22 * (-(-len(labels) // 3)))
    margins(figure, left=0.3, right=0.2, top=top, bottom=0.38 + 0.22 * (-(-len(labels) // 3)))
    for number in range(num_rows):
        axes = figure.add_subplot(num_rows, 1, number + 1)
        _row(axes, pieces, marks, first + number * row, first + (number + 1) * row, cells, group)
    figure.subplots_adjust(hspace=1.2 if num_rows > 1 else 0.2)
    figure.axes[-1].set_xlabel(unit, fontsize=9, labelpad=1)
    figure.text(0.035, 1 - 0.05 / figure.get_size_inches()[1], heading, fontsize=10, va="top")
    _legend(figure, pieces, labels, unit)
    return figure


def _row(
    axes: Any, pieces: Sequence[Piece], marks: Sequence[Mark], low: int, high: int, cells: bool, group: int
) -> None:
    from matplotlib.patches import Rectangle

    shown = [p for p in pieces if p.start < high and p.start + p.size > low]
    width = (high - low) / 8.5  # units an inch
    for piece in shown:
        axes.add_patch(
            Rectangle((piece.start, 0), piece.size, 1, facecolor=color_of(piece.label), edgecolor="white", linewidth=1.2)
        )  # fmt: skip
        if piece.text and 0.08 * len(piece.text) * width < piece.size + 1e-9:
            axes.text(piece.start + piece.size / 2, 0.5, piece.text, ha="center", va="center", fontsize=8)
    said_to, height = -1.0, 0  # where the last word ends, in units
    for mark in sorted(marks, key=lambda m: m.start):
        if not (mark.start < high and mark.start + mark.size > low):
            continue
        axes.add_patch(
            Rectangle((mark.start, 0), mark.size, 1, fill=False, edgecolor=mark.color, linewidth=2, clip_on=False)
        )  # fmt: skip
        height = 11 - height if mark.start < said_to else 0
        said_to = mark.start + 0.09 * len(mark.text) * width
        left = said_to > high
        axes.annotate(
            mark.text, (mark.start + mark.size * left, 1), xytext=(0, 2 + height), textcoords="offset points", fontsize=8,
            color=mark.color, fontweight="bold", annotation_clip=False, ha="right" if left else "left",
        )  # fmt: skip
    for line in range(low, high + 1) if group > 1 else ():
        if line % group == 0:
            axes.axvline(line, color="black", linewidth=1.2)
    axes.set_xlim(low, high)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    if cells:
        ids = [piece.start for piece in shown]
        axes.set_xticks([i + 0.5 for i in ids], [str(i) for i in ids])
    else:
        axes.set_xticks(
            _apart({0, *(p.start for p in shown), *(p.start + p.size for p in shown)}, 0.32 * width)
        )
    axes.tick_params(labelsize=8, length=2, pad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _apart(places: set[int], least: float) -> list[int]:
    """Of the edges, those that have room for their number."""
    kept: list[int] = []
    for place in sorted(places):
        if not kept or place - kept[-1] >= least:
            kept.append(place)
    return kept


def _legend(figure: Figure, pieces: Sequence[Piece], labels: Sequence[str], unit: str) -> None:
    from matplotlib.patches import Patch

    sums = {label: sum(p.size for p in pieces if p.label == label) for label in labels}
    handles = [
        Patch(facecolor=color_of(label), edgecolor="#555555", linewidth=0.5, label=f"{label}: {counted(size, unit)}")
        for label, size in sums.items()
    ]  # fmt: skip
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.03, 0.0), ncols=3, fontsize=8, frameon=False,
        handlelength=1.2, columnspacing=1.2, labelspacing=0.3,
    )  # fmt: skip


def color_of(label: str) -> str:
    import zlib

    return COLORS.get(label) or OTHER[zlib.crc32(label.encode()) % len(OTHER)]


def counted(number: int, unit: str) -> str:
    """`1 block`, `2 blocks`, `1,024 bytes`."""
    return f"{number:,} {unit[:-1] if number == 1 and unit.endswith('s') else unit}"
