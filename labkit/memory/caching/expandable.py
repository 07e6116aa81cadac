"""Expandable segments: one virtual reservation for each pool and stream, mapped page by page as it is needed.

Source: c10/cuda/CUDACachingAllocator.cpp, `struct ExpandableSegment`, `find_expandable_block`,
`try_allocate_expandable_block`, `map_block`, `unmap_block`, PyTorch 2.14.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.memory.caching.blocks import Block, BlockPool, Segment
from labkit.memory.caching.rounding import SMALL_BUFFER
from labkit.memory.caching.splitting import merge

if TYPE_CHECKING:
    from labkit.memory.caching.allocator import CachingAllocator


class ExpandableSegment(Segment):
    """A reservation of 9/8 of the device in whole pages: 2 MiB for small blocks, `large_segment_size` for large ones.

    It begins as one unmapped block. `size` is the reserved range, not the mapped bytes. `num_runs` caches the number
    of contiguous mapped runs (what a snapshot lists as segments); a map or unmap forgets it.
    """

    __slots__ = ("_runs", "page_size")

    def __init__(self, ordinal: int, address: int, size: int, page_size: int, pool: BlockPool, stream: int):
        super().__init__(ordinal, address, size, pool, stream)
        self.page_size = page_size
        self._runs: int | None = 0

    @property
    def num_runs(self) -> int:
        if self._runs is None:
            self._runs = sum(
                block.mapped and (block.prev is None or not block.prev.mapped) for block in self.blocks()
            )
        return self._runs

    def forget_runs(self) -> None:
        self._runs = None


def allocate_expandable(allocator: CachingAllocator, pool: BlockPool, stream: int, size: int) -> Block | None:
    """A mapped block of at least `size` bytes, taken off the free list; None when the device is out of pages.

    What earlier steps mapped stays mapped and free when a later step fails.
    """
    block = _find(allocator, pool, stream, size)
    if not block.mapped and not _map(allocator, block, min(block.size, size)):
        return None
    while block.size < size:  # free, then unmapped, then perhaps more
        hole = block.next
        if hole is None or not _map(allocator, hole, min(size - block.size, hole.size)):
            return None
        block = hole
    pool.remove(block)
    return block


def unmap_free_pages(allocator: CachingAllocator, block: Block) -> None:
    """Give back the whole pages inside a free block; what lies before and after them stays free.

    A reservation that is then entirely unmapped is dropped.
    """
    segment, pool = block.segment, block.pool
    assert isinstance(segment, ExpandableSegment)
    page = segment.page_size
    start = segment.address + -(-(block.offset - segment.address) // page) * page
    end = segment.address + (block.offset + block.size - segment.address) // page * page
    if end <= start:
        return
    allocator.device.unmap_pages((end - start) // page, page)
    pool.remove(block)
    if start > block.offset:
        before = Block(segment, block.offset, start - block.offset, segment)
        before.insert_before(block)
        pool.insert(before)
    if end < block.offset + block.size:
        after = Block(segment, end, block.offset + block.size - end, segment)
        after.insert_after(block)
        pool.insert(after)
    block.offset, block.size, block.mapped = start, end - start, False
    merge(block, block.prev)
    merge(block, block.next)
    pool.insert_unmapped(block)
    segment.forget_runs()
    allocator.count_unreserved(pool, end - start)
    allocator.record("segment_unmap", start, end - start, block.stream, pool.pool_id)
    if not block.is_split:
        pool.remove_unmapped(block)
        allocator.device.release_reservation(segment.address)
        del allocator.segments[segment.ordinal]


def _find(allocator: CachingAllocator, pool: BlockPool, stream: int, size: int) -> Block:
    """Where to begin: the lowest unmapped block of the stream (or the free block just before it) from which
    neighbouring free and unmapped blocks add up to `size`; otherwise a new reservation."""
    for _, unmapped in pool.unmapped.get(stream, ()):
        start = unmapped
        if start.prev is not None and start.prev.is_free:
            start = start.prev
        room, block = 0, start
        while room < size and block is not None and block.is_free:
            room += block.size
            block = block.next  # type: ignore[assignment]
        if room >= size:
            return start
    total = allocator.device.total_bytes
    page = SMALL_BUFFER if pool.is_small else allocator.settings.large_segment_size
    reserved = -(-(total + total // 8) // page) * page
    address = allocator.device.reserve(reserved)
    segment = ExpandableSegment(allocator.next_ordinal(), address, reserved, page, pool, stream)
    block = Block(segment, address, reserved, segment)
    block.mapped = False
    segment.head = block
    allocator.segments[segment.ordinal] = segment
    pool.insert_unmapped(block)
    return block


def _map(allocator: CachingAllocator, block: Block, size: int) -> bool:
    """Map the pages under the first `size` bytes of an unmapped block, which starts on a page boundary, and make them
    one free block with free neighbours. False, and nothing changed, when the device is out of pages."""
    segment, pool = block.segment, block.pool
    assert isinstance(segment, ExpandableSegment)
    num_pages = -(-size // segment.page_size)
    if not allocator.device.map_pages(num_pages, segment.page_size):
        return False
    address, mapped = block.offset, num_pages * segment.page_size
    pool.remove_unmapped(block)
    block.mapped = True
    if mapped < block.size:
        rest = Block(segment, block.offset + mapped, block.size - mapped, segment)
        rest.mapped = False
        rest.insert_after(block)
        pool.insert_unmapped(rest)
        block.size = mapped
    merge(block, block.prev)
    merge(block, block.next)
    pool.insert(block)
    segment.forget_runs()
    allocator.count_reserved(pool, mapped)
    allocator.record("segment_map", address, mapped, block.stream, pool.pool_id)
    return True
