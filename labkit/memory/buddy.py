"""The binary buddy system."""

from __future__ import annotations

from bisect import bisect_left, insort

from labkit.errors import LabError, require
from labkit.memory.base import (
    ALLOCATORS,
    Allocation,
    Allocator,
    AllocatorStats,
    OutOfMemory,
    Span,
    checked_size,
    not_live,
    require_tiling,
)


@ALLOCATORS.register("buddy")
class BuddyAllocator(Allocator):
    """Blocks of 2^k bytes; a block is split in halves until it fits, and merged only with its own other half.

    A request takes the smallest power of two that holds it (never below `min_block_bytes`), so up to half of it may
    be waste; the buddy of a block is `offset XOR size`, so finding it is O(1). Of equal free blocks the lowest is
    taken. malloc and free are O(log(capacity / min_block)) splits or merges, each a binary search in a sorted list.
    A capacity that is not a power of two is covered by a falling row of powers of two, as page allocators do.
    Source: Knowlton, "A fast storage allocator" (CACM 1965); Knuth, TAOCP vol. 1, section 2.5, algorithms R and S.
    """

    name = "buddy"

    def __init__(self, capacity_bytes: int, *, min_block_bytes: int = 512):
        self.capacity_bytes = checked_size(capacity_bytes, "capacity_bytes")
        if checked_size(min_block_bytes, "min_block_bytes") & (min_block_bytes - 1):
            raise LabError(f"min_block_bytes is {min_block_bytes}; it must be a power of two")
        self.min_block_bytes = min_block_bytes
        self._usable = self.capacity_bytes // min_block_bytes * min_block_bytes
        if not self._usable:
            raise LabError(
                f"capacity_bytes {capacity_bytes} is less than one block of {min_block_bytes} bytes"
            )
        #: order k -> offsets of free blocks of 2^k bytes, ascending
        self._free: dict[int, list[int]] = {k: [] for k in range(self._usable.bit_length())}
        offset = 0
        for order in reversed(range(self._usable.bit_length())):
            if self._usable >> order & 1:
                self._free[order].append(offset)
                offset += 1 << order
        self._live: dict[int, Allocation] = {}
        self._allocated_bytes = self._requested_bytes = self._num_ooms = 0

    def malloc(self, size: int, *, tag: str = "", lifetime: str = "") -> Allocation:
        requested = checked_size(size)
        wanted = (max(requested, self.min_block_bytes) - 1).bit_length()
        order = wanted
        while order in self._free and not self._free[order]:
            order += 1
        if order not in self._free:
            self._num_ooms += 1
            raise OutOfMemory.of(requested, self.stats())
        offset = self._free[order].pop(0)
        while order > wanted:
            order -= 1
            insort(self._free[order], offset + (1 << order))
        allocation = Allocation(offset, 1 << wanted, requested, tag, lifetime)
        self._live[offset] = allocation
        self._allocated_bytes += allocation.size
        self._requested_bytes += requested
        return allocation

    def free(self, allocation: Allocation) -> None:
        offset = getattr(allocation, "offset", None)
        if offset is None or self._live.get(offset) is not allocation:
            raise not_live(self, allocation)
        del self._live[offset]
        self._allocated_bytes -= allocation.size
        self._requested_bytes -= allocation.requested
        order = allocation.size.bit_length() - 1
        while True:
            free = self._free[order]
            buddy = offset ^ (1 << order)
            place = bisect_left(free, buddy)
            if place == len(free) or free[place] != buddy:
                insort(free, offset)
                return
            del free[place]
            offset &= ~(1 << order)
            order += 1

    def try_grow(self, allocation: Allocation, size: int) -> bool:
        if self._live.get(allocation.offset) is not allocation:
            raise not_live(self, allocation)
        if checked_size(size) > allocation.size:
            return False
        self._requested_bytes += max(size - allocation.requested, 0)
        allocation.requested = max(size, allocation.requested)
        return True

    def layout(self) -> list[Span]:
        spans = [Span(o, 1 << k, "free") for k, offsets in self._free.items() for o in offsets]
        spans += [
            Span(a.offset, a.size, "allocated", a.requested, a.tag, a.lifetime) for a in self._live.values()
        ]
        return sorted(spans, key=lambda span: span.offset)

    def stats(self) -> AllocatorStats:
        return AllocatorStats(
            capacity_bytes=self.capacity_bytes,
            reserved_bytes=self._usable,
            active_bytes=self._allocated_bytes,
            allocated_bytes=self._allocated_bytes,
            requested_bytes=self._requested_bytes,
            free_bytes=self._usable - self._allocated_bytes,
            num_free_spans=sum(map(len, self._free.values())),
            largest_free_bytes=max((1 << k for k, offsets in self._free.items() if offsets), default=0),
            num_allocations=len(self._live),
            num_ooms=self._num_ooms,
        )

    def check_integrity(self) -> None:
        layout = self.layout()
        require_tiling(layout, self._usable)
        for span in layout:
            require(span.size & (span.size - 1) == 0, "block size is a power of two", span=span)
            require(span.offset % span.size == 0, "block is aligned to its size", span=span)
        for order, offsets in self._free.items():
            require(offsets == sorted(set(offsets)), "free list is sorted", order=order)
            lonely = all(not (o >> order & 1) or (o ^ (1 << order)) not in offsets for o in offsets)
            require(lonely, "free buddies are merged", order=order)
        allocated = sum(a.size for a in self._live.values())
        requested = sum(a.requested for a in self._live.values())
        require(allocated == self._allocated_bytes, "allocated bytes add up", counted=allocated)
        require(requested == self._requested_bytes, "requested bytes add up", counted=requested)
