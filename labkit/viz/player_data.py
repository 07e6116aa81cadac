"""A run as the player wants it: a table of records, and the binary block that the page gets.

A record is a stretch of time in which a range was owned in the same way: `[offset, offset + size)` by `[start, end)`, in
steps. A layout that changes a little costs little; no layout is stored twice. `RunBuilder` makes runs from layouts.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.memory.base import Span
from labkit.viz.palette import ALIASES, EVENTS, FREE, LIFETIMES, WASTE, color_of, describe

#: columns of one record -> numpy type in memory
COLUMNS = {
    "offset": np.int64,
    "size": np.int64,
    "slack": np.int64,  # size - requested
    "start": np.int64,  # first step
    "end": np.int64,  # first step in which it is gone; `num_steps` if it never goes
    "since": np.int64,  # step in which this owner got the range (age); references may have changed since
    "cls": np.int64,
    "owner": np.int64,
    "refs": np.int64,
}


@dataclass
class Run:
    """A finished run: `times [num_steps]`, one array a column, per-step totals, and the names behind the numbers."""

    title: str
    total: int
    unit: str
    time_unit: str
    times: np.ndarray
    records: dict[str, np.ndarray]
    used: np.ndarray
    free: np.ndarray
    largest_free: np.ndarray
    classes: list[str]
    owners: list[str]
    background: str
    peak_records: int
    events: list[tuple[int, str, str]] = field(default_factory=list)
    #: "free" records are whole reserved ranges and other records lie on top of them
    nested: bool = False
    #: what a class is called in the legend, where it is not the palette's text
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return len(self.times)

    def layout(self, step: int) -> list[Span]:
        """The spans of one step, in address order, as they were added (holes are left out if they are the background)."""
        records = self.records
        live = np.flatnonzero((records["start"] <= step) & (step < records["end"]))
        live = live[np.argsort(records["offset"][live], kind="stable")]
        spans = [self._span(int(i)) for i in live]
        return _unnested(spans) if self.nested else spans

    def step_at(self, time: float) -> int:
        """The last step that is not after `time`."""
        return max(0, int(np.searchsorted(self.times, time, side="right")) - 1)

    def legend(self) -> list[tuple[str, str]]:
        """`(text, colour)` of every class that occurs in the run, from the longest life to the shortest, the background last."""
        seen = [self.classes[code] for code in np.unique(self.records["cls"]).tolist()]
        order = list(LIFETIMES)
        seen.sort(
            key=lambda label: (
                order.index(name) if (name := ALIASES.get(label, label)) in order else len(order)
            )
        )
        rows = [(self.texts.get(label, describe(label)), color_of(label)) for label in seen]
        if np.any(self.records["slack"] > 0):
            rows.append(("rounding waste", WASTE))
        background = (self.background, "#FFFFFF" if self.background == "not reserved" else FREE)
        return [*rows, *([background] if background not in rows else [])]

    def encode(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Header and columns for the page. Offsets and sizes are counted in the largest granule that divides them all."""
        records = self.records
        granule = int(np.gcd.reduce(np.concatenate([records["offset"], records["size"], [0]]))) or 1
        columns = {
            "times": self.times.astype("<f8"),
            "used": self.used.astype("<f8"),
            "free": self.free.astype("<f8"),
            "largest_free": self.largest_free.astype("<f8"),
            "offset": _narrow(records["offset"] // granule),
            "size": _narrow(records["size"] // granule),
            "slack": _narrow(records["slack"]),
            "start": records["start"].astype("<u4"),
            "end": records["end"].astype("<u4"),
            "since": records["since"].astype("<u4"),
            "owner": records["owner"].astype("<u4"),
            "refs": np.minimum(records["refs"], 65535).astype("<u2"),
            "cls": records["cls"].astype("<u1"),
        }
        seen = set(np.unique(records["cls"]).tolist())
        header = {
            "title": self.title,
            "total": self.total,
            "unit": self.unit,
            "granule": granule,
            "classes": [
                [label, color_of(label), self.texts.get(label, describe(label)), code in seen]
                for code, label in enumerate(self.classes)
            ],
            "background": [
                self.background,
                "#FFFFFF" if self.background == "not reserved" else FREE,
                self.background,
            ],
            "waste_color": WASTE,
            "nested": self.nested,
            "has_waste": bool(np.any(records["slack"] > 0)),
            "owners": self.owners,
            "events": self.events,
            "peak_records": self.peak_records,
            "columns": [[name, column.dtype.str[1:], 0, len(column)] for name, column in columns.items()],
        }
        return header, list(columns.values())

    def _span(self, i: int) -> Span:
        at = {name: int(column[i]) for name, column in self.records.items()}
        label = self.classes[at["cls"]]
        owner = self.owners[at["owner"]]
        if label == "free":
            return Span(at["offset"], at["size"], "free")
        if label == "not mapped":
            return Span(at["offset"], at["size"], "unmapped")
        requested = at["size"] - at["slack"]
        if label == "pending free":
            return Span(at["offset"], at["size"], "pending", requested, owner)
        lifetime = "cached" if label == "cached, reclaimable" else label
        return Span(at["offset"], at["size"], "allocated", requested, owner, lifetime)


def _unnested(spans: list[Span]) -> list[Span]:
    """Reserved ranges with the blocks on top cut out of them: free spans and blocks side by side."""
    blocks = [span for span in spans if span.state != "free"]
    flat, place = list(blocks), 0
    for held in (span for span in spans if span.state == "free"):
        at = held.offset
        while place < len(blocks) and blocks[place].offset < held.end:
            if blocks[place].offset > at:
                flat.append(Span(at, blocks[place].offset - at, "free"))
            at = max(at, blocks[place].end)
            if at > held.end:
                break  # the block goes on into the next range
            place += 1
        if at < held.end:
            flat.append(Span(at, held.end - at, "free"))
    return sorted(flat, key=lambda span: span.offset)


def pack(runs: Sequence[Run], *, title: str = "", height: int = 420) -> bytes:
    """What the page gets, gzipped: `u32 header length | header (JSON) | columns`, every column on a multiple of 8 bytes."""
    units = {run.time_unit for run in runs}
    if len(units) != 1:
        raise LabError(f"runs side by side need one time unit, not {' and '.join(sorted(units))}")
    headers, columns, at = [], [], 0
    for run in runs:
        header, arrays = run.encode()
        for entry, array in zip(header["columns"], arrays):
            entry[2] = at
            at += 8 * math.ceil(array.nbytes / 8)
            columns.append(array)
        headers.append(header)
    colors = {kind: color for kind, (color, _) in EVENTS.items()}
    head = json.dumps(
        {"title": title, "height": height, "time_unit": units.pop(), "event_colors": colors, "runs": headers}
    ).encode()
    parts = [len(head).to_bytes(4, "little"), head, bytes(-(4 + len(head)) % 8)]
    for column in columns:
        parts += [column.tobytes(), bytes(-column.nbytes % 8)]
    return gzip.compress(b"".join(parts), compresslevel=6, mtime=0)


def _narrow(column: np.ndarray) -> np.ndarray:
    """Four bytes a value where they fit, else a double (exact up to 2**53)."""
    return column.astype("<u4") if not len(column) or int(column.max()) < 1 << 32 else column.astype("<f8")
