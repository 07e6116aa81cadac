"""What the four fit allocators share. A variant is one method: which free span to cut."""

from __future__ import annotations

from abc import abstractmethod

from labkit.errors import LabError, require
from labkit.memory.base import (
    Allocation,
    Allocator,
    AllocatorStats,
    OutOfMemory,
    Span,
    checked_size,
    not_live,
    require_tiling,
)
from labkit.memory.free_spans import FreeSpans


class FitAllocator(Allocator):
    """One contiguous range, cut at exactly the requested length (rounded up to `alignment_bytes`).

    The allocated part is the low end of the chosen span; a freed range merges with free neighbours at once.
    """

    def __init__(self, capacity_bytes: int, *, alignment_bytes: int = 1):
        self.capacity_bytes = checked_size(capacity_bytes, "capacity_bytes")
        self.alignment_bytes = checked_size(alignment_bytes, "alignment_bytes")
        usable = self.capacity_bytes // self.alignment_bytes * self.alignment_bytes
        if not usable:
            raise LabError(f"alignment_bytes {alignment_bytes} is more than the capacity {capacity_bytes}")
        self.free_spans = FreeSpans(usable)
        self._usable = usable
        self._live: dict[int, Allocation] = {}
        self._requested_bytes = 0
        self._num_ooms = 0

    @abstractmethod
    def choose(self, size: int) -> int | None:
        """Offset of a free span of at least `size` bytes, or None. At least one is long enough when this is called."""

    def malloc(self, size: int, *, tag: str = "", lifetime: str = "") -> Allocation:
        requested = checked_size(size)
        size = self._round(requested)
        spans = self.free_spans
        offset = self.choose(size) if spans.largest_bytes >= size else None
        if offset is None:
            self._num_ooms += 1
            raise OutOfMemory.of(requested, self.stats())
        spans.take(offset, size)
        allocation = Allocation(offset, size, requested, tag, lifetime)
        self._live[offset] = allocation
        self._requested_bytes += requested
        return allocation

    def free(self, allocation: Allocation) -> None:
        offset = getattr(allocation, "offset", None)
        if offset is None or self._live.get(offset) is not allocation:
            raise not_live(self, allocation)
        del self._live[offset]
        self._requested_bytes -= allocation.requested
        self.free_spans.give(offset, allocation.size)

    def try_grow(self, allocation: Allocation, size: int) -> bool:
        if self._live.get(allocation.offset) is not allocation:
            raise not_live(self, allocation)
        extra = self._round(checked_size(size)) - allocation.size
        if extra > 0:
            if self.free_spans.size_at.get(allocation.offset + allocation.size, 0) < extra:
                return False
            self.free_spans.take(allocation.offset + allocation.size, extra)
            allocation.size += extra
        grown = max(size, allocation.requested)
        self._requested_bytes += grown - allocation.requested
        allocation.requested = grown
        return True

    def layout(self) -> list[Span]:
        spans = [Span(o, s, "free") for o, s in self.free_spans.size_at.items()]
        spans += [
            Span(a.offset, a.size, "allocated", a.requested, a.tag, a.lifetime) for a in self._live.values()
        ]
        return sorted(spans, key=lambda span: span.offset)

    def stats(self) -> AllocatorStats:
        allocated = self._usable - self.free_spans.total_bytes
        return AllocatorStats(
            capacity_bytes=self.capacity_bytes,
            reserved_bytes=self._usable,
            active_bytes=allocated,
            allocated_bytes=allocated,
            requested_bytes=self._requested_bytes,
            free_bytes=self.free_spans.total_bytes,
            num_free_spans=len(self.free_spans.starts),
            largest_free_bytes=self.free_spans.largest_bytes,
            num_allocations=len(self._live),
            num_ooms=self._num_ooms,
        )

    def check_integrity(self) -> None:
        self.free_spans.check_integrity(self._usable)
        require_tiling(self.layout(), self._usable)
        requested = sum(a.requested for a in self._live.values())
        require(requested == self._requested_bytes, "requested bytes add up", requested=self._requested_bytes)

    def _round(self, size: int) -> int:
        return -(-size // self.alignment_bytes) * self.alignment_bytes
