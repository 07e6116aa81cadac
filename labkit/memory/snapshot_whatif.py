"""What another setting would have changed: the trace of a snapshot, replayed through `CachingAllocator`.

What was live before the trace is allocated first, in address order (how it came to lie there is not recorded), then every alloc and
free of the trace follows. A request that failed in the trace is tried too and, if it now succeeds, given back at once. The
first row replays the recorded setting: its distance from the real bytes says how far the other rows can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from labkit.errors import LabError
from labkit.memory.base import Allocation, OutOfMemory
from labkit.memory.caching import CachingAllocator
from labkit.memory.caching.blocks import DEFAULT_POOL, PoolId
from labkit.memory.snapshot import Snapshot, SnapshotEvent
from labkit.memory.snapshot_trace import MAPS, capacity_of, held_ranges, lives, settings_of
from labkit.units import GIB, MIB

#: what stands in for the device when nothing says how large it is: nothing then fails, and no largest request is given
ENDLESS = 1 << 50
SPLIT_LIMITS_MB = (20, 50, 128, 256, 512)


@dataclass(frozen=True)
class Outcome:
    """One replay. Bytes; `largest_request` is None when the size of the device is not known. `served` counts those of the
    `failed` requests of the trace that now succeed; `new_ooms` requests that succeeded in the trace and now fail."""

    name: str
    conf: str
    peak_reserved: int
    reserved: int
    active: int
    unallocated: int
    largest_request: int | None
    failed: int
    served: int
    new_ooms: int
    num_device_calls: int
    after_empty_cache: int


def what_if(
    snapshot: Snapshot,
    device: int = 0,
    *,
    capacity: int | None = None,
    split_limits_mb: tuple[int, ...] = SPLIT_LIMITS_MB,
) -> list[Outcome]:
    """The recorded setting, the other choice of expandable segments, and the best `max_split_size_mb` of those given.

    `capacity` in bytes where the trace has no out-of-memory that tells it. Raises `LabError` for a snapshot without a trace.
    """
    if not snapshot.trace(device):
        raise LabError(
            f"{snapshot.name}: no trace was recorded for device {device}, so nothing can be replayed"
        )
    capacity = capacity if capacity is not None else capacity_of(snapshot, device)
    steps = list(_steps(snapshot, device, capacity))
    conf = settings_of(snapshot).conf
    expandable = settings_of(snapshot).expandable_segments
    outcomes = [
        _run("as recorded", conf, steps, capacity),
        _run(
            f"expandable_segments:{not expandable}",
            with_setting(conf, "expandable_segments", str(not expandable)),
            steps,
            capacity,
        ),
    ]
    splits = [
        _run(
            f"max_split_size_mb:{limit}", with_setting(conf, "max_split_size_mb", str(limit)), steps, capacity
        )
        for limit in split_limits_mb
    ]
    best = min(splits, key=lambda o: (-o.served, o.new_ooms, o.peak_reserved, o.unallocated), default=None)
    return outcomes + ([best] if best else [])


def with_setting(conf: str, key: str, value: str) -> str:
    """The settings string with one key replaced or added."""
    kept = [part for part in conf.split(",") if part.strip() and part.partition(":")[0].strip() != key]
    return ",".join([*kept, f"{key}:{value}"])


def largest_request(allocator: CachingAllocator, *, up_to: int | None = None) -> int:
    """The largest request (multiple of 2 MiB) of the default pool that succeeds now, found by asking. Uses the allocator up:
    its cache is flushed."""
    low, high = 0, (up_to or allocator.capacity_bytes) // (2 * MIB)
    while low < high:
        middle = (low + high + 1) // 2
        try:
            allocator.free(allocator.malloc(middle * 2 * MIB))
            low = middle
        except OutOfMemory:
            high = middle - 1
    return low * 2 * MIB


#: ("alloc", life, size, stream, pool) | ("free", life) | ("failed", size, stream, pool) | ("empty_cache",)
Step = tuple


def _steps(snapshot: Snapshot, device: int, capacity: int | None) -> Iterator[Step]:
    trace, everyone = snapshot.trace(device), lives(snapshot, device)
    born: dict[int, list[int]] = {}
    done: dict[int, list[int]] = {}
    for number, life in enumerate(everyone):
        if life.born < 0:
            yield ("alloc", number, max(life.requested, 1), life.stream, life.pool_id)
        else:
            born.setdefault(life.born, []).append(number)
        if life.done < len(trace):
            done.setdefault(life.done, []).append(number)
    reserved = sum(range_.size for range_ in held_ranges(snapshot, device) if range_.start == 0)
    reserved -= trace[0].size if MAPS.get(trace[0].action) == 1 else 0
    before = reserved
    for index, event in enumerate(trace):
        for number in born.get(index, ()):
            life = everyone[number]
            yield ("alloc", number, max(life.requested, 1), life.stream, life.pool_id)
        for number in done.get(index, ()):
            yield ("free", number)
        if event.action == "oom":
            yield ("failed", event.size, event.stream, event.pool_id)
        if MAPS.get(event.action) != -1:
            reserved += MAPS.get(event.action, 0) * event.size
            before = reserved
            continue
        reserved -= event.size
        after = trace[index + 1] if index + 1 < len(trace) else None
        if after is None or (MAPS.get(after.action) != -1 and not _was_forced(after, before, capacity)):
            yield ("empty_cache",)


def _was_forced(after: SnapshotEvent, reserved_before: int, capacity: int | None) -> bool:
    """Whether a row of releases that ends before `after` was malloc's own flush (the replay then does it by itself) and not the
    program's `empty_cache`: the device could not hold what `after` asks for on top of what was reserved before the row."""
    if after.action == "oom":
        return True
    return MAPS.get(after.action) == 1 and capacity is not None and reserved_before + after.size > capacity


def _run(name: str, conf: str, steps: list[Step], capacity: int | None) -> Outcome:
    allocator = CachingAllocator(capacity or ENDLESS, alloc_conf=conf)
    pools: dict[PoolId, PoolId] = {}
    live: dict[int, Allocation] = {}
    failed = served = new_ooms = 0

    def malloc(size: int, stream: int, pool_id: PoolId) -> Allocation:
        if pool_id != DEFAULT_POOL and pool_id not in pools:
            pools[pool_id] = allocator.create_pool()
        inside = allocator.use_pool(pools[pool_id]) if pool_id != DEFAULT_POOL else nullcontext()
        with inside:
            return allocator.malloc(size, stream=stream)

    for step in steps:
        if step[0] == "alloc":
            try:
                live[step[1]] = malloc(*step[2:])
            except OutOfMemory:
                new_ooms += 1
        elif step[0] == "free":
            if step[1] in live:
                allocator.free(live.pop(step[1]))
        elif step[0] == "failed":
            failed += 1
            try:
                allocator.free(malloc(*step[1:]))
                served += 1
            except OutOfMemory:
                pass
        else:
            allocator.empty_cache()
    stats = allocator.all_stats
    reserved, active = allocator.reserved_bytes, stats.active_bytes.current
    peak, calls = stats.reserved_bytes.peak, allocator.num_device_alloc + allocator.num_device_free
    allocator.empty_cache()
    after = allocator.reserved_bytes
    largest = largest_request(allocator) if capacity is not None and capacity <= 1024 * GIB else None
    return Outcome(
        name, conf, peak, reserved, active, reserved - active, largest, failed, served, new_ooms, calls, after
    )
