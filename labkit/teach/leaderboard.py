"""Leaderboards: an allocator, a scheduling policy or an eviction policy of your own against all that is built in.

    board = run_board("allocator", "mine.py:MyAllocator")
    print(board.text()); board.figure()

Three loads (Azure conversation, Azure code, Mooncake conversation), the same for everybody. Rows are ranked by `score`, the
mean over the loads, and a cheating entry is named and put last.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.errors import LabError
from labkit.teach.leaderboard_entry import Disqualified, Entry, check_exists, name_of

KINDS = ("allocator", "scheduler", "eviction")


@dataclass(frozen=True)
class Result:
    """One row on one load. Which figures there are depends on the board; `num_decisions` calls took `cpu_s`."""

    load: str
    figures: dict[str, float]
    num_decisions: int
    cpu_s: float

    @property
    def decisions_per_s(self) -> float:
        return self.num_decisions / self.cpu_s if self.cpu_s > 0 else float("inf")


@dataclass(frozen=True)
class Row:
    """`kind` is "built in", "system" or "entry"; `problem` names why an entry is out of the ranking."""

    name: str
    kind: str
    results: tuple[Result, ...] = ()
    problem: str = ""

    def mean(self, figure: str) -> float:
        """Over the loads; 0 where there is no result."""
        values = [r.figures[figure] for r in self.results if figure in r.figures]
        return sum(values) / len(values) if values else 0.0

    @property
    def decisions_per_s(self) -> float:
        total = sum(r.cpu_s for r in self.results)
        return sum(r.num_decisions for r in self.results) / total if total else 0.0


@dataclass
class Board:
    """`columns` are figures in the order of the table, the first is the score."""

    kind: str
    columns: tuple[str, ...]
    origins: list[str]
    rows: list[Row] = field(default_factory=list)

    def ranking(self) -> list[Row]:
        """Best first; equal scores by the second column (fewer is better), then by name; disqualified ones last."""
        score, second = self.columns[0], self.columns[1]
        return sorted(
            self.rows,
            key=lambda r: (bool(r.problem), -round(r.mean(score), 9), r.mean(second), r.kind, r.name),
        )

    @property
    def entry(self) -> Row | None:
        """The row of the entry; None when only what is built in was run."""
        return next((row for row in self.rows if row.kind == "entry"), None)

    def place_of(self, name: str) -> int:
        """1 is best."""
        return [row.name for row in self.ranking()].index(name) + 1

    def frame(self) -> Any:
        """A table, best first: means over the loads, and the score on each load."""
        import pandas as pd

        score = self.columns[0]
        rows = []
        for place, row in enumerate(self.ranking(), 1):
            cells: dict[str, Any] = {
                "place": place if not row.problem else "-",
                "name": row.name,
                "kind": row.kind,
            }
            cells |= {column.replace("_", " "): round(row.mean(column), 4) for column in self.columns}
            cells |= {r.load: round(r.figures[score], 3) for r in row.results}
            cells["decisions/s"] = int(row.decisions_per_s)
            rows.append(cells | {"out because it": row.problem})
        frame = pd.DataFrame(rows)
        return frame if any(row.problem for row in self.rows) else frame.drop(columns="out because it")

    def text(self) -> str:
        """The table for a terminal, with what the loads are."""
        heads = ["", "name", *(c.replace("_", " ") for c in self.columns), "decisions/s"]
        lines = [heads]
        for place, row in enumerate(self.ranking(), 1):
            mark = "> " if row.kind == "entry" else ""
            if row.problem:
                lines.append(["-", f"{mark}{row.name}", row.problem])
                continue
            cells = [f"{row.mean(c):,.3f}" for c in self.columns]
            lines.append([str(place), f"{mark}{row.name}", *cells, f"{row.decisions_per_s:,.0f}"])
        full = [line for line in lines if len(line) == len(heads)]
        widths = [max(len(line[i]) for line in full) for i in range(len(heads))]
        shown = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([*shown, "", *self.origins])

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, best first."""
        rows = []
        for place, row in enumerate(self.ranking(), 1):
            rows.append(
                {
                    "place": None if row.problem else place,
                    "name": row.name,
                    "kind": row.kind,
                    "problem": row.problem,
                    "means": {column: row.mean(column) for column in self.columns},
                    "decisions_per_s": row.decisions_per_s,
                    "results": [asdict(result) for result in row.results],
                }
            )
        return {"board": self.kind, "loads": self.origins, "columns": list(self.columns), "rows": rows}

    def figure(self) -> Any:
        """The score on each load, best row on top."""
        from labkit.teach.leaderboard_figure import draw_board

        return draw_board(self)


def run_board(
    kind: str, entry: Entry | None = None, *, num_requests: int | None = None, seed: int = 0
) -> Board:
    """Score everything that is built in, the three systems and, if given, an entry. Raises `LabError` for an unknown board
    or an entry that is not there; an entry that breaks or cheats is a row with a `problem`."""
    judge = _judge(kind)
    if entry is not None:
        check_exists(entry)
    if num_requests is not None and num_requests < 20:
        raise LabError(f"{num_requests} requests are too few to compare anything; take at least 20")
    board: Board
    board, score_entry = judge(num_requests, seed)
    if entry is not None:
        try:
            board.rows.append(Row(_label(entry), "entry", tuple(score_entry(entry))))
        except Disqualified as problem:
            board.rows.append(Row(_label(entry), "entry", problem=str(problem)))
    return board


def _label(entry: Entry) -> str:
    return name_of(entry).rpartition(":")[2]


def _judge(kind: str) -> Callable[..., Any]:
    if kind not in KINDS:
        raise LabError(f"unknown leaderboard {kind!r}; choose one of: {', '.join(KINDS)}")
    judge: Callable[..., Any] = importlib.import_module(f"labkit.teach.leaderboard_{kind}").judge
    return judge
