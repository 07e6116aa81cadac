"""The trace of a snapshot as curves: bytes in use, bytes reserved, and the largest free range after every event."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.errors import InputError, LabError
from labkit.memory.snapshot import Snapshot
from labkit.memory.snapshot_trace import AddressLine, Held, Life, held_ranges, lives


@dataclass(frozen=True)
class Timeline:
    """Arrays `[num_events]`, the value after each event. `line` puts addresses end to end; `lives` and `held` refer to event numbers."""

    times_ms: np.ndarray
    used: np.ndarray
    pending: np.ndarray
    reserved: np.ndarray
    largest_free: np.ndarray
    lives: list[Life]
    held: list[Held]
    line: AddressLine


def timeline(snapshot: Snapshot, device: int = 0) -> Timeline:
    """Raises `LabError` when the snapshot has no trace for `device`, or one that contradicts its segments."""
    trace = snapshot.trace(device)
    if not trace:
        raise LabError(f"{snapshot.name}: no trace was recorded for device {device}")
    everyone, held = lives(snapshot, device), held_ranges(snapshot, device)
    # events of one microsecond keep their order: each is at least a nanosecond after the one before
    times = np.asarray([event.time_us for event in trace], dtype=np.float64)
    times = (times - times[0]) / 1000 + np.arange(len(trace)) * 1e-6
    times = np.maximum.accumulate(times + np.linspace(0, 1e-9, len(trace)))
    return Timeline(
        times,
        _running([(life.size, max(life.born, 0), life.freed) for life in everyone], len(trace)),
        _running(
            [(life.size, life.freed, life.done) for life in everyone if life.freed < life.done], len(trace)
        ),
        _running([(range_.size, range_.start, range_.end) for range_ in held], len(trace)),
        _largest_free(everyone, held, len(trace), snapshot.name, device),
        everyone,
        held,
        AddressLine([(range_.addr, range_.addr + range_.size) for range_ in held]),
    )


def _running(pieces: Sequence[tuple[int, int, int]], num_events: int) -> np.ndarray:
    """Sum over (size, start, end) of those with start <= event < end."""
    changes = np.zeros(num_events + 1, dtype=np.int64)
    for size, start, end in pieces:
        changes[start] += size
        changes[min(end, num_events)] -= size
    return np.cumsum(changes)[:num_events]


def _largest_free(
    everyone: list[Life], held: list[Held], num_events: int, name: str, device: int
) -> np.ndarray:
    """After every event. At one event ranges are mapped before blocks are cut from them, and unmapped after blocks have left."""
    todo: list[list[tuple[int, int, int, int, bool]]] = [[] for _ in range(num_events + 1)]
    for range_ in held:
        todo[range_.start].append((0, range_.addr, range_.size, 1, range_.mapped))
        todo[min(range_.end, num_events)].append((3, range_.addr, range_.size, -1, False))
    for life in everyone:
        todo[max(life.born, 0)].append((1, life.addr, life.size, -1, False))
        todo[min(life.done, num_events)].append((2, life.addr, life.size, 1, True))
    holes, largest = _Holes(), np.zeros(num_events, dtype=np.int64)
    for event in range(num_events):
        for order, addr, size, sign, joins in sorted(todo[event]):
            if sign > 0:
                holes.add(addr, addr + size, joins=joins)
            else:
                if not holes.take(addr, addr + size, leaves=order == 3):
                    raise InputError(
                        name, "uses a range that was not free then; the trace does not belong to these segments",
                        field=f"device_traces[{device}][{event}]",
                    )  # fmt: skip
        largest[event] = holes.largest()
    return largest


class _Holes:
    """Free ranges with their neighbours joined, except across the start of a range that came from the device."""

    def __init__(self) -> None:
        self._end: dict[int, int] = {}
        self._start: dict[int, int] = {}
        self._borders: set[int] = set()
        self._heap: list[tuple[int, int]] = []

    def add(self, start: int, end: int, *, joins: bool) -> None:
        if not joins:
            self._borders.add(start)
        else:
            if start in self._start and start not in self._borders:
                start = self._forget(self._start[start])[0]
            if end in self._end and end not in self._borders:
                end = self._forget(end)[1]
        self._put(start, end)

    def take(self, start: int, end: int, *, leaves: bool) -> bool:
        """Cut `[start, end)` out of the hole that holds it; False if none does. `leaves`: it goes back to the device."""
        if leaves:
            self._borders.discard(start)
        owner = (
            start if start in self._end else next((s for s, e in self._end.items() if s <= start < e), None)
        )
        if owner is None or self._end[owner] < end:
            return False
        left, right = self._forget(owner)
        if left < start:
            self._put(left, start)
        if end < right:
            self._put(end, right)
        return True

    def largest(self) -> int:
        while self._heap:
            size, start = self._heap[0]
            if self._end.get(start, start) - start == -size:
                return -size
            heapq.heappop(self._heap)
        return 0

    def _put(self, start: int, end: int) -> None:
        self._end[start], self._start[end] = end, start
        heapq.heappush(self._heap, (start - end, start))

    def _forget(self, start: int) -> tuple[int, int]:
        end = self._end.pop(start)
        del self._start[end]
        return start, end
