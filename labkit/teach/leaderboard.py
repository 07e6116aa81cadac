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
from labkit.teach.leaderboard_columns import legend, shown
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
        """Best first; equal scores by the second column (fewer is better); disqualified ones last. Rows that are equal in
        both share a place and stand by name."""
        return sorted(self.rows, key=lambda r: (bool(r.problem), self._worth(r), r.kind, r.name))

    def _worth(self, row: Row) -> tuple[float, float]:
        """The smallest is best."""
        return -round(row.mean(self.columns[0]), 9), round(row.mean(self.columns[1]), 9)

    @property
    def entry(self) -> Row | None:
        """The row of the entry; None when only what is built in was run."""
        return next((row for row in self.rows if row.kind == "entry"), None)

    def place(self, row: Row) -> int | None:
        """1 is best; equals share a place, and the next one is as many places further; None when disqualified."""
        if row.problem:
            return None
        return 1 + sum(not other.problem and self._worth(other) < self._worth(row) for other in self.rows)

    def place_of(self, name: str) -> int:
        """The same by the row's name; one that is disqualified is behind all others."""
        row = next(row for row in self.rows if row.name == name)
        return self.place(row) or 1 + sum(not other.problem for other in self.rows)

    def note(self) -> str:
        """A sentence when the first place is shared by most, so that the table compares nothing; otherwise empty."""
        ranked = [row for row in self.rows if not row.problem]
        first = sum(self.place(row) == 1 for row in ranked)
        if first <= len(ranked) / 2:
            return ""
        return (
            f"{first} of {len(ranked)} rows share the first place: at this size hardly anything has to wait or to make "
            "room. Take more requests (-n)."
        )

    def frame(self) -> Any:
        """A table, best first: means over the loads, and the score on each load."""
        import pandas as pd

        score = self.columns[0]
        rows = []
        for row in self.ranking():
            cells: dict[str, Any] = {
                "place": self.place(row) or "-",
                "name": row.name,
                "kind": row.kind,
            }
            cells |= {column.replace("_", " "): round(row.mean(column), 4) for column in self.columns}
            cells |= {r.load: round(r.figures[score], 3) for r in row.results}
            cells["decisions/s"] = int(row.decisions_per_s)
            rows.append(cells | {"out because it": row.problem})
        frame = pd.DataFrame(rows)
        return frame if any(row.problem for row in self.rows) else frame.drop(columns="out because it")

    def text(self, loads: bool = False) -> str:
        """The table of means for a terminal, one a load too if `loads`; below, what columns and loads are."""
        parts = [self._table(None)]
        if loads:
            results = max((row.results for row in self.rows), key=len)
            parts += [
                f"{result.load} (places are those of the means):\n{self._table(i)}"
                for i, result in enumerate(results)
            ]
        parts += ["\n".join(legend(self.columns)), "\n".join(self.origins)]
        if note := self.note():
            parts.insert(1, note)
        return "\n\n".join(parts)

    def _table(self, load: int | None) -> str:
        """Means (None) or the figures on one load, in the order and with the places of the ranking by means."""
        heads = ["", "name", *(c.replace("_", " ") for c in self.columns), "decisions/s"]
        lines = [heads]
        for row in self.ranking():
            mark = "> " if row.kind == "entry" else ""
            if row.problem:
                lines.append(["-", f"{mark}{row.name}", row.problem])
                continue
            one = row if load is None else Row(row.name, row.kind, (row.results[load],))
            cells = [shown(c, one.mean(c)) for c in self.columns]
            lines.append([str(self.place(row)), f"{mark}{row.name}", *cells, f"{one.decisions_per_s:,.0f}"])
        full = [line for line in lines if len(line) == len(heads)]
        widths = [max(len(line[i]) for line in full) for i in range(len(heads))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, best first."""
        rows = []
        for row in self.ranking():
            rows.append(
                {
                    "place": self.place(row),
                    "name": row.name,
                    "kind": row.kind,
                    "problem": row.problem,
                    "means": {column: row.mean(column) for column in self.columns},
                    "decisions_per_s": row.decisions_per_s,
                    "results": [asdict(result) for result in row.results],
                }
            )
        return {
            "board": self.kind,
            "loads": self.origins,
            "columns": list(self.columns),
            "note": self.note(),
            "rows": rows,
        }

    def figure(self) -> Any:
        """The score on each load, best row on top."""
        from labkit.teach.leaderboard_figure import draw_board

        return draw_board(self)


def run_board(
    kind: str, entry: Entry | None = None, *, num_requests: int | None = None, seed: int = 0
) -> Board:
    """Score everything that is built in, the three systems and, if given, an entry. Raises `LabError` for an unknown board
    or an entry that is not there or cannot be one; an entry that breaks or cheats is a row with a `problem`."""
    judge = _judge(kind)
    if num_requests is not None and num_requests < 20:
        raise LabError(f"{num_requests} requests are too few to compare anything; take at least 20")
    if entry is not None:
        from labkit.teach.leaderboard_check import check_entry

        check_exists(entry)
        check_entry(kind, entry)
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
