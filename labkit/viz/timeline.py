"""Curves over time with units, and events marked on them. One row of axes for each unit, one clock for all."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from labkit.viz.figure import WIDTH, byte_unit, margins, new_figure
from labkit.viz.palette import EVENTS, LIFETIMES, color_of

#: hues of curves that have no lifetime class, in the order in which they come
CURVES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#6A14DC"]
#: dashes of the limits of one row, told apart without colour
DASHES = [(0, (1, 1.5)), (0, (6, 3)), (0, (6, 2, 1, 2)), (0, (12, 3))]


@dataclass(frozen=True)
class Series:
    """One curve. `unit` is "bytes" (shown in GiB or MiB), "%", "ms", "requests" or any other word.

    `step` draws a value that holds until the next point (memory, queues); off, points are joined by lines.
    """

    label: str
    times: Sequence[float] | np.ndarray
    values: Sequence[float] | np.ndarray
    unit: str = "bytes"
    color: str | None = None
    step: bool = True
    dashed: bool = False


@dataclass(frozen=True)
class Event:
    """Something that happened at `time`: "oom", "move", "eviction", "preemption", "restart" or another kind."""

    time: float
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Limit:
    """A horizontal line: a capacity, a watermark, an objective."""

    value: float
    label: str
    unit: str = "bytes"


@dataclass
class _Row:
    """One row of axes: all that has this unit."""

    unit: str
    series: list[Series] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)

    def scale(self) -> tuple[float, str]:
        """`(what one step of the axis is, its name)`: bytes are drawn in the unit that fits the largest value."""
        if self.unit != "bytes":
            return 1.0, self.unit
        peak = [float(np.max(one.values)) for one in self.series if len(one.values)]
        return byte_unit(max(peak + [limit.value for limit in self.limits], default=1.0))

    def shape(self) -> tuple:
        """What must be the same for drawn axes to be used again with other values."""
        curves = [(one.label, one.color, one.step, one.dashed, len(one.values) == 1) for one in self.series]
        return self.scale(), tuple(curves), tuple(limit.label for limit in self.limits)


def draw_timeline(
    series: Sequence[Series],
    *,
    events: Sequence[Event] = (),
    limits: Sequence[Limit] = (),
    title: str = "",
    xlabel: str = "time (s)",
    stacked: bool = False,
    log: Sequence[str] = (),
    logx: bool = False,
    row_height: float = 1.7,
    width: float = WIDTH,
    figure: Figure | None = None,
) -> Figure:
    """Draw `series` grouped by unit, a row of axes a unit, on one time axis.

    `stacked` fills the "bytes" curves on top of each other (they must share their times): the ledger over time. `log` names
    units drawn on a logarithmic scale, `logx` draws the horizontal axis so (for a curve over sizes). More than 60 events of
    a kind are drawn as a rug of ticks; events of a kind that have one text are named by it. Pass the returned `figure` again to
    redraw it; whatever else was drawn on it since then is not looked after.
    """
    rows: dict[str, _Row] = {}
    for one in series:
        rows.setdefault(one.unit, _Row(one.unit)).series.append(one)
    for limit in limits:
        rows.setdefault(limit.unit, _Row(limit.unit)).limits.append(limit)
    shape = (tuple(row.shape() for row in rows.values()), bool(events), xlabel, row_height, width)
    known: _Curves | None = getattr(figure, "labkit_curves", None)
    if figure is None or known is None or known.shape != shape or stacked or log or logx:
        figure = new_figure(width, 0.95 + max(1, len(rows)) * row_height + (0.24 if events else 0), figure)
        margins(figure, left=0.85, right=1.9, top=0.36, bottom=0.55)
        figure.subplots_adjust(hspace=0.12)
        grid = figure.subplots(max(1, len(rows)), 1, sharex=True, squeeze=False)[:, 0]
        for axes, row in zip(grid, rows.values()):
            _draw_row(axes, row, stacked and row.unit == "bytes", row.unit in log)
        known = None if stacked or log or logx else _Curves(shape, grid)
        figure.labkit_curves = known  # type: ignore[attr-defined]
    else:
        grid = known.grid
        known.move(list(rows.values()))
    marks = [mark for axes in grid for mark in _draw_events(axes, events, named=axes is grid[0])]
    if known is not None:
        known.marks = marks
    grid[0].set_title(title, fontsize=10, loc="left")
    grid[-1].set_xlabel(xlabel, fontsize=9)
    if logx:
        grid[-1].set_xscale("log")
        grid[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    return figure


@dataclass
class _Curves:
    """Axes that are on a figure, to be used again: making new ones takes longer than all else in a redraw."""

    shape: tuple
    grid: np.ndarray
    marks: list[Artist] = field(default_factory=list)

    def move(self, rows: Sequence[_Row]) -> None:
        """Give the curves and limits their new values and take the old events away; the axes fit themselves again."""
        for mark in self.marks:
            mark.remove()
        for axes, row in zip(self.grid, rows):
            scale, _ = row.scale()
            lines = axes.get_lines()
            for line, one in zip(lines, row.series):
                line.set_data(np.asarray(one.times), np.asarray(one.values, dtype=float) / scale)
            for line, limit in zip(lines[len(row.series) :], row.limits):
                line.set_ydata([limit.value / scale] * 2)
            axes.relim()
            axes.autoscale(True)
            _from_zero(axes)


def _draw_row(axes: Axes, row: _Row, stacked: bool, log: bool) -> None:
    scale, name = row.scale()
    colors = [one.color or _color(one.label, index) for index, one in enumerate(row.series)]
    if stacked:
        values = [np.asarray(one.values, dtype=float) / scale for one in row.series]
        axes.stackplot(
            np.asarray(row.series[0].times), values, colors=colors, labels=[one.label for one in row.series],
            step="post", linewidth=0,
        )  # fmt: skip
    else:
        for one, color in zip(row.series, colors):
            axes.plot(
                np.asarray(one.times), np.asarray(one.values, dtype=float) / scale, color=color, label=_lines(one.label),
                linewidth=1.4, linestyle="--" if one.dashed else "-",
                drawstyle="steps-post" if one.step else "default", marker="o" if len(one.values) == 1 else None,
            )  # fmt: skip
    for index, limit in enumerate(row.limits):
        dash = DASHES[index % len(DASHES)]
        axes.axhline(
            limit.value / scale, color="black", linewidth=1.1, linestyle=dash, label=_lines(limit.label)
        )
    axes.autoscale_view(scalex=False)  # `axhline` leaves a line that hugs the frame where it is
    axes.set_ylabel(name, fontsize=9)
    if log:
        axes.set_yscale("log")
    else:
        _from_zero(axes)
    axes.grid(True, color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.03), fontsize=8, frameon=False, handlelength=2.2)


def _from_zero(axes: Axes) -> None:
    """The vertical axis starts at 0, or below where a curve goes below; where all is 0 it does not show what is not there."""
    low, high = axes.dataLim.intervaly
    if low == high == 0:
        axes.set_ylim(0.0, 1.0)
    else:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


def _lines(label: str) -> str:
    """A label in the legend, in lines that fit beside the axes."""
    return textwrap.fill(label, 24)


def _draw_events(axes: Axes, events: Sequence[Event], named: bool) -> list[Artist]:
    """Vertical lines; the first row also carries a marker a kind above its frame, and their names."""
    marks: list[Artist] = []
    across = axes.get_xaxis_transform()
    for order, kind in enumerate(dict.fromkeys(event.kind for event in events)):
        color, marker = EVENTS.get(kind, EVENTS["other"])
        times = [event.time for event in events if event.kind == kind]
        if len(times) <= 60:
            # one artist for all of them: `axvline` would be one each
            ends = [((time, 0), (time, 1)) for time in times]
            lines = LineCollection(ends, colors=color, linewidths=0.8, alpha=0.7, transform=across)
            marks.append(axes.add_collection(lines, autolim=False))
            axes.update_datalim([(time, 0) for time in times], updatey=False)
        else:
            marks += axes.plot(times, [0.02] * len(times), "|", color=color, transform=across, markersize=6)
        if named:
            height = 0.95 - 0.09 * order
            marks += axes.plot(
                times[:200], [height] * len(times[:200]), marker, color=color, markersize=4.5,
                transform=across, clip_on=False,
            )  # fmt: skip
    if named and events:
        text = "   ".join(_counts(events))
        marks.append(
            axes.text(1.0, 1.04, text, transform=axes.transAxes, fontsize=8, ha="right", color="#333333")
        )
    return marks


def _counts(events: Sequence[Event]) -> list[str]:
    kinds = list(dict.fromkeys(event.kind for event in events))
    signs = {"oom": "✕", "move": "▶", "eviction": "▼", "preemption": "■", "restart": "◆"}
    named = []
    for kind in kinds:
        same = [event for event in events if event.kind == kind]
        texts = {event.text for event in same}
        name = texts.pop() if len(texts) == 1 else ""
        what = name if len(same) == 1 and name else f"{name or kind}: {len(same)}"
        named.append(f"{signs.get(kind, '●')} {what}")
    return named


def _color(label: str, index: int) -> str:
    return color_of(label) if label in LIFETIMES else CURVES[index % len(CURVES)]
