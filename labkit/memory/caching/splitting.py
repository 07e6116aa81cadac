"""Cutting a free block for a caller, and joining a freed one with its neighbours.

Source: c10/cuda/CUDACachingAllocator.cpp, `should_split`, `alloc_found_block`, `free_block`, `try_merge_blocks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.memory.caching.blocks import Block
from labkit.memory.caching.rounding import MIN_BLOCK_SIZE, SMALL_SIZE

if TYPE_CHECKING:
    from labkit.memory.caching.allocator import CachingAllocator


def cut(allocator: CachingAllocator, block: Block, size: int) -> Block:
    """A fresh block for the caller at the low end of `block`; the rest goes back to the free list if it is worth
    splitting off.

    | pool                          | split off when the rest is                                       |
    |-------------------------------|------------------------------------------------------------------|
    | small, or segments expandable | at least 512 bytes                                               |
    | large                         | more than 1 MiB, and `size` is below `max_split_size_mb`         |
    """
    pool, remaining = block.pool, block.size - size
    was_split = block.prev is not None or block.next is not None
    if pool.is_small or allocator.settings.expandable_segments:
        split = remaining >= MIN_BLOCK_SIZE
    else:
        split = remaining > SMALL_SIZE and size < allocator.settings.max_split_size
    counted = (allocator.all_stats, pool.stats) if block.expandable is None else ()
    if not split:
        taken = Block(block.segment, block.offset, block.size, block.expandable)
        taken.take_place_of(block)
        if was_split:
            for stats in counted:
                stats.inactive_split.decrease(1)
                stats.inactive_split_bytes.decrease(block.size)
        return taken
    taken = Block(block.segment, block.offset, size, block.expandable)
    taken.insert_before(block)
    block.offset += size
    block.size = remaining
    pool.insert(block)
    for stats in counted:
        if was_split:
            stats.inactive_split_bytes.decrease(size)
        else:
            stats.inactive_split.increase(1)
            stats.inactive_split_bytes.increase(remaining)
    return taken


def free_block(allocator: CachingAllocator, block: Block) -> None:
    """Merge with the previous, then the next neighbour, and go back to the free list."""
    pool, size, requested = block.pool, block.size, block.requested
    allocator.record("free_completed", block.offset, requested, block.stream, pool.pool_id)
    num_split = split_bytes = 0
    for neighbour in (block.prev, block.next):
        merged = merge(block, neighbour)
        if merged:
            num_split -= 1
            split_bytes -= merged
    pool.insert(block)
    if block.prev is not None or block.next is not None:
        num_split += 1
        split_bytes += block.size
    for stats in (allocator.all_stats, pool.stats):
        if block.expandable is None:  # PyTorch leaves expandable segments out of these two
            stats.inactive_split.change(num_split)
            stats.inactive_split_bytes.change(split_bytes)
        stats.active.decrease(1)
        stats.active_bytes.decrease(size)
        stats.requested_bytes.decrease(requested)


def merge(block: Block, neighbour: Block | None) -> int:
    """Swallow a neighbour in the same segment that is free and equally mapped; returns its size, or 0."""
    if neighbour is None or neighbour.allocated or neighbour.num_events or neighbour.mapped != block.mapped:
        return 0
    if neighbour.mapped:
        block.pool.remove(neighbour)
    else:
        block.pool.remove_unmapped(neighbour)
    block.swallow(neighbour)
    return neighbour.size
