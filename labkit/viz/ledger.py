"""The ledger as stacked bars: one bar a plan, one colour a kind, the hidden lines hatched."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.planning.ledger import KINDS, Ledger
from labkit.units import GIB
from labkit.viz.figure import WIDTH, margins, new_figure
from labkit.viz.palette import FREE, color_of

#: kind of the ledger -> lifetime class of the palette
CLASSES = {
    "weights": "weights",
    "activations": "activation",
    "workspace": "workspace",
    "communication": "communication",
    "kv_cache": "request",
    "metadata": "session",
    "allocator": "other",
}


def draw_ledger(
    ledgers: Mapping[str, Ledger] | Ledger, *, title: str = "", figure: Figure | None = None
) -> Figure:
    """Horizontal bars in GiB, as long as the GPU's memory; hatched parts are the lines that estimates leave out."""
    bars = {"": ledgers} if isinstance(ledgers, Ledger) else dict(ledgers)
    height = 1.55 + 0.55 * len(bars)
    figure = new_figure(WIDTH, height, figure)
    margins(figure, left=1.7 if any(bars) else 0.3, right=0.3, top=0.3, bottom=1.05)
    axes = figure.add_subplot()
    for row, ledger in enumerate(bars.values()):
        left = 0.0
        for kind in CLASSES:
            for hidden in (False, True):
                size = sum(t.num_bytes for t in ledger.lines if t.kind == kind and t.hidden == hidden) / GIB
                if size > 0:
                    _bar(axes, row, left, size, color_of(CLASSES[kind]), hidden)
                    left += size
        rest = ledger.total_bytes / GIB - left
        if rest > 0:
            axes.barh(row, rest, left=left, color=FREE, edgecolor="white", height=0.7)
        axes.plot([ledger.total_bytes / GIB] * 2, [row - 0.42, row + 0.42], color="black", linewidth=1.2)
    axes.set_yticks(range(len(bars)) if any(bars) else [], list(bars) if any(bars) else [], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("GiB on one rank (black line: the GPU's memory)", fontsize=9)
    axes.tick_params(labelsize=8)
    if title:
        axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=color_of(CLASSES[kind]), label=text) for kind, text in KINDS.items()]
    handles += [
        Patch(facecolor="white", edgecolor="black", hatch="////", label="hidden lines"),
        Patch(color=FREE, label="unused"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _bar(axes, row: int, left: float, size: float, color: str, hidden: bool) -> None:  # type: ignore[no-untyped-def]
    hatch = "////" if hidden else None
    axes.barh(
        row,
        size,
        left=left,
        color=color,
        edgecolor="black" if hidden else "white",
        linewidth=0.6,
        hatch=hatch,
        height=0.7,
    )
