"""How malloc finds a block: the free list, then the device, then the device after giving something back.

Source: c10/cuda/CUDACachingAllocator.cpp, `malloc`, `get_free_block`, `alloc_block`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from labkit.memory.caching.blocks import Block, BlockPool, FreeEntry, Segment
from labkit.memory.caching.expandable import allocate_expandable
from labkit.memory.caching.release import collect_garbage, release_cached, release_oversize
from labkit.memory.caching.rounding import device_size

if TYPE_CHECKING:
    from labkit.memory.caching.allocator import CachingAllocator


def find_free(allocator: CachingAllocator, pool: BlockPool, stream: int, size: int) -> Block | None:
    """Best fit in the free list of the stream, taken off it.

    With `max_split_size_mb` M: a request below M takes no block of M or more; one of at least M takes no block that is
    longer by `max_non_split_rounding_mb` or more. Only the first candidate is looked at.
    """
    settings = allocator.settings
    if settings.garbage_collection_threshold and allocator.memory_limit is not None:
        pool.num_searches += 1
    entries = pool.free.get(stream)
    if not entries:
        return None
    place = bisect_left(entries, (size,))
    if place == len(entries):
        return None
    block = entries[place][3]
    if block.expandable is not None:
        place = _among_expandable(allocator, entries, place)
        if place == len(entries):
            return None
        block = entries[place][3]
    limit = settings.max_split_size
    if size < limit:
        if block.size >= limit:
            return None
    elif block.size >= size + settings.max_non_split_rounding_size:
        return None
    del entries[place]
    return block


def from_device(allocator: CachingAllocator, pool: BlockPool, stream: int, size: int) -> Block | None:
    """The attempts after the free list had nothing, in PyTorch's order; None after the last."""
    if allocator.memory_limit is not None and allocator.settings.garbage_collection_threshold > 0:
        collect_garbage(allocator)
    block = _ask_device(allocator, pool, stream, size)
    if block is None and release_oversize(allocator, pool, stream, size):
        block = _ask_device(allocator, pool, stream, size)
    if block is None:
        release_cached(allocator)
        allocator.num_alloc_retries += 1  # whether or not anything was released, and whether or not it works
        block = _ask_device(allocator, pool, stream, size)
    return block


def _ask_device(allocator: CachingAllocator, pool: BlockPool, stream: int, size: int) -> Block | None:
    """One attempt. With a memory fraction the device is not asked beyond the limit; the size that counts is that of a
    native segment even when segments are expandable."""
    asked = device_size(size, allocator.settings)
    if allocator.memory_limit is not None and allocator.reserved_bytes + asked > allocator.memory_limit:
        return None
    if allocator.settings.expandable_segments:
        return allocate_expandable(allocator, pool, stream, size)
    address = allocator.device.malloc(asked)
    if address is None:
        return None
    segment = Segment(allocator.next_ordinal(), address, asked, pool, stream)
    block = segment.head = Block(segment, address, asked)
    allocator.segments[segment.ordinal] = segment
    allocator.count_reserved(pool, asked)
    for stats in (allocator.all_stats, pool.stats):
        stats.segment.increase(1)
    if asked >= allocator.settings.max_split_size:
        allocator.oversize_segments.increase(1)
    allocator.record("segment_alloc", address, asked, stream, pool.pool_id)
    return block


def _among_expandable(allocator: CachingAllocator, entries: list[FreeEntry], place: int) -> int:
    """An expandable block counts with the size it can grow to: go on while the next one can grow less. When the
    setting was turned off meanwhile, pass over all expandable ones."""
    if not allocator.settings.expandable_segments:
        while place < len(entries) and entries[place][3].expandable is not None:
            place += 1
        return place
    while place + 1 < len(entries) and entries[place][3].expandable is not None:
        if _growth(entries[place + 1][3]) >= _growth(entries[place][3]):
            break
        place += 1
    return place


def _growth(block: Block) -> int:
    """The size a block can reach: its own and that of the unmapped block right after it."""
    behind = block.next
    return block.size + (behind.size if behind is not None and not behind.mapped else 0)
