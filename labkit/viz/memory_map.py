"""The memory map: every byte of an address space, coloured by how long it lives.

A big space wraps into rows like text. Each picture cell shows the *average* colour of the bytes under it, so a thousand
small holes look pale and are not lost, which picking one span a cell would do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.memory.base import Span
from labkit.units import format_bytes
from labkit.viz.figure import WIDTH, byte_unit, has_moving_parts, margins, new_figure, set_moving_parts
from labkit.viz.palette import LIFETIMES, STATES, color_of, describe, lifetime_class

CELLS = 1000
ROW_PIXELS = 8


def draw_layout(
    spans: Sequence[Span],
    *,
    title: str = "",
    capacity: int | None = None,
    rows: int | None = None,
    unit: str = "bytes",
    highlight: Mapping[str, tuple[int, int]] | None = None,
    width: float = WIDTH,
    figure: Figure | None = None,
) -> Figure:
    """Draw one layout (what `Allocator.layout()` or `KVCacheManager.layout()` returns).

    `capacity` widens the picture to the whole space (the part never reserved stays white). `rows` fixes the number of rows
    (default: 1 for a handful of spans, up to 16). `unit` is "bytes" or what one step of `offset` is ("blocks", "tokens").
    `highlight` frames ranges: `{"asked 8 MiB": (offset, size)}`. Pass the returned `figure` again to redraw it.
    """
    spans = linear(spans)
    total = max([span.end for span in spans] + [capacity or 0, 1])
    num_rows = rows or _suggest_rows(len(spans))
    row_size = row_length(math.ceil(total / num_rows), unit, total)
    num_rows = max(1, math.ceil(total / row_size))
    sums = _sums(spans, total)
    lines = -(-len(sums) // 3)
    shape = (unit, total, row_size, lines, width, bool(highlight))
    same_space = figure is not None and not highlight and getattr(figure, "labkit_map", None) == shape
    if figure is not None and same_space:
        axes = figure.axes[0]  # the same space as before: only the cells, the title and the legend are new
        axes.images[0].set_data(_picture(spans, num_rows, row_size))
        figure.legends[0].remove()
    else:
        figure = new_figure(width, 0.93 + max(0.5, 0.24 * num_rows) + 0.2 * lines, figure)
        margins(figure, left=0.85, right=0.25, top=0.38, bottom=0.5 + 0.2 * lines)
        axes = figure.add_subplot()
        draw_layout_on(axes, spans, total=total, row_size=row_size, unit=unit, highlight=highlight)
        figure.labkit_map = shape  # type: ignore[attr-defined]
    heading = axes.set_title(title, fontsize=10, loc="left", y=1.0)
    _legend(figure, sums, total, unit)
    if same_space and not has_moving_parts(figure):
        set_moving_parts(figure, lambda: [axes.images[0], *axes.spines.values(), heading, figure.legends[0]])
    return figure


def draw_layout_on(
    axes: Axes,
    spans: Sequence[Span],
    *,
    total: int,
    row_size: int,
    unit: str = "bytes",
    highlight: Mapping[str, tuple[int, int]] | None = None,
    background: str = "not reserved",
) -> None:
    """The same map on axes of your own, `row_size` to a row; no legend. `background` is what no span covers."""
    num_rows = max(1, math.ceil(total / row_size))
    if background == "free":
        spans = _with_holes(spans, total)
    picture = _picture(spans, num_rows, row_size)
    scale, name = _unit(row_size, total) if unit == "bytes" else (1.0, unit)
    axes.imshow(
        picture, aspect="auto", interpolation="nearest", extent=(0.0, row_size / scale, float(num_rows), 0.0)
    )
    axes.set_xlabel(f"offset in the row ({name})" if num_rows > 1 else f"offset ({name})", fontsize=9)
    axes.tick_params(labelsize=8)
    if num_rows > 1:
        step = max(1, math.ceil(num_rows * 0.2 / _height_inches(axes)))
        axes.set_yticks([row + 0.5 for row in range(0, num_rows, step)])
        axes.set_yticklabels([_short(row * row_size / scale) for row in range(0, num_rows, step)])
        gap = " " if _height_inches(axes) > 1.4 else "\n"  # one line is 1.3 inches long
        axes.set_ylabel(f"row starts{gap}at ({name})", fontsize=9)
    else:
        axes.set_yticks([])
    for label, (offset, size) in (highlight or {}).items():
        _frame(axes, label, offset, size, row_size, scale)


def _picture(spans: Sequence[Span], num_rows: int, row_size: int) -> np.ndarray:
    """Rows of cells, parted by white lines: uint8 `[num_rows * ROW_PIXELS, CELLS, 3]`."""
    cells = layout_image(spans, total=num_rows * row_size, num_cells=num_rows * CELLS)
    picture = np.repeat(cells.reshape(num_rows, CELLS, 3), ROW_PIXELS, axis=0)
    if num_rows > 1:
        picture[::ROW_PIXELS] = 255
    return picture


def layout_image(spans: Sequence[Span], *, total: int, num_cells: int) -> np.ndarray:
    """Average colour of each of `num_cells` equal parts of `[0, total)`: uint8 `[num_cells, 3]`."""
    table: dict[str, tuple[float, float, float]] = {}
    edges, colors = [0], []
    for span in spans:
        if span.offset > edges[-1]:
            edges.append(span.offset)
            colors.append((1.0, 1.0, 1.0))
        for stop, label in _parts(span):
            edges.append(stop)
            colors.append(table.setdefault(label, to_rgb(color_of(label))))
    if edges[-1] < total:
        edges.append(total)
        colors.append((1.0, 1.0, 1.0))
    bounds = np.asarray(edges, dtype=np.float64)
    integral = np.zeros((len(bounds), 3))
    np.cumsum(np.asarray(colors) * np.diff(bounds)[:, None], axis=0, out=integral[1:])
    cells = np.linspace(0.0, float(total), num_cells + 1)
    at_cells = np.stack([np.interp(cells, bounds, integral[:, channel]) for channel in range(3)], axis=1)
    mean = np.diff(at_cells, axis=0) / (total / num_cells)
    return np.clip(mean * 255.0 + 0.5, 0, 255).astype(np.uint8)


def linear(spans: Sequence[Span]) -> list[Span]:
    """One line of addresses. Segments that start again at 0, or lie terabytes apart, are put end to end."""
    ordered = list(spans)
    size = sum(span.size for span in ordered)
    overlap = any(left.end > right.offset for left, right in itertools.pairwise(ordered))
    if not ordered or (
        not overlap and ordered[-1].end - ordered[0].offset <= 4 * size and ordered[0].offset <= size
    ):
        return ordered
    placed, at, before = [], 0, ordered[0].offset
    for index, span in enumerate(ordered):
        if index and span.segment == ordered[index - 1].segment and span.offset >= before:
            at += span.offset - before
        placed.append(Span(at, span.size, span.state, span.requested, span.tag, span.lifetime, span.segment))
        at, before = at + span.size, span.end
    return placed


def _with_holes(spans: Sequence[Span], total: int) -> list[Span]:
    """The spans and a free span in every gap."""
    filled, at = [], 0
    for span in spans:
        if span.offset > at:
            filled.append(Span(at, span.offset - at, "free"))
        filled.append(span)
        at = span.end
    if at < total:
        filled.append(Span(at, total - at, "free"))
    return filled


def _parts(span: Span) -> list[tuple[int, str]]:
    """`(end, class)` of the used part and of the rounding waste behind it."""
    label = lifetime_class(span)
    used = span.requested if span.state == "allocated" and 0 < span.requested < span.size else span.size
    parts = [(span.offset + used, label)]
    if used < span.size:
        parts.append((span.end, "rounding waste"))
    return parts


def _sums(spans: Sequence[Span], total: int) -> dict[str, int]:
    """Size per class, lifetimes first; what no span covers counts as "not reserved"."""
    sums: dict[str, int] = {}
    for span in spans:
        start = span.offset
        for stop, label in _parts(span):
            sums[label] = sums.get(label, 0) + stop - start
            start = stop
    order = [
        *LIFETIMES,
        *(label for label in sums if label not in LIFETIMES and label not in STATES),
        *STATES,
    ]
    found = {label: sums[label] for label in order if sums.get(label)}
    rest = total - sum(found.values())
    return {**found, "not reserved": rest} if rest > 0 else found


def _legend(figure: Figure, sums: Mapping[str, int], total: int, unit: str) -> None:
    handles = []
    for label, size in sums.items():
        text = format_bytes(size) if unit == "bytes" else f"{size:,} {unit}"
        color = "#FFFFFF" if label == "not reserved" else color_of(label)
        share = f"{100 * size / total:.1f} %"
        handles.append(
            Patch(
                facecolor=color,
                edgecolor="#555555",
                linewidth=0.5,
                label=f"{describe(label)}: {text}, {share}",
            )
        )
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.085, 0.0), ncols=3, fontsize=8, frameon=False,
        handlelength=1.2, columnspacing=1.2, labelspacing=0.3,
    )  # fmt: skip


def _suggest_rows(num_spans: int) -> int:
    return 1 if num_spans <= 40 else min(16, 2 + num_spans // 60)


def row_length(size: int, unit: str, total: int = 0) -> int:
    """The next row length that reads well: two significant digits in the unit of the map."""
    scale = _unit(size, total)[0] if unit == "bytes" else 1.0
    value = size / scale
    step = 10.0 ** max(-2, math.floor(math.log10(max(value, 0.1))) - 1)
    return max(1, math.ceil(round(math.ceil(value / step - 1e-9) * step * scale, 6)))


def _unit(row_size: int, total: int) -> tuple[float, str]:
    """One unit for both axes: that of the whole space, or of a row where a row is a small part of it."""
    scale, name = byte_unit(max(row_size, total))
    return (scale, name) if row_size >= 0.1 * scale else byte_unit(row_size)


def _frame(axes: Axes, label: str, offset: int, size: int, row_size: int, scale: float) -> None:
    """Outline `[offset, offset + size)`, broken at row ends, and name it once."""
    start, named = offset, False
    while start < offset + size:
        row = start // row_size
        stop = min(offset + size, (row + 1) * row_size)
        x, width = (start - row * row_size) / scale, (stop - start) / scale
        axes.add_patch(_outline(x, row, width))
        if not named:
            axes.annotate(
                label, (x, row), xytext=(2, 3), textcoords="offset points", fontsize=8, fontweight="bold",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
            )  # fmt: skip
            named = True
        start = stop


def _short(value: float) -> str:
    """Three digits, or all of them with separators from 1,000 on."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _height_inches(axes: Axes) -> float:
    return axes.get_position().height * float(axes.figure.get_size_inches()[1])  # type: ignore[union-attr]


def _outline(x: float, y: float, width: float) -> Patch:
    return Rectangle((x, y), width, 1.0, fill=False, edgecolor="black", linewidth=1.6, clip_on=False)
