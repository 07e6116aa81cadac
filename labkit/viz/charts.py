"""Two charts that many sections need: a trade-off of two costs, and bars side by side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, FuncFormatter

from labkit.viz.figure import WIDTH, margins, new_figure
from labkit.viz.timeline import CURVES

#: (x, y, label of the point)
Point = tuple[float, float, str]
#: where a label may stand beside its point: (right or left, above or below), the usual place first
CORNERS = ((1, 1), (-1, 1), (1, -1), (-1, -1))


def draw_tradeoff(
    curves: Mapping[str, Sequence[Point]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    good: tuple[float, float] | None = None,
    logx: bool = False,
    linthresh_y: float | None = None,
    height: float = 3.6,
    figure: Figure | None = None,
) -> Figure:
    """Connected points with a label each, one curve an entry. `good=(x, y)` shades the corner below both values.

    `linthresh_y` draws the vertical axis logarithmically above that value and linearly below it (so that 0 shows). A label
    stands where the fewest lines run; one whose point lies on an earlier one is left out.
    """
    figure = new_figure(WIDTH, height, figure)
    margins(figure, left=0.85, right=2.4, top=0.38, bottom=0.6)
    axes = figure.add_subplot()
    if linthresh_y is not None:
        axes.set_yscale("symlog", linthresh=linthresh_y)
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    if logx:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    for (label, points), color in zip(curves.items(), CURVES):
        axes.plot(
            [x for x, _, _ in points], [y for _, y, _ in points], "o-", color=color, label=label, markersize=5
        )
    axes.margins(0.08, 0.08)
    if good is not None:
        left, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
        axes.fill_between([left, good[0]], bottom, good[1], color="#E3F1E8", zorder=0, label="good at both")
        axes.set_xlim(left=left)
        axes.set_ylim(bottom=bottom)
    _label_points(axes, [points for points in curves.values() if points])
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True, color="#EDEDED", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, fontsize=10, loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.03), fontsize=8, frameon=False)
    return figure


def _label_points(axes: Axes, curves: Sequence[Sequence[Point]]) -> None:
    """Write the labels of all points, each at the corner of its point that covers the least of lines, points and labels."""
    axes.autoscale_view()
    pixel = axes.figure.dpi / 72
    frame = axes.get_window_extent()
    traces = [axes.transData.transform([(x, y) for x, y, _ in points]) for points in curves]
    ink = np.concatenate([_along(trace) for trace in traces] or [np.zeros((0, 2))])
    done: list[np.ndarray] = []
    for points, trace in zip(curves, traces):
        for (x, y, text), at in zip(points, trace):
            if not text or any(np.hypot(*(at - other)) <= 28 for other in done):
                continue
            size = np.array([5.0 * len(text), 10.0]) * pixel
            costs = []
            for right, up in CORNERS:
                low = at + 5 * pixel * np.array([right, up]) - size * (np.array([right, up]) < 0)
                covered = int(np.sum(np.all((low <= ink) & (ink <= low + size), axis=1)))
                outside = 1000 * bool(np.any(low < frame.min) or np.any(low + size > frame.max))
                costs.append((covered + outside, low))
            best = min(range(len(CORNERS)), key=lambda corner: costs[corner][0])
            right, up = CORNERS[best]
            axes.annotate(
                text, (x, y), xytext=(5 * right, 5 * up), textcoords="offset points", fontsize=8,
                ha="left" if right > 0 else "right", va="bottom" if up > 0 else "top",
            )  # fmt: skip
            done.append(at)
            low = costs[best][1]
            corners = np.stack(np.meshgrid(*np.linspace(low, low + size, 8).T), axis=-1).reshape(-1, 2)
            ink = np.concatenate([ink, corners])


def _along(trace: np.ndarray) -> np.ndarray:
    """Pixels [n, 2] on the lines between the points of `trace` [num_points, 2], some three apart."""
    pieces = [trace]
    for start, end in itertools.pairwise(trace):
        number = max(2, int(np.hypot(*(end - start)) / 3))
        pieces.append(start + np.linspace(0, 1, number)[:, None] * (end - start))
    return np.concatenate(pieces)


def draw_bars(
    groups: Mapping[str, Mapping[str, float]],
    *,
    ylabel: str,
    title: str = "",
    stacked: bool = False,
    colors: Mapping[str, str] | None = None,
    logy: bool = False,
    height: float = 3.2,
    figure: Figure | None = None,
) -> Figure:
    """`groups`: {label on the axis: {series: value}}. Series stand side by side, or on top of each other; a value of a
    series that a group lacks is left out. Bars carry their value, stacked ones where it fits."""
    figure = new_figure(WIDTH, height, figure)
    names = list(dict.fromkeys(name for values in groups.values() for name in values))
    right = 0.3 if len(names) == 1 else 2.4
    chars = int(
        (WIDTH - 0.85 - right) / max(4, len(groups)) / 0.085
    )  # 8 pt text is about 0.085 inches a character
    labels = [_wrap(label, chars) for label in groups]
    lines = max((label.count("\n") + 1 for label in labels), default=1)
    margins(figure, left=0.85, right=right, top=0.38, bottom=0.2 + 0.17 * lines)
    axes = figure.add_subplot()
    places = np.arange(len(groups))
    width = 0.75 if stacked else 0.8 / max(1, len(names))
    base = np.zeros(len(groups))
    segments = []
    longest = max((len(number(v)) for values in groups.values() for v in values.values()), default=0)
    room = (WIDTH - 0.85 - right) / max(4, len(groups)) * width  # inches that the value of one bar has
    for index, name in enumerate(names):
        values = np.array([group.get(name, np.nan) for group in groups.values()], dtype=float)
        color = (colors or {}).get(name, CURVES[index % len(CURVES)])
        at = places if stacked else places + (index - (len(names) - 1) / 2) * width
        bars = axes.bar(at, values, width * 0.94, bottom=base if stacked else None, color=color, label=name)
        said = [number(v) if np.isfinite(v) else "" for v in values]
        if stacked:
            base = base + np.nan_to_num(values)
            segments.append((bars, values, said))
        elif len(groups) * len(names) <= 16:
            axes.bar_label(bars, said, fontsize=8 if 0.068 * longest < room else 6.5, padding=1)
    if logy:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.margins(y=0.12)
    if stacked:
        axes.set_ylim(0, 1.08 * max(base.max(), 1e-9))
        for bars, values, said in segments:
            tall = [text if value > 0.07 * base.max() else "" for value, text in zip(values, said)]
            axes.bar_label(bars, tall, fontsize=8, label_type="center", color="white")
    _no_wider_than_four(axes, len(groups))
    axes.set_xticks(places, labels, fontsize=8)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True, axis="y", color="#EDEDED", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, fontsize=10, loc="left")
    if len(names) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.03), fontsize=8, frameon=False)
    return figure


def number(value: float) -> str:
    """Three significant digits, whole and with commas from 1,000 on: never an exponent for what people count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3g}"


def _no_wider_than_four(axes: Axes, num_groups: int) -> None:
    """Two bars over the whole width look like a wall: leave the room that four groups would take."""
    half = max(4, num_groups) / 2
    middle = (num_groups - 1) / 2
    axes.set_xlim(middle - half, middle + half)


def _wrap(label: str, width: int) -> str:
    """Lines of at most `width` characters where words allow; a leading "+" stays with its word."""
    lines, line = [], ""
    for word in label.replace("+ ", "+\u00a0").split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])
