"""The conservation laws of the caching allocator, counted afresh from its segments."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from labkit.errors import require
from labkit.memory.caching.blocks import Block, Segment
from labkit.memory.caching.expandable import ExpandableSegment

if TYPE_CHECKING:
    from labkit.memory.caching.allocator import CachingAllocator


def check(allocator: CachingAllocator) -> None:
    """Blocks tile their segments, free lists hold exactly the free blocks, counters equal what is there."""
    free: set[Block] = set()
    unmapped: set[Block] = set()
    counted: dict[str, Counter[str]] = {family: Counter() for family in ("all", "small_pool", "large_pool")}
    for segment in allocator.segments.values():
        _check_links(segment)
        blocks = list(segment.blocks())
        for block in blocks:
            if not block.mapped:
                unmapped.add(block)
            elif block.is_free:
                free.add(block)
        for family in ("all", "small_pool" if segment.pool.is_small else "large_pool"):
            _count(counted[family], segment, blocks)
    _check_lists(allocator, free, unmapped)
    stats = {
        "all": allocator.all_stats,
        "small_pool": allocator.small_pool.stats,
        "large_pool": allocator.large_pool.stats,
    }
    metrics = (
        "allocation",
        "active",
        "inactive_split",
        "segment",
        "allocated_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
        "reserved_bytes",
    )
    for family, pool_stats in stats.items():
        pool_stats.check(family, {metric: counted[family][metric] for metric in metrics})
    total = counted["all"]
    require(
        total["requested_bytes"] <= total["active_bytes"] <= total["reserved_bytes"],
        "requested <= active <= reserved",
        **total,
    )
    require(
        total["allocated_bytes"] <= total["active_bytes"],
        "allocated <= active",
        **total,
    )
    require(
        allocator.reserved_bytes == total["reserved_bytes"] == allocator.device.used_bytes,
        "reserved bytes are what the device gave",
        reserved=allocator.reserved_bytes,
        counted=total["reserved_bytes"],
        device=allocator.device.used_bytes,
    )
    require(
        allocator.device.used_bytes <= allocator.capacity_bytes,
        "the device is not overdrawn",
        used=allocator.device.used_bytes,
    )


def _check_links(segment: Segment) -> None:
    previous: Block | None = None
    address = segment.address
    for block in segment.blocks():
        require(block.prev is previous, "neighbours point at each other", block=block.offset)
        require(block.offset == address, "blocks tile the segment", at=address, block=block.offset)
        require(block.size > 0, "blocks have a size", block=block.offset)
        require(
            block.segment is segment and block.pool is segment.pool and block.stream == segment.stream,
            "block belongs to its segment's pool and stream",
            block=block.offset,
        )
        if block.allocated:
            require(block.mapped, "allocated blocks are mapped", block=block.offset)
            require(0 < block.requested <= block.size, "requested <= size", block=block)
        if previous is not None and block.is_free and previous.is_free:
            require(block.mapped != previous.mapped, "free neighbours are merged", block=block.offset)
        previous, address = block, block.offset + block.size
    require(
        address == segment.address + segment.size,
        "blocks tile the segment",
        end=address,
        segment=segment.ordinal,
    )


def _check_lists(allocator: CachingAllocator, free: set[Block], unmapped: set[Block]) -> None:
    listed: list[Block] = []
    listed_unmapped: list[Block] = []
    for pool in allocator.pools():
        for stream, entries in pool.free.items():
            require(entries == sorted(entries), "free list is in order", stream=stream)
            for size, ordinal, address, block in entries:
                require(
                    (size, ordinal, address) == (block.size, block.segment.ordinal, block.offset),
                    "free list entry describes its block",
                    entry=(size, ordinal, address),
                    block=(block.size, block.segment.ordinal, block.offset),
                )
                require(
                    block.pool is pool and block.stream == stream,
                    "free block is in its own pool and stream",
                    block=block.offset,
                )
                listed.append(block)
        for pairs in pool.unmapped.values():
            require(
                all(address == block.offset for address, block in pairs),
                "unmapped list entry describes its block",
                entries=[address for address, _ in pairs],
            )
            listed_unmapped += [block for _, block in pairs]
    require(
        len(listed) == len(free) and set(listed) == free,
        "free lists hold the free blocks",
        listed=len(listed),
        free=len(free),
    )
    require(
        len(listed_unmapped) == len(unmapped) and set(listed_unmapped) == unmapped,
        "unmapped lists hold the unmapped blocks",
        listed=len(listed_unmapped),
        unmapped=len(unmapped),
    )


def _count(counted: Counter[str], segment: Segment, blocks: list[Block]) -> None:
    native = not isinstance(segment, ExpandableSegment)
    counted["segment"] += native
    for block in blocks:
        if not block.mapped:
            continue
        counted["reserved_bytes"] += block.size
        if block.allocated:
            counted["allocation"] += 1
            counted["allocated_bytes"] += block.size
        if block.is_free:
            if native and len(blocks) > 1:
                counted["inactive_split"] += 1
                counted["inactive_split_bytes"] += block.size
        else:
            counted["active"] += 1
            counted["active_bytes"] += block.size
            counted["requested_bytes"] += block.requested
