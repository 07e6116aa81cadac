"""Exercise 12's picture: how a step's budget is shared out, the learner's above the expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE = 0.035  # of the axis: room for a number; smaller segments carry theirs above


def draw_step(rows: Mapping[str, Mapping[str, int]], *, title: str = "", budget: int = 0) -> Figure:
    """`rows`: {row: {request: tokens}}, drawn side by side; a dashed line at the budget. Every segment says whose it is and how
    many tokens it has."""
    from matplotlib.patches import Patch

    from labkit.viz.figure import WIDTH, margins, new_figure
    from labkit.viz.timeline import CURVES

    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    color = {name: CURVES[i % len(CURVES)] for i, name in enumerate(names)}
    end = 1.06 * max(budget, 1, *(sum(n for n in row.values() if n > 0) for row in rows.values()))
    figure = new_figure(WIDTH, 0.95 + 0.62 * len(rows))
    margins(figure, left=0.85, right=1.3, top=0.4, bottom=0.5)
    axes = figure.add_subplot()
    for y, row in enumerate(rows.values()):
        at, above = 0, 0.0  # where the last number above ends
        for name, tokens in row.items():
            text = f"{name}: {tokens}"
            room = max(tokens, 0) / end
            if room > WIDE * len(text) / 3:
                axes.text(at + tokens / 2, y, text, ha="center", va="center", fontsize=8, color="white")
            else:
                above = max(above, at + max(tokens, 0) / 2)
                axes.text(above, y - 0.3, text, ha="left", va="bottom", fontsize=8)
                above += end * 0.0115 * (len(text) + 1)
            axes.barh(y, max(tokens, 0), 0.52, left=at, color=color[name], edgecolor="white", linewidth=0.8)
            at += max(tokens, 0)
    axes.axvline(budget, color="black", linestyle="--", linewidth=1.2)
    axes.text(budget, -0.62, f"budget {budget}", ha="right", va="bottom", fontsize=8)
    axes.set_xlim(0, end)
    axes.set_ylim(len(rows) - 0.5, -0.65)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    axes.set_xlabel("tokens of the step", fontsize=9, labelpad=1)
    axes.tick_params(labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.text(0.035, 1 - 0.05 / figure.get_size_inches()[1], title, fontsize=10, va="top")
    axes.legend(
        handles=[Patch(color=color[name], label=name) for name in names[:8]],
        loc="upper left", bbox_to_anchor=(1.005, 1.0), fontsize=8, frameon=False,
    )  # fmt: skip
    return figure
