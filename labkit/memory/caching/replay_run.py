"""One pass over a recording's operations on `CachingAllocator`: the values of every column after each of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from labkit.memory.base import Allocation, OutOfMemory
from labkit.memory.caching.allocator import CachingAllocator
from labkit.memory.caching.blocks import Block
from labkit.memory.caching.device import AddressPolicy, SimulatedDevice
from labkit.memory.caching.expandable import ExpandableSegment
from labkit.memory.caching.history import DEVICE_ACTIONS

#: operations between two digests of the layout
_DIGEST_EVERY = 100


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
        """The layout as a recording keeps it at its end."""
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
