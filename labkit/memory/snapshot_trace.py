"""A snapshot's trace made usable: what was there when it began, and who lived from when to when.

The trace is a ring buffer, so it usually begins in the middle of the run. What was live then is found by walking it backwards
from the blocks that the snapshot shows. Trace sizes are what was requested; block sizes follow from the rounding rule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.errors import InputError, LabError
from labkit.memory.caching.rounding import round_size
from labkit.memory.caching.settings import AllocatorSettings
from labkit.memory.snapshot import Frames, PoolId, Snapshot, SnapshotEvent

_Ranges = dict[int, tuple[int, int, PoolId, bool]]

MAPS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(slots=True)
class Life:
    """One allocation: events are numbered from 0; `born` is -1 if it was there before the trace, `freed` and `done` are
    `num_events` if it outlived it. Between `freed` and `done` it waited for other streams."""

    addr: int
    requested: int
    size: int
    stream: int
    pool_id: PoolId
    frames: Frames
    born: int
    freed: int
    done: int


@dataclass(frozen=True, slots=True)
class Held:
    """An address range that the allocator held from the device during events `[start, end)`. A mapped one (expandable segments)
    joins with its neighbours; a segment of its own never does."""

    addr: int
    size: int
    start: int
    end: int
    pool_id: PoolId
    mapped: bool


def lives(snapshot: Snapshot, device: int = 0) -> list[Life]:
    """Every allocation the trace and the final blocks know of, those from before the trace first (by address).

    Raises `InputError` when the trace contradicts the blocks, naming the event.
    """
    trace = snapshot.trace(device)
    divisions = settings_of(snapshot).divisions
    last, closed = len(trace), list[Life]()
    open_lives: dict[int, Life] = {}
    for segment in snapshot.of_device(device):
        for block in segment.blocks:
            if block.state != "free":
                freed = last if block.state == "allocated" else _UNSEEN
                open_lives[block.address] = Life(
                    block.address, block.requested, block.size, segment.stream, segment.pool_id, block.frames, -1, freed, last
                )  # fmt: skip
    for index in range(last - 1, -1, -1):
        event = trace[index]
        if event.action == "free_completed":
            if event.addr in open_lives:
                raise _contradiction(snapshot, device, index, "frees a block that lives on")
            open_lives[event.addr] = Life(
                event.addr, event.size, round_size(max(event.size, 1), divisions), event.stream, event.pool_id, (),
                -1, _UNSEEN, index,
            )  # fmt: skip
        elif event.action == "free_requested":
            life = open_lives.get(event.addr)
            if life is None or life.freed != _UNSEEN:
                raise _contradiction(snapshot, device, index, "frees a block that is not freed in the end")
            life.freed = index
        elif event.action == "alloc":
            life = open_lives.pop(event.addr, None)
            if life is None or life.freed == _UNSEEN:
                raise _contradiction(
                    snapshot,
                    device,
                    index,
                    "allocates a block that is neither freed later nor there in the end",
                )
            life.born, life.stream, life.pool_id = index, event.stream, event.pool_id
            life.frames = event.frames or life.frames
            closed.append(life)
    for life in open_lives.values():
        life.freed = 0 if life.freed == _UNSEEN else life.freed  # asked for before the trace began
    return sorted(open_lives.values(), key=lambda life: life.addr) + closed[::-1]


def held_ranges(snapshot: Snapshot, device: int = 0) -> list[Held]:
    """The address ranges held from the device, each with its first and last event. Walks backwards: what the snapshot shows is there
    at the end. Raises `InputError` when the trace contradicts the segments, naming the event."""
    trace = snapshot.trace(device)
    #: start -> (end, event after which it is gone, pool, mapped)
    ranges: _Ranges = {
        s.address: (s.address + s.size, len(trace), s.pool_id, s.is_expandable)
        for s in snapshot.of_device(device)
    }
    starts, held = sorted(ranges), list[Held]()
    for index in range(len(trace) - 1, -1, -1):
        event = trace[index]
        if MAPS.get(event.action) == -1:
            end, place = event.addr + event.size, bisect_right(starts, event.addr)
            before = ranges[starts[place - 1]][0] if place else 0
            if before > event.addr or (place < len(starts) and starts[place] < end) or not event.size:
                raise _contradiction(snapshot, device, index, "returns a range that is held later")
            ranges[event.addr] = (end, index, event.pool_id, event.action == "segment_unmap")
            starts.insert(place, event.addr)
        elif MAPS.get(event.action) == 1:
            pieces = _cut(ranges, starts, event, index)
            if pieces is None:
                raise _contradiction(snapshot, device, index, "takes a range that is not held afterwards")
            held += pieces
    held += [
        Held(start, end - start, 0, until, pool, mapped)
        for start, (end, until, pool, mapped) in ranges.items()
    ]
    return held


_UNSEEN = -2


def _contradiction(snapshot: Snapshot, device: int, index: int, what: str) -> InputError:
    return InputError(
        snapshot.name,
        f"{what}; the trace does not belong to these segments",
        field=f"device_traces[{device}][{index}]",
    )


def _cut(ranges: _Ranges, starts: list[int], event: SnapshotEvent, index: int) -> list[Held] | None:
    """Take `event`'s range out of those held after it; a piece of a longer run leaves the rest in place. None: not all of it is held."""
    at, stop, out = event.addr, event.addr + event.size, list[Held]()
    while at < stop:
        place = bisect_right(starts, at) - 1
        if place < 0 or ranges[starts[place]][0] <= at:
            return None
        start = starts.pop(place)
        end, until, pool, mapped = ranges.pop(start)
        cut_to = min(end, stop)
        for left, right in ((start, at), (cut_to, end)):
            if left < right:
                ranges[left] = (right, until, pool, mapped)
                starts.insert(bisect_right(starts, left), left)
        out.append(Held(at, cut_to - at, index, until, pool, mapped))
        at = cut_to
    return out


def settings_of(snapshot: Snapshot) -> AllocatorSettings:
    """The settings the snapshot was taken under; PyTorch's defaults for what this lab does not know."""
    try:
        return AllocatorSettings.parse(str(snapshot.settings.get("PYTORCH_CUDA_ALLOC_CONF", "")))
    except LabError:
        return AllocatorSettings(expandable_segments=snapshot.settings.get("expandable_segments") is True)


def capacity_of(snapshot: Snapshot, device: int = 0) -> int | None:
    """What PyTorch could have had in all: free on the device plus reserved, at the last out-of-memory of the trace. None without one
    (then the trace does not say how large the device is)."""
    trace = snapshot.trace(device)
    place = max((i for i, event in enumerate(trace) if event.action == "oom"), default=None)
    if place is None:
        return None
    reserved = sum(segment.size for segment in snapshot.of_device(device))
    reserved -= sum(MAPS[event.action] * event.size for event in trace[place:] if event.action in MAPS)
    return reserved + (trace[place].device_free or 0)


def device_free_of(snapshot: Snapshot, device: int = 0) -> int | None:
    """Free bytes of the device when the snapshot was taken, as far as the trace says; None if it does not."""
    capacity = capacity_of(snapshot, device)
    return (
        None if capacity is None else capacity - sum(segment.size for segment in snapshot.of_device(device))
    )


class AddressLine:
    """Puts address ranges that lie terabytes apart end to end, in address order."""

    def __init__(self, ranges: Sequence[tuple[int, int]]):
        merged: list[list[int]] = []
        for start, end in sorted(ranges):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        self._starts = [start for start, _ in merged]
        self._shift, at = [], 0
        for start, end in merged:
            self._shift.append(at - start)
            at += end - start
        self.total = at

    def place(self, address: int) -> int:
        """Where `address` (inside one of the ranges) lies on the line."""
        return address + self._shift[bisect_right(self._starts, address) - 1]
