"""A PyTorch snapshot in the player: its address ranges put end to end, and its trace as the clock.

A real trace does not say what a block is for, only how long it lived. So the colours mean what was seen: there all the time, more
than a tenth of the trace, less, or in a private pool.
"""

from __future__ import annotations

import numpy as np

from labkit.memory.snapshot import Snapshot
from labkit.memory.snapshot_timeline import Timeline, timeline
from labkit.memory.snapshot_trace import Life
from labkit.viz.player_data import COLUMNS, Run

CLASSES = ["weights", "session", "request", "graph", "pending free", "free"]
TEXTS = {
    "weights": "there all the time",
    "session": "over a tenth of the trace",
    "request": "less than a tenth",
    "graph": "in a private pool",
    "free": "reserved and free",
}


def snapshot_run(snapshot: Snapshot, device: int = 0, *, title: str = "") -> Run:
    """The run of one device, one step an event, in milliseconds since the first. Raises `LabError` without a trace."""
    curves = timeline(snapshot, device)
    num = len(curves.times_ms)
    rows, owners = _rows(curves, num)
    table = np.asarray(rows, dtype=np.int64).reshape(-1, len(COLUMNS))
    table = table[table[:, 4] > table[:, 3]]
    table = table[np.argsort(table[:, 3], kind="stable")]
    alive = np.cumsum(
        np.bincount(table[:, 3], minlength=num + 1) - np.bincount(table[:, 4], minlength=num + 1)
    )
    run = Run(
        title or snapshot.name, curves.line.total, "bytes", "ms", curves.times_ms,
        {name: table[:, index].copy() for index, name in enumerate(COLUMNS)},
        curves.used, curves.reserved - curves.used - curves.pending, curves.largest_free,
        list(CLASSES), list(owners), "not reserved", int(alive.max(initial=1)),
    )  # fmt: skip
    run.nested, run.texts = True, dict(TEXTS)
    words = {"oom": "oom", "segment_free": "segment returned", "segment_unmap": "segment returned"}
    run.events = [
        (
            index,
            words[event.action],
            f"{event.size:,} B asked" if event.action == "oom" else f"{event.size:,} B",
        )
        for index, event in enumerate(snapshot.trace(device))
        if event.action in words
    ]
    return run


def _rows(curves: Timeline, num: int) -> tuple[list[tuple[int, ...]], dict[str, int]]:
    """Columns of `COLUMNS`: reserved ranges first, blocks over them."""
    owners: dict[str, int] = {"": 0}
    rows: list[tuple[int, ...]] = []
    for held in curves.held:
        rows.append(
            (
                curves.line.place(held.addr),
                held.size,
                0,
                held.start,
                held.end,
                held.start,
                CLASSES.index("free"),
                0,
                0,
            )
        )
    for life in curves.lives:
        owner = owners.setdefault(" < ".join(life.frames[:3]), len(owners))
        start = max(life.born, 0)
        at, slack = curves.line.place(life.addr), max(0, life.size - life.requested)
        rows.append((at, life.size, slack, start, life.freed, start, _lifetime(life, num), owner, 1))
        rows.append((at, life.size, 0, life.freed, life.done, start, CLASSES.index("pending free"), owner, 0))
    return rows, owners


def _lifetime(life: Life, num: int) -> int:
    if life.pool_id != (0, 0):
        return CLASSES.index("graph")
    if life.born < 0 and life.done >= num:
        return CLASSES.index("weights")
    return CLASSES.index("session" if life.done - max(life.born, 0) > num / 10 else "request")
