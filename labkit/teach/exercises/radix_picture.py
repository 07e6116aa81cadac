"""Exercise 10's picture: the learner's tree, a row a node, each token under its position in the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.teach.exercises.base import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: (position of its first token, tokens, locks or None, last used or None, row of its parent or -1)
Row = tuple[int, list[str], Any, Any, int]
MOST = 18  # rows
LOCKED, EVICTABLE, UNKNOWN = "#009E73", "#56B4E9", "#C8C8C8"


def view(tree: Any) -> tuple[Picture, ...]:
    """The tree as it stands, when its nodes look like the task's `Node`; nothing otherwise."""
    try:
        root = _root(getattr(tree, "_object", tree))
        if root is None:
            return ()
        rows = _rows(root)
    except Exception:  # a learner's structure may be anything
        return ()
    return (Picture("tree", "your tree at that moment", rows),)


def _root(tree: Any) -> Any:
    values = vars(tree)
    found = [values.get("root"), *values.values()]
    return next((value for value in found if isinstance(getattr(value, "children", None), dict)), None)


def _rows(root: Any) -> list[Row]:
    rows: list[Row] = []
    seen: set[int] = set()

    def add(node: Any, start: int, parent: int) -> None:
        if id(node) in seen or len(rows) > MOST:
            return
        seen.add(id(node))
        tokens = [str(token) for token in node.tokens]
        at = parent
        if tokens or node is not root:
            at = len(rows)
            rows.append((start, tokens, _number(node, "locks"), _number(node, "last_used"), parent))
        for child in node.children.values():
            add(child, start + len(tokens), at)

    add(root, 0, -1)
    return rows


def _number(node: Any, name: str) -> int | float | None:
    value = getattr(node, name, None)
    return value if isinstance(value, int | float) else None


def draw_tree(rows: list[Row], *, title: str = "") -> Figure:
    """Lines lead from the last token of a node to its children."""
    from matplotlib.patches import Patch, Rectangle

    from labkit.viz.figure import WIDTH, margins, new_figure

    shown = rows[:MOST]
    width = max(8, max((start + len(tokens) for start, tokens, *_ in shown), default=0) + 4)
    figure = new_figure(WIDTH, 0.75 + 0.3 * max(1, len(shown)))
    margins(figure, left=0.3, right=0.2, top=0.3, bottom=0.45)
    axes = figure.add_subplot()
    for y, (start, tokens, locks, used, parent) in enumerate(shown):
        color = UNKNOWN if locks is None else LOCKED if locks else EVICTABLE
        for x, token in enumerate(tokens, start):
            axes.add_patch(Rectangle((x, y + 0.12), 1, 0.76, facecolor=color, edgecolor="white"))
            axes.text(x + 0.5, y + 0.5, token, ha="center", va="center", fontsize=8)
        said = [f"locks {locks}"] * (locks is not None) + [f"last used {used}"] * (used is not None)
        axes.text(start + len(tokens) + 0.15, y + 0.5, ", ".join(said), va="center", fontsize=8)
        if parent >= 0:
            axes.plot(
                [start - 0.5, start - 0.5, start], [parent + 0.88, y + 0.5, y + 0.5], color="#555555", lw=1
            )
    axes.set_xlim(0, width)
    axes.set_ylim(max(1, len(shown)), 0)
    axes.set_yticks([])
    axes.set_xticks([x + 0.5 for x in range(width - 4)], [str(x) for x in range(width - 4)])
    axes.set_xlabel("position of the token in its sequence", fontsize=9, labelpad=1)
    axes.tick_params(labelsize=8, length=0, pad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if not shown:
        axes.text(0.2, 0.5, "(empty)", va="center", fontsize=9)
    more = "" if len(rows) <= MOST else f" (the first {MOST} nodes)"
    axes.set_title(f"{title}{more}: one row a node", fontsize=10, loc="left")
    axes.legend(
        handles=[Patch(color=EVICTABLE, label="no lock"), Patch(color=LOCKED, label="locked")],
        loc="upper right", bbox_to_anchor=(1.0, 1 + 1 / max(1, len(shown))), ncols=2, fontsize=8, frameon=False,
    )  # fmt: skip
    return figure
