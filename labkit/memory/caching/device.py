"""The simulated device under the caching allocator: a counter of bytes and two address ranges.

`cudaMalloc` and `cuMemCreate` draw on the same counter and fail past it. Nothing is ever backed by memory.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Literal, get_args

from labkit.errors import LabError, require
from labkit.memory.base import checked_size
from labkit.units import GIB

AddressPolicy = Literal["bump", "first-fit", "descending", "last-fit"]

#: where a recording's device put the two ranges; all addresses of this module are relative to them
HEAP_BASE = 0x7000_0000_0000
VIRTUAL_BASE = 0x6000_0000_0000
_GUARD = GIB  # between two virtual reservations


class SimulatedDevice:
    """`total_bytes` of memory. The address policy says where a new segment lies: right above the last and never
    reused ("bump"), in the lowest gap ("first-fit"), right below the last and never reused ("descending"), or in the
    highest gap below `top` ("last-fit"). No decision of PyTorch's allocator depends on it."""

    def __init__(self, total_bytes: int, address_policy: AddressPolicy = "first-fit", top: int = 0):
        if address_policy not in get_args(AddressPolicy):
            raise LabError(
                f"unknown address policy {address_policy!r}; choose one of: {', '.join(get_args(AddressPolicy))}"
            )
        self.total_bytes = checked_size(total_bytes, "capacity_bytes")
        self.address_policy = address_policy
        self.used_bytes = 0
        self.num_malloc = self.num_malloc_fail = self.num_free = 0
        self.num_create = self.num_create_fail = self.num_map = self.num_unmap = 0
        #: one more than the highest heap address ever handed out
        self.high_water = 0
        #: every virtual reservation ever made, (address, size)
        self.reservations: list[tuple[int, int]] = []
        self._top = self._lowest = top
        self._segments: list[tuple[int, int]] = []  # (address, end) of what is malloced now, ascending
        self._reserved: dict[int, int] = {}
        self._next_virtual = 0

    @property
    def free_bytes(self) -> int:
        """What the device can still give."""
        return self.total_bytes - self.used_bytes

    def malloc(self, size: int) -> int | None:
        """`cudaMalloc` of `size` bytes: an address, or None when the device has not so much left."""
        if size > self.free_bytes:
            self.num_malloc_fail += 1
            return None
        address = self._place(size)
        insort(self._segments, (address, address + size))
        self.high_water = max(self.high_water, address + size)
        self.used_bytes += size
        self.num_malloc += 1
        return address

    def free(self, address: int, size: int) -> None:
        """`cudaFree`; the caller says the size so that a wrong one is found."""
        segment = (address, address + size)
        place = bisect_left(self._segments, segment)
        require(
            self._segments[place : place + 1] == [segment], "freed segment exists", address=address, size=size
        )
        del self._segments[place]
        self.used_bytes -= size
        self.num_free += 1

    def reserve(self, size: int) -> int:
        """`cuMemAddressReserve`: a range of `size` bytes of addresses without memory behind it."""
        address = self._next_virtual
        self._next_virtual += size + _GUARD
        self._reserved[address] = size
        self.reservations.append((address, size))
        return address

    def release_reservation(self, address: int) -> None:
        """`cuMemAddressFree`."""
        require(address in self._reserved, "released reservation exists", address=address)
        del self._reserved[address]

    def map_pages(self, num_pages: int, page_size: int) -> bool:
        """`cuMemCreate` for each page, then `cuMemMap`. If one page cannot be had, those before it are given back."""
        available = self.free_bytes // page_size
        if num_pages > available:
            self.num_create += available
            self.num_create_fail += 1
            return False
        self.num_create += num_pages
        self.num_map += num_pages
        self.used_bytes += num_pages * page_size
        return True

    def unmap_pages(self, num_pages: int, page_size: int) -> None:
        """`cuMemUnmap` and `cuMemRelease` for each page."""
        self.num_unmap += num_pages
        self.used_bytes -= num_pages * page_size

    def counters(self) -> dict[str, int]:
        """Under the names that a recording uses."""
        return {
            "total": self.total_bytes,
            "used": self.used_bytes,
            "n_malloc": self.num_malloc,
            "n_malloc_fail": self.num_malloc_fail,
            "n_free": self.num_free,
            "n_create": self.num_create,
            "n_create_fail": self.num_create_fail,
            "n_map": self.num_map,
            "n_unmap": self.num_unmap,
            "base": HEAP_BASE,
            "vbase": VIRTUAL_BASE,
        }

    def _place(self, size: int) -> int:
        if self.address_policy == "bump":
            return self.high_water
        if self.address_policy == "descending":
            self._lowest -= size
            return self._lowest
        if self.address_policy == "last-fit":
            above = self._top
            for start, end in reversed(self._segments):
                if above - end >= size:
                    break
                above = start
            return above - size
        address = 0
        for start, end in self._segments:
            if start - address >= size:
                break
            address = end
        return address
