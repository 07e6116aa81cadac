"""Replays a recording of PyTorch's allocator (format `cuda-caching-allocator-golden/1`) on `CachingAllocator` and
compares every recorded field. docs/recordings.md describes the format."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from typing import Any

from labkit.errors import InputError
from labkit.memory.base import Allocation, OutOfMemory
from labkit.memory.caching.allocator import CachingAllocator
from labkit.memory.caching.blocks import Block
from labkit.memory.caching.device import AddressPolicy, SimulatedDevice
from labkit.memory.caching.expandable import ExpandableSegment
from labkit.memory.caching.history import DEVICE_ACTIONS
from labkit.recording import Comparison

FORMAT = "cuda-caching-allocator-golden/1"
#: the release that the model equals; a recording of another one shows as a difference in these two fields
RELEASE = {"torch_version": "2.14.1+cu130", "torch_git": "5c4886908584029761b579af026dcfb627c84070"}
COLUMNS = (
    ["status", "addr", "seg", "off", "block_size", "reserved_bytes", "allocated_bytes", "requested_bytes"]
    + ["active_bytes", "inactive_split_bytes", "inactive_split_blocks", "segments", "snapshot_segments"]
    + [
        "num_ooms",
        "num_alloc_retries",
        "num_device_alloc",
        "num_device_free",
        "largest_free_block",
        "free_blocks",
    ]
)
_DIGEST_EVERY = 100


def replay(recording: dict[str, Any], max_kept: int = 20) -> Comparison:
    """Every row, device event, layout digest, reservation, and the final layout, device counters and statistics."""
    check_shape(recording)
    comparison = Comparison(FORMAT, max_kept=max_kept)
    policy, top = _heap(recording)
    run = Run(recording, streams=_stream_handles(recording), address_policy=policy, heap_top=top)
    for key, release in RELEASE.items():
        comparison.compare(key, recording.get(key, "<absent>"), release)
    comparison.compare("columns", recording["columns"], COLUMNS)
    for index, (op, row) in enumerate(zip(recording["ops"], recording["rows"], strict=True)):
        values = run.step(op)
        comparison.num_ops += 1
        for column, recorded, replayed in zip(COLUMNS, row, values, strict=False):
            if recorded != replayed:
                comparison.compare(f"rows[{index}].{column}", recorded, replayed)
    comparison.compare("events", recording["events"], run.events)
    comparison.compare("layout_digests", recording["layout_digests"], run.digests)
    comparison.compare("reservations", recording["reservations"], [list(r) for r in run.device.reservations])
    final = {"segments": run.final_segments(), "device": run.device.counters(), "stats": run.final_stats()}
    comparison.compare("final", recording["final"], final)
    return comparison


class Run:
    """One pass over the operations. The recorded stream indices 0 and 1 become the handles `streams`."""

    def __init__(
        self,
        recording: dict[str, Any],
        *,
        streams: tuple[int, int] = (0, 1),
        address_policy: AddressPolicy | None = None,
        heap_top: int = 0,
    ):
        config = recording["config"]
        policy: AddressPolicy = address_policy or config["address_policy"]
        self.allocator = CachingAllocator(
            config["total_memory"],
            alloc_conf=config["alloc_conf"],
            memory_fraction=config["memory_fraction"],
            address_policy=policy,
        )
        self.device = self.allocator.device = SimulatedDevice(config["total_memory"], policy, heap_top)
        self.history = self.allocator.history = []
        self.streams = streams
        self.live: dict[int, Allocation | None] = {}
        self.events: list[list[Any]] = []
        self.digests: list[list[Any]] = []
        self.num_ops = 0

    def step(self, op: list[Any]) -> list[Any]:
        """Apply one operation; returns the values of `COLUMNS` after it."""
        placed = self._apply(op)
        self.events += [
            [self.num_ops, entry.action, entry.addr, entry.size]
            for entry in self.history
            if entry.action in DEVICE_ACTIONS
        ]
        self.history.clear()
        self.num_ops += 1
        if self.num_ops % _DIGEST_EVERY == 0:
            text = json.dumps(self._layout(), separators=(",", ":"))
            self.digests.append([self.num_ops, hashlib.sha256(text.encode()).hexdigest()])
        return placed + self._statistics()

    def final_segments(self) -> list[dict[str, Any]]:
        return [
            {
                "addr": addr,
                "total_size": size,
                "pool": pool,
                "stream": stream,
                "expandable": bool(expandable),
                "blocks": [
                    dict(zip(("offset", "size", "requested", "state"), block, strict=True))
                    for block in blocks
                ],
            }
            for addr, size, pool, stream, expandable, blocks in self._layout()
        ]

    def final_stats(self) -> dict[str, int]:
        """The statistics that a recording keeps: all blocks together, no pinned or oversize counters."""
        stats = self.allocator.memory_stats()
        return {key: stats[key] for key in sorted(stats) if ".all." in key or "." not in key}

    def _apply(self, op: list[Any]) -> list[Any]:
        """status, addr, seg, off, block_size"""
        if op[0] == "empty_cache":
            self.allocator.empty_cache()
            return ["ok", None, None, None, None]
        if op[0] == "free":
            allocation = self.live.pop(op[1], None)
            if allocation is None:
                return ["skipped", None, None, None, None]
            address = allocation.offset
            self.allocator.free(allocation)
            return ["ok", address, None, None, None]
        _, name, size, *stream = op
        if size == 0:  # PyTorch hands out a null pointer and touches nothing
            return ["ok", None, None, None, None]
        try:
            block = self.allocator.malloc(size, stream=self.streams[stream[0] if stream else 0])
        except OutOfMemory:
            return ["oom", None, None, None, None]
        assert isinstance(block, Block)
        self.live[name] = block
        segment = block.segment
        return ["ok", block.offset, segment.ordinal, block.offset - segment.address, block.size]

    def _statistics(self) -> list[int]:
        allocator, stats = self.allocator, self.allocator.all_stats
        return [
            stats.reserved_bytes.current,
            stats.allocated_bytes.current,
            stats.requested_bytes.current,
            stats.active_bytes.current,
            stats.inactive_split_bytes.current,
            stats.inactive_split.current,
            stats.segment.current,
            sum(s.num_runs if isinstance(s, ExpandableSegment) else 1 for s in allocator.segments.values()),
            allocator.num_ooms,
            allocator.num_alloc_retries,
            allocator.num_device_alloc,
            allocator.num_device_free,
            allocator.largest_free_block,
            allocator.num_free_blocks,
        ]

    def _layout(self) -> list[list[Any]]:
        """[addr, total_size, pool, stream, expandable, [[offset, size, requested, state], ...]] by address; a
        contiguous mapped run of an expandable segment counts as one segment."""
        rows = []
        for segment in self.allocator.segments.values():
            expandable = int(isinstance(segment, ExpandableSegment))
            for run in _mapped_runs(segment.blocks()):
                start = run[0].offset
                blocks = [
                    [b.offset - start, b.size, 0 if b.state == "inactive" else b.requested, b.state]
                    for b in run
                ]
                size = sum(block.size for block in run)
                pool = "small" if segment.pool.is_small else "large"
                rows.append([start, size, pool, segment.stream, expandable, blocks])
        return sorted(rows, key=lambda row: row[0])


def _mapped_runs(blocks: Any) -> list[list[Block]]:
    runs: list[list[Block]] = []
    previous_mapped = False
    for block in blocks:
        if block.mapped:
            if not previous_mapped:
                runs.append([])
            runs[-1].append(block)
        previous_mapped = block.mapped
    return runs


def _stream_handles(recording: dict[str, Any]) -> tuple[int, int]:
    """The driver's handles of the two streams: like addresses they are its own, and no decision depends on their
    values. Read off the final layout: the handle of the segment where most allocations of each stream lie."""
    if not recording["config"]["two_streams"]:
        return 0, 1
    segments = sorted(
        (s["addr"], s["addr"] + s["total_size"], s["stream"]) for s in recording["final"]["segments"]
    )
    votes: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for op, row in zip(recording["ops"], recording["rows"], strict=True):
        if op[0] == "alloc" and isinstance(row[1], int):
            place = bisect_right(segments, (row[1], 1 << 63)) - 1
            if place >= 0 and row[1] < segments[place][1]:
                votes[op[3] if len(op) == 4 else 0][segments[place][2]] += 1
    first = votes[0].most_common(1)[0][0] if votes[0] else 0
    return first, votes[1].most_common(1)[0][0] if votes[1] else first + 1


def _heap(recording: dict[str, Any]) -> tuple[AddressPolicy, int]:
    """How the driver placed segments, and where its heap ends when it grows downwards: the distance that most
    recorded addresses have from those of a heap that ends at 0. A descending heap may reuse gaps or not; the way that
    agrees with more recorded addresses is taken. The other policies begin at 0."""
    if recording["config"]["address_policy"] != "descending":
        return recording["config"]["address_policy"], 0
    best: tuple[int, AddressPolicy, int] = (-1, "descending", 0)
    policies: tuple[AddressPolicy, AddressPolicy] = ("descending", "last-fit")
    for policy in policies:
        run = Run(recording, address_policy=policy)
        distances = Counter(
            row[1] - values[1]
            for row, values in zip(recording["rows"], map(run.step, recording["ops"]), strict=True)
            if isinstance(row[1], int) and values[1] is not None
        )
        for top, num_agreeing in distances.most_common(1):
            best = max(best, (num_agreeing, policy, top), key=lambda found: found[0])
    return best[1], best[2]


def check_shape(recording: dict[str, Any]) -> None:
    """One sentence for a file that is not such a recording."""
    where = recording.get("name", "recording")
    for key, kind in {
        "config": dict,
        "ops": list,
        "columns": list,
        "rows": list,
        "events": list,
        "layout_digests": list,
        "reservations": list,
        "final": dict,
    }.items():
        if not isinstance(recording.get(key), kind):
            raise InputError(where, f"is missing or not a {kind.__name__}", field=key)
    for key in ("total_memory", "alloc_conf", "memory_fraction", "address_policy", "two_streams"):
        if key not in recording["config"]:
            raise InputError(where, "is missing", field=f"config.{key}")
    if len(recording["ops"]) != len(recording["rows"]):
        raise InputError(
            where, f"has {len(recording['rows'])} rows for {len(recording['ops'])} operations", field="rows"
        )
    for index, op in enumerate(recording["ops"]):
        accepted = (
            isinstance(op, list)
            and op
            and {"alloc": len(op) in (3, 4), "free": len(op) == 2, "empty_cache": len(op) == 1}.get(op[0])
            and all(isinstance(value, int) and value >= 0 for value in op[1:])
            and (len(op) < 4 or op[3] in (0, 1))
        )
        if not accepted:
            raise InputError(
                where, f"is {op!r}; an alloc, free or empty_cache is expected", row=index, field="ops"
            )
        if not isinstance(recording["rows"][index], list) or len(recording["rows"][index]) != len(COLUMNS):
            raise InputError(where, f"is not a list of {len(COLUMNS)} values", row=index, field="rows")
    if not isinstance(recording["final"].get("segments"), list):
        raise InputError(where, "is missing or not a list", field="final.segments")
