"""Collects layouts one by one and keeps what changed.

builder = RunBuilder(total=pool_bytes, title="paged")
builder.add(time_s, manager.layout())          # as often as you like
builder.event(time_s, "oom", "asked 2 GiB")
run = builder.finish()
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labkit.errors import LabError
from labkit.memory.base import Span
from labkit.viz.palette import lifetime_class
from labkit.viz.player_data import COLUMNS, Run

#: columns by which a range is told from the same range one step later
_SAME = ("size", "slack", "cls", "owner", "refs")
_AT = {name: index for index, name in enumerate(COLUMNS)}


class RunBuilder:
    """Collects layouts of one address space of `total` units and keeps what changed.

    `unit` is "bytes", "blocks" or "tokens"; `time_unit` is "s", "ms" or "step". Times must not go back; of
    several layouts at one time the player shows the last. `interchangeable`: a pool of equal blocks, where any free one
    serves; the curve "largest free" is then all that is free, not the longest row of free neighbours.
    """

    def __init__(
        self,
        total: int,
        *,
        title: str = "",
        unit: str = "bytes",
        time_unit: str = "s",
        interchangeable: bool = False,
    ):
        if total <= 0:
            raise LabError(f"a run needs a space of at least one unit, not {total}")
        self.total, self.title, self.unit, self.time_unit = int(total), title, unit, time_unit
        self.interchangeable = interchangeable
        self._times: list[float] = []
        self._totals: list[tuple[int, int, int]] = []
        self._classes: dict[str, int] = {}
        self._owners: dict[str, int] = {}
        self._events: list[tuple[float, str, str]] = []
        self._done: list[np.ndarray] = []
        self._live = np.empty((0, len(COLUMNS)), dtype=np.int64)
        self._peak = 0
        self._gapless = True

    def add(self, time: float, spans: Sequence[Span], refs: Sequence[int] | None = None) -> None:
        """The layout at `time`. `refs` gives the reference count of each span (1 for allocated ones by default)."""
        codes = [self._code(lifetime_class(span)) for span in spans]
        owners = [self._owners.setdefault(span.tag, len(self._owners)) for span in spans]
        self.add_columns(
            time,
            offset=np.fromiter((span.offset for span in spans), np.int64, len(spans)),
            size=np.fromiter((span.size for span in spans), np.int64, len(spans)),
            slack=np.fromiter(
                (
                    span.size - span.requested if span.state == "allocated" and span.requested else 0
                    for span in spans
                ),
                np.int64,
                len(spans),
            ),
            cls=np.asarray(codes, dtype=np.int64),
            owner=np.asarray(owners, dtype=np.int64),
            refs=np.asarray(
                refs if refs is not None else [int(span.state == "allocated") for span in spans],
                dtype=np.int64,
            ),
        )

    def class_code(self, lifetime: str) -> int:
        """Number to use in the `cls` column of `add_columns` for a lifetime class (or "free", "pending free", …)."""
        return self._code(lifetime)

    def owner_code(self, owner: str) -> int:
        """Number to use in the `owner` column of `add_columns`."""
        return self._owners.setdefault(owner, len(self._owners))

    def add_columns(
        self,
        time: float,
        *,
        offset: np.ndarray,
        size: np.ndarray,
        cls: np.ndarray,
        owner: np.ndarray,
        slack: np.ndarray | None = None,
        refs: np.ndarray | None = None,
    ) -> None:
        """The same as arrays `[num_spans]`, for pools of 100,000 blocks. Ranges that nobody owns may be left out."""
        step = len(self._times)
        if step and time < self._times[-1]:
            raise LabError(
                f"time goes back from {self._times[-1]:g} to {time:g} in step {step}; layouts must come in order"
            )
        num = len(offset)
        new = np.empty((num, len(COLUMNS)), dtype=np.int64)
        zero = np.zeros(num, np.int64)
        given = {
            "offset": offset, "size": size, "slack": zero if slack is None else slack, "start": step, "end": -1,
            "since": step, "cls": cls, "owner": owner, "refs": zero + 1 if refs is None else refs,
        }  # fmt: skip
        for index, name in enumerate(COLUMNS):
            new[:, index] = given[name]
        new = new[np.argsort(new[:, _AT["offset"]], kind="stable")]
        self._check(new, step)
        self._diff(new, step)
        self._times.append(float(time))
        self._totals.append(self._sum(new))
        self._peak = max(self._peak, num)

    def event(self, time: float, kind: str, text: str = "") -> None:
        """Mark "oom", "move", "eviction", "preemption", "restart" or another kind at `time`."""
        self._events.append((float(time), kind, text))

    def finish(self) -> Run:
        """The run so far. The builder may go on and finish again."""
        if not self._times:
            raise LabError("a run needs at least one layout")
        num_steps = len(self._times)
        rows = np.concatenate([*self._done, self._live]) if self._done else self._live.copy()
        rows[rows[:, _AT["end"]] < 0, _AT["end"]] = num_steps
        background = "free"
        if "free" in self._classes:
            free = rows[:, _AT["cls"]] == self._classes["free"]
            if self._gapless:
                rows = rows[~free]
            elif free.any():
                background = "not reserved"
        rows = rows[np.argsort(rows[:, _AT["start"]], kind="stable")]
        totals = np.asarray(self._totals, dtype=np.int64).reshape(num_steps, 3)
        run = Run(
            self.title, self.total, self.unit, self.time_unit, np.asarray(self._times),
            {name: rows[:, index].copy() for index, name in enumerate(COLUMNS)},
            totals[:, 0], totals[:, 1], totals[:, 2],
            list(self._classes), list(self._owners) or [""], background, self._peak,
        )  # fmt: skip
        run.events = sorted((run.step_at(time), kind, text) for time, kind, text in self._events)
        return run

    def _code(self, label: str) -> int:
        code = self._classes.setdefault(label, len(self._classes))
        if code > 255:
            raise LabError("a run may have at most 256 lifetime classes")
        return code

    def _check(self, new: np.ndarray, step: int) -> None:
        offset, size = new[:, _AT["offset"]], new[:, _AT["size"]]
        if not len(new):
            self._gapless = False
            return
        if offset[0] < 0 or int((offset + size).max()) > self.total or int(size.min()) <= 0:
            raise LabError(f"step {step} has a span outside of the space [0, {self.total}), or an empty one")
        if np.any(offset[1:] < offset[:-1] + size[:-1]):
            at = int(np.argmax(offset[1:] < offset[:-1] + size[:-1]))
            raise LabError(f"step {step} has two spans that overlap at offset {int(offset[at + 1])}")
        self._gapless &= int(size.sum()) == self.total

    def _diff(self, new: np.ndarray, step: int) -> None:
        """Carry unchanged ranges over, end the others. Both tables are sorted by offset."""
        old = self._live
        at = np.searchsorted(old[:, 0], new[:, 0])
        at_safe = np.minimum(at, max(0, len(old) - 1))
        if len(old) and len(new):
            met = (at < len(old)) & (old[at_safe, 0] == new[:, 0])
            same = met.copy()
            for name in _SAME:
                same &= old[at_safe, _AT[name]] == new[:, _AT[name]]
            keeps_owner = met & (old[at_safe, _AT["owner"]] == new[:, _AT["owner"]])
            keeps_owner &= old[at_safe, _AT["cls"]] == new[:, _AT["cls"]]
            new[keeps_owner, _AT["since"]] = old[at_safe[keeps_owner], _AT["since"]]
            new[same] = old[at_safe[same]]
            gone = np.ones(len(old), dtype=bool)
            gone[at_safe[same]] = False
        else:
            gone = np.ones(len(old), dtype=bool)
        ended = old[gone]
        if len(ended):
            ended[:, _AT["end"]] = step
            self._done.append(ended)
        self._live = new

    def _sum(self, new: np.ndarray) -> tuple[int, int, int]:
        """Used, free and largest free range of a layout; pending and unmapped ranges are neither."""
        offset, size, cls = (new[:, _AT[name]] for name in ("offset", "size", "cls"))
        code = {name: self._classes.get(name, -1) for name in ("free", "pending free", "not mapped")}
        is_free = cls == code["free"]
        used = int(size[~is_free & (cls != code["pending free"]) & (cls != code["not mapped"])].sum())
        if is_free.any():
            free, largest = int(size[is_free].sum()), int(size[is_free].max())
            return used, free, free if self.interchangeable else largest
        ends = np.concatenate([[0], offset + size])
        gaps = np.concatenate([offset, [self.total]]) - ends
        free, largest = int(gaps.sum()), int(gaps.max())
        return used, free, free if self.interchangeable else largest
