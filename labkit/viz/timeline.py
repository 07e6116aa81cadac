"""Curves over time with units, and events marked on them. One row of axes for each unit, one clock for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
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
    unit: str
    series: list[Series] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)


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
    a kind are drawn as a rug of ticks; a single event of a kind is named by its text.
    """
    rows: dict[str, _Row] = {}
    for one in series:
        rows.setdefault(one.unit, _Row(one.unit)).series.append(one)
    for limit in limits:
        rows.setdefault(limit.unit, _Row(limit.unit)).limits.append(limit)
    kinds = list(dict.fromkeys(event.kind for event in events))
    figure = new_figure(width, 0.95 + max(1, len(rows)) * row_height + (0.24 if kinds else 0), figure)
    margins(figure, left=0.85, right=1.9, top=0.36, bottom=0.55)
    figure.subplots_adjust(hspace=0.12)
    grid = figure.subplots(max(1, len(rows)), 1, sharex=True, squeeze=False)[:, 0]
    for axes, row in zip(grid, rows.values()):
        _draw_row(axes, row, stacked and row.unit == "bytes", row.unit in log)
    for axes in grid:
        _draw_events(axes, events, named=axes is grid[0])
    grid[0].set_title(title, fontsize=10, loc="left")
    grid[-1].set_xlabel(xlabel, fontsize=9)
    if logx:
        grid[-1].set_xscale("log")
        grid[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    return figure


def _draw_row(axes: Axes, row: _Row, stacked: bool, log: bool) -> None:
    scale, name = 1.0, row.unit
    if row.unit == "bytes":
        peak = [float(np.max(one.values)) for one in row.series if len(one.values)] + [
            limit.value for limit in row.limits
        ]
        scale, name = byte_unit(max(peak, default=1.0))
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
                np.asarray(one.times), np.asarray(one.values, dtype=float) / scale, color=color, label=one.label,
                linewidth=1.4, linestyle="--" if one.dashed else "-",
                drawstyle="steps-post" if one.step else "default", marker="o" if len(one.values) == 1 else None,
            )  # fmt: skip
    for index, limit in enumerate(row.limits):
        dash = DASHES[index % len(DASHES)]
        axes.axhline(limit.value / scale, color="black", linewidth=1.1, linestyle=dash, label=limit.label)
    axes.set_ylabel(name, fontsize=9)
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.grid(True, color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.03), fontsize=8, frameon=False, handlelength=2.2)


def _draw_events(axes: Axes, events: Sequence[Event], named: bool) -> None:
    """Vertical lines; the first row also carries a marker a kind above its frame, and their names."""
    for order, kind in enumerate(dict.fromkeys(event.kind for event in events)):
        color, marker = EVENTS.get(kind, EVENTS["other"])
        times = [event.time for event in events if event.kind == kind]
        few = len(times) <= 60
        for time in times if few else ():
            axes.axvline(time, color=color, linewidth=0.8, alpha=0.7)
        if not few:
            axes.plot(
                times,
                [0.02] * len(times),
                "|",
                color=color,
                transform=axes.get_xaxis_transform(),
                markersize=6,
            )
        if named:
            height = 0.95 - 0.09 * order
            axes.plot(
                times[:200], [height] * len(times[:200]), marker, color=color, markersize=4.5,
                transform=axes.get_xaxis_transform(), clip_on=False,
            )  # fmt: skip
            axes.text(
                1.0,
                1.04,
                "   ".join(_counts(events)),
                transform=axes.transAxes,
                fontsize=8,
                ha="right",
                color="#333333",
            ) if order == 0 else None


def _counts(events: Sequence[Event]) -> list[str]:
    kinds = list(dict.fromkeys(event.kind for event in events))
    signs = {"oom": "✕", "move": "▶", "eviction": "▼", "preemption": "■", "restart": "◆"}
    named = []
    for kind in kinds:
        same = [event for event in events if event.kind == kind]
        what = same[0].text if len(same) == 1 and same[0].text else f"{kind}: {len(same)}"
        named.append(f"{signs.get(kind, '●')} {what}")
    return named


def _color(label: str, index: int) -> str:
    return color_of(label) if label in LIFETIMES else CURVES[index % len(CURVES)]
