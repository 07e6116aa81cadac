"""Giving cached segments back to the device: all of them, just enough of the oversize ones, or the oldest.

Source: c10/cuda/CUDACachingAllocator.cpp, `release_cached_blocks`, `release_available_cached_blocks`,
`garbage_collect_cached_blocks`, PyTorch 2.14.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from labkit.memory.caching.blocks import Block, BlockPool
from labkit.memory.caching.expandable import unmap_free_pages
from labkit.memory.caching.settings import UNLIMITED

if TYPE_CHECKING:
    from labkit.memory.caching.allocator import CachingAllocator


def release_cached(allocator: CachingAllocator) -> None:
    """`empty_cache`, and the last resort of malloc: wait for pending frees, then return every segment that is wholly
    free (large pool first, each in free-list order) and the whole free pages of expandable ones. Private pools whose
    last user is gone follow."""
    allocator.num_sync_all_streams += 1
    allocator.pending.synchronize()
    _release_pool(allocator, allocator.large_pool)
    _release_pool(allocator, allocator.small_pool)
    for private in allocator.private_pools.without_user():
        _release_pool(allocator, private.small)
        _release_pool(allocator, private.large)
        if not any(segment.pool.pool_id == private.pool_id for segment in allocator.segments.values()):
            del allocator.private_pools[private.pool_id]


def release_oversize(allocator: CachingAllocator, pool: BlockPool, stream: int, size: int) -> bool:
    """With `max_split_size_mb` set: return one free block that would have been long enough; if there is none, return
    those from there down until they add up. True when enough was returned; what was returned stays so.

    Expandable blocks are never returned here, and one that would have been long enough sends the search downwards. The
    same holds for a part of a segment that was cut under a larger `max_split_size_mb`, set before this one: PyTorch does not
    ask and calls `cudaFree` on it, which fails or takes the segment away under its neighbours; that is not copied.
    """
    limit = allocator.settings.max_split_size
    if limit == UNLIMITED:
        return False
    wanted = max(size, limit)
    entries = pool.free.get(stream, [])
    place = bisect_left(entries, (wanted,))
    if place < len(entries) and _is_returnable(entries[place][3]):
        release_segment(allocator, entries[place][3])
        return True
    released = 0
    for _, _, _, block in reversed(entries[:place]):
        if released >= wanted or block.size < limit:
            break
        if _is_returnable(block):
            released += block.size
            release_segment(allocator, block)
    return released >= wanted


def _is_returnable(block: Block) -> bool:
    return block.expandable is None and not block.is_split


def collect_garbage(allocator: CachingAllocator) -> None:
    """Return the longest unused free segments of the large pool while more than the threshold is reserved.

    Age = searches of the pool since the block became free. Each round returns all candidates at least as old as the
    mean age of those that are left; the goal is looked at between rounds, not inside one.
    """
    assert allocator.memory_limit is not None
    threshold = int(allocator.settings.garbage_collection_threshold * allocator.memory_limit)
    goal = allocator.reserved_bytes - threshold
    if goal <= 0:
        return
    pool = allocator.large_pool
    candidates = [b for b in pool.free_blocks() if not b.is_split and b.expandable is None]
    released = 0
    while candidates and released < goal:
        mean_age = sum(map(pool.age, candidates)) / len(candidates)
        old = [block for block in candidates if pool.age(block) >= mean_age]
        if not old:
            return
        candidates = [block for block in candidates if pool.age(block) < mean_age]
        for block in old:
            released += block.size
            release_segment(allocator, block)


def release_segment(allocator: CachingAllocator, block: Block) -> None:
    """`cudaFree` of the segment that a free, unsplit block fills."""
    pool = block.pool
    allocator.record("segment_free", block.offset, block.size, block.stream, pool.pool_id)
    allocator.device.free(block.offset, block.size)
    pool.remove(block)
    allocator.count_unreserved(pool, block.size)
    for stats in (allocator.all_stats, pool.stats):
        stats.segment.decrease(1)
    if block.size >= allocator.settings.max_split_size:
        allocator.oversize_segments.decrease(1)
    del allocator.segments[block.segment.ordinal]


def _release_pool(allocator: CachingAllocator, pool: BlockPool) -> None:
    expandable: list[Block] = []
    for block in pool.free_blocks():
        if block.expandable is not None:
            expandable.append(block)  # unmapping changes the free list, so after the walk
        elif not block.is_split:
            release_segment(allocator, block)
    for block in expandable:
        unmap_free_pages(allocator, block)
