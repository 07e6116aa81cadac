"""Virtual ranges with physical granules behind them: contiguous to the reader, anywhere in memory."""

from __future__ import annotations

from bisect import insort

from labkit.errors import require
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


@ALLOCATORS.register("virtual-memory")
class VirtualMemoryAllocator(Allocator):
    """An allocation is a range of virtual addresses; physical granules are mapped under its first bytes only.

    `malloc(size, reserve=most)` reserves `most` bytes of addresses (default: `size`) and maps granules for `size`;
    `try_grow` maps more granules in place, `shrink` unmaps from the end, `free` unmaps all and drops the range.
    Any free granule serves any allocation, so the only waste is the last granule of each. `Allocation.size` is what
    is mapped now; `Allocation.offset` is a virtual address. Addresses are first-fit in a virtual range of
    `virtual_bytes` (default: 64 times the capacity), and cost nothing.
    malloc, grow, shrink: O(granules) + O(sqrt n) for n free virtual spans.
    Source: Prabhu et al., "vAttention: Dynamic Memory Management for Serving LLMs without PagedAttention"
    (ASPLOS 2025); CUDA driver API, cuMemAddressReserve / cuMemCreate / cuMemMap (granules of 2 MiB).
    """

    name = "virtual-memory"

    def __init__(
        self, capacity_bytes: int, *, granule_bytes: int = 2 * MIB, virtual_bytes: int | None = None
    ):
        self.capacity_bytes = checked_size(capacity_bytes, "capacity_bytes")
        self.granule_bytes = checked_size(granule_bytes, "granule_bytes")
        self.virtual_bytes = checked_size(virtual_bytes or 64 * self.capacity_bytes, "virtual_bytes")
        self._virtual = FreeSpans(max(self.virtual_bytes // granule_bytes, 1) * granule_bytes)
        self._free_granules = list(range(self.capacity_bytes // granule_bytes))  # physical numbers, ascending
        self._num_granules = len(self._free_granules)
        self._live: dict[int, Allocation] = {}
        self._reserved: dict[int, int] = {}  # offset -> bytes of addresses
        self._granules: dict[int, list[int]] = {}  # offset -> physical granules in virtual order
        self._requested_bytes = self._num_ooms = 0
        #: granules ever mapped and unmapped: each is a driver call of tens of microseconds
        self.num_maps = self.num_unmaps = 0

    def malloc(
        self, size: int, *, tag: str = "", lifetime: str = "", reserve: int | None = None
    ) -> Allocation:
        requested = checked_size(size)
        addresses = self._round(max(requested, checked_size(reserve or requested, "reserve")))
        offset = self._virtual.lowest_fit(addresses)
        num_granules = self._round(requested) // self.granule_bytes
        if offset is None or num_granules > len(self._free_granules):
            self._num_ooms += 1
            free = len(self._free_granules) * self.granule_bytes
            fits = free if offset is not None else min(free, self._virtual.largest_bytes)
            raise OutOfMemory(
                requested,
                capacity=self.capacity_bytes,
                reserved=self._mapped_bytes,
                allocated=self._mapped_bytes,
                free=free,
                num_free_spans=len(self._free_granules),
                largest_free=fits,
            )
        self._virtual.take(offset, addresses)
        allocation = Allocation(offset, 0, requested, tag, lifetime)
        self._live[offset], self._reserved[offset], self._granules[offset] = allocation, addresses, []
        self._map(allocation, num_granules)
        self._requested_bytes += requested
        return allocation

    def free(self, allocation: Allocation) -> None:
        self._check_live(allocation)
        self._unmap(allocation, len(self._granules[allocation.offset]))
        self._requested_bytes -= allocation.requested
        del self._live[allocation.offset], self._granules[allocation.offset]
        self._virtual.give(allocation.offset, self._reserved.pop(allocation.offset))

    def try_grow(self, allocation: Allocation, size: int) -> bool:
        self._check_live(allocation)
        num_more = (self._round(checked_size(size)) - allocation.size) // self.granule_bytes
        if num_more > 0:
            if size > self._reserved[allocation.offset] or num_more > len(self._free_granules):
                return False
            self._map(allocation, num_more)
        self._requested_bytes += max(size - allocation.requested, 0)
        allocation.requested = max(size, allocation.requested)
        return True

    def shrink(self, allocation: Allocation, size: int) -> None:
        """Keep the first `size` bytes: unmap the granules behind them; the addresses stay reserved."""
        self._check_live(allocation)
        size = min(checked_size(size), allocation.requested)
        self._unmap(allocation, (allocation.size - self._round(size)) // self.granule_bytes)
        self._requested_bytes -= allocation.requested - size
        allocation.requested = size

    def granules(self, allocation: Allocation) -> list[int]:
        """Physical granule numbers under the allocation, in virtual order: its page table."""
        self._check_live(allocation)
        return list(self._granules[allocation.offset])

    @property
    def address_space_bytes(self) -> int:
        return max((offset + size for offset, size in self._reserved.items()), default=self.capacity_bytes)

    def layout(self) -> list[Span]:
        """Virtual address order. Physical memory that is not mapped has no address, so it is in no span."""
        spans = [Span(offset, size, "unmapped") for offset, size in self._virtual.size_at.items()]
        for a in self._live.values():
            spans.append(Span(a.offset, a.size, "allocated", a.requested, a.tag, a.lifetime))
            behind = self._reserved[a.offset] - a.size
            if behind:
                spans.append(Span(a.offset + a.size, behind, "unmapped", 0, a.tag, a.lifetime))
        return sorted(spans, key=lambda span: span.offset)

    def stats(self) -> AllocatorStats:
        return AllocatorStats(
            capacity_bytes=self.capacity_bytes,
            reserved_bytes=self._mapped_bytes,
            active_bytes=self._mapped_bytes,
            allocated_bytes=self._mapped_bytes,
            requested_bytes=self._requested_bytes,
            free_bytes=0,
            num_free_spans=0,
            largest_free_bytes=0,
            num_allocations=len(self._live),
            num_ooms=self._num_ooms,
        )

    def check_integrity(self) -> None:
        self._virtual.check_integrity(self._virtual_end)
        require_tiling(self.layout(), self._virtual_end)
        owned = [g for granules in self._granules.values() for g in granules]
        require(
            sorted(owned + self._free_granules) == list(range(self._num_granules)),
            "each granule has one owner or is free",
            owned=len(owned),
            free=len(self._free_granules),
        )
        for offset, a in self._live.items():
            mapped = len(self._granules[offset]) * self.granule_bytes
            require(
                a.size == mapped <= self._reserved[offset], "mapped part is as long as its granules", span=a
            )
        requested = sum(a.requested for a in self._live.values())
        require(requested == self._requested_bytes, "requested bytes add up", counted=requested)
        held = self.num_maps - self.num_unmaps
        require(held == len(owned), "maps and unmaps add up", held=held, owned=len(owned))

    @property
    def _mapped_bytes(self) -> int:
        return (self._num_granules - len(self._free_granules)) * self.granule_bytes

    @property
    def _virtual_end(self) -> int:
        return max(self.virtual_bytes // self.granule_bytes, 1) * self.granule_bytes

    def _round(self, size: int) -> int:
        return -(-size // self.granule_bytes) * self.granule_bytes

    def _map(self, allocation: Allocation, num_granules: int) -> None:
        self._granules[allocation.offset] += self._free_granules[:num_granules]
        del self._free_granules[:num_granules]
        allocation.size += num_granules * self.granule_bytes
        self.num_maps += num_granules

    def _unmap(self, allocation: Allocation, num_granules: int) -> None:
        granules = self._granules[allocation.offset]
        for _ in range(num_granules):
            insort(self._free_granules, granules.pop())
        allocation.size -= num_granules * self.granule_bytes
        self.num_unmaps += num_granules

    def _check_live(self, allocation: Allocation) -> None:
        if allocation is None or self._live.get(getattr(allocation, "offset", -1)) is not allocation:
            raise not_live(self, allocation)
