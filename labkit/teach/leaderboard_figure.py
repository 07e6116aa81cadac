"""The picture of a board: one line a row, one mark a load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.viz.figure import WIDTH, margins, new_figure
from labkit.viz.timeline import CURVES

if TYPE_CHECKING:
    from labkit.teach.leaderboard import Board

MARKS = "osD^v"


def draw_board(board: Board) -> Any:
    """Rows in their order, best on top; the entry is printed bold. Rows without a result (disqualified) are left out."""
    score = board.columns[0]
    rows = [row for row in board.ranking() if row.results]
    height = 0.9 + 0.27 * len(rows)
    figure = new_figure(WIDTH, height)
    margins(figure, left=2.3, right=2.2, top=0.38, bottom=0.5)
    axes = figure.add_subplot()
    places = list(range(len(rows)))[::-1]
    for index, load in enumerate(result.load for result in rows[0].results):
        values = [row.results[index].figures[score] for row in rows]
        axes.plot(values, places, MARKS[index], color=CURVES[index], markersize=6, label=load, alpha=0.9)
    axes.plot([row.mean(score) for row in rows], places, "|", color="#000000", markersize=12, label="mean")
    axes.set_yticks(places, [row.name for row in rows], fontsize=8)
    for label, row in zip(axes.get_yticklabels(), rows):
        if row.kind == "entry":
            label.set_fontweight("bold")
    axes.set_xlabel(f"{score.replace('_', ' ')} (share)", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True, color="#EDEDED", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.06)
    axes.set_title(f"leaderboard: {board.kind}", fontsize=10, loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=8, frameon=False)
    return figure
