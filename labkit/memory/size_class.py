"""Size classes with slabs."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

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
from labkit.memory.free_spans import FreeSpans
from labkit.units import MIB


@dataclass(eq=False)
class _Slab:
    """`num_slots` equal slots from `offset` on; the rest of the slab behind them is lost while it lives."""

    offset: int
    slot_bytes: int
    num_slots: int
    free_slots: list[int] = field(default_factory=list)  # slot numbers, ascending


@ALLOCATORS.register("size-class")
class SizeClassAllocator(Allocator):
    """Small requests take a slot of a slab that holds only their size class; large ones take a span of their own.

    Classes are four to a doubling (512, 640, 768, 896, 1024, ...), so at most a fifth of a slot is waste above the
    smallest. A request takes the lowest free slot of the lowest slab with room; a slab is cut from the range when
    there is none and goes back when its last slot is free. Requests above `slab_bytes / 8` are rounded to
    `min_class_bytes` and placed best-fit in the range. O(log n) for n slabs or free spans.
    `slab_bytes` defaults to 2 MiB, or a sixteenth of a range below 32 MiB.
    Source: Bonwick, "The Slab Allocator" (USENIX 1994); class spacing as in jemalloc (`SIZE_CLASSES`, Evans 2006).
    """

    name = "size-class"

    def __init__(self, capacity_bytes: int, *, slab_bytes: int | None = None, min_class_bytes: int = 512):
        self.capacity_bytes = checked_size(capacity_bytes, "capacity_bytes")
        self.min_class_bytes = checked_size(min_class_bytes, "min_class_bytes")
        unit = self.min_class_bytes
        if slab_bytes is None:
            slab_bytes = max(min(2 * MIB, self.capacity_bytes // 16) // unit, 1) * unit
        self.slab_bytes = checked_size(slab_bytes, "slab_bytes")
        self._usable = self.capacity_bytes // unit * unit
        if not unit <= self.slab_bytes <= self._usable or self.slab_bytes % unit:
            raise LabError(
                f"slab_bytes is {self.slab_bytes}; it must be a multiple of min_class_bytes ({unit}) up to the capacity "
                f"({self._usable})"
            )
        self.max_class_bytes = self.slab_bytes // 8
        self._spans = FreeSpans(self._usable)
        self._partial: dict[
            int, list[tuple[int, _Slab]]
        ] = {}  # slot size -> slabs with a free slot, by offset
        self._slabs: dict[int, _Slab] = {}  # offset -> slab
        self._live: dict[int, tuple[Allocation, _Slab | None]] = {}
        self._free_slot_bytes = self._num_free_slots = self._allocated_bytes = 0
        self._requested_bytes = self._num_ooms = 0

    def size_class(self, size: int) -> int:
        """Slot size for a request: the smallest of `unit * 2^k * {4,5,6,7}/4` that holds it (`unit` itself at least)."""
        unit = self.min_class_bytes
        if size <= unit:
            return unit
        base = unit << ((size - 1) // unit).bit_length() - 1  # base < size <= 2 * base
        step = max(base // 4, 1)
        return base + -(-(size - base) // step) * step

    def malloc(self, size: int, *, tag: str = "", lifetime: str = "") -> Allocation:
        requested = checked_size(size)
        slot = self.size_class(requested)
        if slot <= self.max_class_bytes:
            slab = self._slab_with_room(slot)
            number = slab.free_slots.pop(0)
            if not slab.free_slots:
                self._drop_partial(slab)
            self._free_slot_bytes -= slot
            self._num_free_slots -= 1
            allocation, owner = Allocation(slab.offset + number * slot, slot, requested, tag, lifetime), slab
        else:
            size = -(-requested // self.min_class_bytes) * self.min_class_bytes
            allocation = Allocation(self._take_span(size, requested), size, requested, tag, lifetime)
            owner = None
        self._live[allocation.offset] = (allocation, owner)
        self._allocated_bytes += allocation.size
        self._requested_bytes += requested
        return allocation

    def free(self, allocation: Allocation) -> None:
        slab = self._owner(allocation)
        del self._live[allocation.offset]
        self._allocated_bytes -= allocation.size
        self._requested_bytes -= allocation.requested
        if slab is None:
            self._spans.give(allocation.offset, allocation.size)
            return
        if not slab.free_slots:
            insort(self._partial.setdefault(slab.slot_bytes, []), (slab.offset, slab))
        insort(slab.free_slots, (allocation.offset - slab.offset) // slab.slot_bytes)
        self._free_slot_bytes += slab.slot_bytes
        self._num_free_slots += 1
        if len(slab.free_slots) == slab.num_slots:
            self._drop_partial(slab)
            del self._slabs[slab.offset]
            self._free_slot_bytes -= slab.slot_bytes * slab.num_slots
            self._num_free_slots -= slab.num_slots
            self._spans.give(slab.offset, self.slab_bytes)

    def try_grow(self, allocation: Allocation, size: int) -> bool:
        self._owner(allocation)
        if checked_size(size) > allocation.size:
            return False
        self._requested_bytes += max(size - allocation.requested, 0)
        allocation.requested = max(size, allocation.requested)
        return True

    def layout(self) -> list[Span]:
        """Each free slot is a span of its own: it serves its size class only, however many lie side by side."""
        spans = [Span(offset, size, "free") for offset, size in self._spans.size_at.items()]
        for slab in self._slabs.values():
            spans += [
                Span(slab.offset + n * slab.slot_bytes, slab.slot_bytes, "free") for n in slab.free_slots
            ]
            used = slab.num_slots * slab.slot_bytes
            if used < self.slab_bytes:
                spans.append(Span(slab.offset + used, self.slab_bytes - used, "free"))
        spans += [
            Span(a.offset, a.size, "allocated", a.requested, a.tag, a.lifetime)
            for a, _ in self._live.values()
        ]
        return sorted(spans, key=lambda span: span.offset)

    def stats(self) -> AllocatorStats:
        tails = [self.slab_bytes % slot for slot in self._slot_sizes() if self.slab_bytes % slot]
        return AllocatorStats(
            capacity_bytes=self.capacity_bytes,
            reserved_bytes=self._usable,
            active_bytes=self._allocated_bytes,
            allocated_bytes=self._allocated_bytes,
            requested_bytes=self._requested_bytes,
            free_bytes=self._usable - self._allocated_bytes,
            num_free_spans=len(self._spans.starts) + self._num_free_slots + len(tails),
            largest_free_bytes=max(
                [self._spans.largest_bytes, *(s for s in self._partial if self._partial[s]), *tails]
            ),
            num_allocations=len(self._live),
            num_ooms=self._num_ooms,
        )

    def check_integrity(self) -> None:
        self._spans.check_integrity(self._usable)
        require_tiling(self.layout(), self._usable)
        partial = {slab for slabs in self._partial.values() for _, slab in slabs}
        for slab in self._slabs.values():
            require(len(slab.free_slots) < slab.num_slots, "empty slabs are returned", slab=slab)
            require(bool(slab.free_slots) == (slab in partial), "slabs with room are listed", slab=slab)
            require(slab.free_slots == sorted(set(slab.free_slots)), "free slots are in order", slab=slab)
        require(partial <= set(self._slabs.values()), "listed slabs exist", partial=len(partial))
        slots = [len(slab.free_slots) for slab in self._slabs.values()]
        slot_bytes = sum(len(slab.free_slots) * slab.slot_bytes for slab in self._slabs.values())
        require(sum(slots) == self._num_free_slots, "free slots add up", counted=sum(slots))
        require(slot_bytes == self._free_slot_bytes, "free slot bytes add up", counted=slot_bytes)
        allocated = sum(a.size for a, _ in self._live.values())
        requested = sum(a.requested for a, _ in self._live.values())
        require(allocated == self._allocated_bytes, "allocated bytes add up", counted=allocated)
        require(requested == self._requested_bytes, "requested bytes add up", counted=requested)

    def _slot_sizes(self) -> list[int]:
        return [slab.slot_bytes for slab in self._slabs.values()]

    def _slab_with_room(self, slot: int) -> _Slab:
        partial = self._partial.get(slot)
        if partial:
            return partial[0][1]
        num_slots = self.slab_bytes // slot
        slab = _Slab(self._take_span(self.slab_bytes, slot), slot, num_slots, list(range(num_slots)))
        self._slabs[slab.offset] = slab
        self._partial.setdefault(slot, []).append((slab.offset, slab))
        self._free_slot_bytes += slot * num_slots
        self._num_free_slots += num_slots
        return slab

    def _drop_partial(self, slab: _Slab) -> None:
        listed = self._partial[slab.slot_bytes]
        del listed[bisect_left(listed, (slab.offset,))]

    def _take_span(self, size: int, requested: int) -> int:
        """Best fit in the range, for a slab or a large request."""
        by_size = self._spans.by_size
        place = bisect_left(by_size, (size, -1))
        if place == len(by_size):
            self._num_ooms += 1
            raise OutOfMemory.of(requested, self.stats())
        offset = by_size[place][1]
        self._spans.take(offset, size)
        return offset

    def _owner(self, allocation: Allocation) -> _Slab | None:
        found = self._live.get(getattr(allocation, "offset", -1))
        if found is None or found[0] is not allocation:
            raise not_live(self, allocation)
        return found[1]
