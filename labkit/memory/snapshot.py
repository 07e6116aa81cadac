"""What `torch.cuda.memory._dump_snapshot` wrote, checked and given names.

Top level: `segments`, `device_traces`, `allocator_settings`. A segment is one device allocation (with expandable segments: one
contiguous mapped run) and its blocks fill it in address order. Newer and older releases differ in keys; what is missing
and can be inferred is inferred and noted, what cannot is an error that names the key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from labkit.errors import InputError
from labkit.memory.base import Span, SpanState
from labkit.memory.snapshot_pickle import load_plain

PoolId = tuple[int, int]
Frames = tuple[str, ...]

STATES: dict[str, SpanState] = {
    "active_allocated": "allocated",
    "active_pending_free": "pending",
    "active_awaiting_free": "pending",  # the word of PyTorch's docstring; the code writes the one above
    "inactive": "free",
}


@dataclass(frozen=True, slots=True)
class SnapshotBlock:
    """`requested` is 0 for a free block. `frames` is innermost first, each "function file:line"."""

    address: int
    size: int
    requested: int
    state: SpanState
    frames: Frames


@dataclass(frozen=True, slots=True)
class SnapshotSegment:
    """One device allocation of `size` bytes and its blocks in address order."""

    device: int
    address: int
    size: int
    stream: int
    is_small: bool
    pool_id: PoolId
    is_expandable: bool
    blocks: tuple[SnapshotBlock, ...]


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """One line of the trace. `addr` is 0 and `device_free` is set for "oom". `size` is what was requested."""

    action: str
    addr: int
    size: int
    stream: int
    time_us: int
    pool_id: PoolId
    frames: Frames
    device_free: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """`segments` in address order; `traces[device]` oldest first; `notes` says what had to be inferred."""

    name: str
    segments: tuple[SnapshotSegment, ...]
    traces: tuple[tuple[SnapshotEvent, ...], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def devices(self) -> list[int]:
        """Devices that hold a segment or have a trace."""
        return sorted(
            {segment.device for segment in self.segments}
            | {i for i, trace in enumerate(self.traces) if trace}
        )

    def of_device(self, device: int) -> list[SnapshotSegment]:
        """Its segments."""
        return [segment for segment in self.segments if segment.device == device]

    def trace(self, device: int) -> tuple[SnapshotEvent, ...]:
        """Its recorded events, oldest first; empty for a device without."""
        return self.traces[device] if 0 <= device < len(self.traces) else ()

    def spans(self, device: int = 0) -> list[Span]:
        """The blocks as the layout of an allocator: `segment` numbers the segments, `tag` is the innermost frame."""
        return [
            Span(b.address, b.size, b.state, b.requested, b.frames[0] if b.frames else "", "", index)
            for index, segment in enumerate(self.of_device(device))
            for b in segment.blocks
        ]


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Read a snapshot file. Raises `InputError` (one sentence) for a file that is not one, is cut off, or asks for a class."""
    return parse_snapshot(load_plain(path), str(path))


def parse_snapshot(data: Any, name: str = "snapshot") -> Snapshot:
    """The same from the unpickled object (a bare list of segments is accepted, as PyTorch's own viewer does)."""
    if isinstance(data, list):
        data = {"segments": data}
    if not isinstance(data, dict):
        raise InputError(
            name, f"holds a {type(data).__name__}; a memory snapshot is a dict with the key 'segments'"
        )
    if not isinstance(data.get("segments"), list):
        raise InputError(name, "has no list 'segments'; torch.cuda.memory._dump_snapshot always writes one")
    reader = _Reader(name)
    segments = [reader.segment(entry, f"segments[{i}]") for i, entry in enumerate(data["segments"])]
    _check_apart(segments, name)
    traces = data.get("device_traces", [])
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise InputError(name, "has a 'device_traces' that is not a list of lists")
    events = tuple(
        tuple(reader.event(entry, f"device_traces[{d}][{i}]", i) for i, entry in enumerate(trace))
        for d, trace in enumerate(traces)
    )
    settings = data.get("allocator_settings", {})
    if not any(events):
        reader.notes[
            "no trace was recorded (torch.cuda.memory._record_memory_history), so nothing can be replayed"
        ] = None
    return Snapshot(
        name,
        tuple(sorted(segments, key=lambda segment: (segment.device, segment.address))),
        events,
        settings if isinstance(settings, dict) else {},
        tuple(reader.notes),
    )


def _check_apart(segments: list[SnapshotSegment], name: str) -> None:
    """Two segments of a device share no address. Raises `InputError` that names the later of the two."""
    order = sorted(range(len(segments)), key=lambda i: (segments[i].device, segments[i].address))
    for i, j in pairwise(order):
        below, above = segments[i], segments[j]
        if below.device == above.device and below.address + below.size > above.address:
            raise InputError(
                name,
                f"overlaps segments[{min(i, j)}] at {above.address:#x}; a segment stands in a snapshot once",
                field=f"segments[{max(i, j)}]",
            )


class _Reader:
    """Turns plain dicts into records; collects what it had to infer."""

    def __init__(self, name: str):
        self.name = name
        self.notes: dict[str, None] = {}

    def segment(self, entry: Any, place: str) -> SnapshotSegment:
        address, size = self.number(entry, "address", place), self.number(entry, "total_size", place)
        blocks = entry.get("blocks")
        if not isinstance(blocks, list):
            raise InputError(self.name, "has no list 'blocks'", field=place)
        at, parsed = address, []
        for index, block in enumerate(blocks):
            parsed.append(self.block(block, at, f"{place}.blocks[{index}]"))
            at += parsed[-1].size
        if at != address + size:
            raise InputError(
                self.name,
                f"has blocks of {at - address} bytes in a segment of {size}",
                field=f"{place}.total_size",
            )
        kind = entry.get("segment_type")
        if kind not in ("small", "large"):
            self.infer("segment_type", "from the size of the segment")
        return SnapshotSegment(
            self.number(entry, "device", place, 0), address, size, self.number(entry, "stream", place, 0),
            kind == "small" if kind in ("small", "large") else size <= 2 << 20,
            self.pool(entry.get("segment_pool_id"), place), entry.get("is_expandable") is True, tuple(parsed),
        )  # fmt: skip

    def block(self, entry: Any, expected: int, place: str) -> SnapshotBlock:
        size = self.number(entry, "size", place)
        address = self.number(entry, "address", place, expected)
        if address != expected:
            raise InputError(
                self.name,
                f"begins at {address}; the block before it ends at {expected}",
                field=f"{place}.address",
            )
        state = STATES.get(str(entry.get("state")))
        if state is None:
            raise InputError(
                self.name, f"is {entry.get('state')!r}; one of: {', '.join(STATES)}", field=f"{place}.state"
            )
        frames, requested = entry.get("frames"), entry.get("requested_size")
        history = entry.get("history")
        if isinstance(history, list) and history and isinstance(history[0], dict):  # releases before 2.1
            frames = history[0].get("frames") if frames is None else frames
            requested = history[0].get("real_size") if requested is None else requested
        if requested is None and state != "free":
            self.infer("requested_size", "as the size of the block")
        requested = self.number({"requested_size": requested}, "requested_size", place, size)
        if state != "free" and requested > size:
            raise InputError(
                self.name, f"is {requested} in a block of {size}", field=f"{place}.requested_size"
            )
        return SnapshotBlock(
            address, size, requested if state != "free" else 0, state,
            self.frames(frames, place),
        )  # fmt: skip

    def event(self, entry: Any, place: str, index: int) -> SnapshotEvent:
        if not isinstance(entry, dict) or not isinstance(entry.get("action"), str):
            raise InputError(self.name, "has no 'action'", field=place)
        action = entry["action"]
        if "time_us" not in entry:
            self.infer("time_us", "as the number of the event")
        return SnapshotEvent(
            action,
            self.number(entry, "addr", place, 0 if action in ("oom", "annotate", "user_defined") else None),
            self.number(entry, "size", place, 0 if action in ("annotate", "user_defined") else None),
            self.number(entry, "stream", place, 0),
            self.number(entry, "time_us", place, index),
            self.pool(entry.get("pool_id"), place),
            self.frames(entry.get("frames"), place),
            self.number(entry, "device_free", place, 0) if action == "oom" else None,
        )

    def number(self, entry: Any, key: str, place: str, default: int | None = None) -> int:
        if not isinstance(entry, dict):
            raise InputError(self.name, f"is a {type(entry).__name__}; a dict is expected", field=place)
        value = entry.get(key)
        value = default if value is None else value
        if value is None:
            raise InputError(
                self.name, f"has no {key!r}, which every release of PyTorch since 2.0 writes", field=place
            )
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
            raise InputError(
                self.name, f"is {value!r}; a whole number below 2**62 is expected", field=f"{place}.{key}"
            )
        return value

    def pool(self, value: Any, place: str) -> PoolId:
        if value is None:
            return (0, 0)
        if (
            not isinstance(value, tuple | list)
            or len(value) != 2
            or not all(isinstance(v, int) for v in value)
        ):
            raise InputError(
                self.name, f"has the pool id {value!r}; two whole numbers are expected", field=place
            )
        return (value[0], value[1])

    def frames(self, value: Any, place: str) -> Frames:
        if value is None:
            return ()
        if not isinstance(value, list):
            raise InputError(
                self.name, f"has frames of type {type(value).__name__}; a list is expected", field=place
            )
        return tuple(
            f"{frame.get('name', '?')} {str(frame.get('filename', '?')).rsplit('/', 1)[-1]}:{frame.get('line', 0)}"
            if isinstance(frame, dict)
            else str(frame)
            for frame in value
        )

    def infer(self, key: str, how: str) -> None:
        self.notes[f"this release does not write {key!r}; it was taken {how}"] = None
