"""Next fit."""

from __future__ import annotations

from labkit.memory.base import ALLOCATORS, Allocation
from labkit.memory.fit import FitAllocator


@ALLOCATORS.register("next-fit")
class NextFitAllocator(FitAllocator):
    """First fit that goes on where the last allocation ended and wraps round at the top.

    Spreads objects of all ages over the whole range, which is why it fragments more than first fit. A span that the
    search position lies inside (a free merged it) is met on the next round. About O(sqrt n) looks for n free spans.
    Source: Knuth, TAOCP vol. 1, section 2.5 (the "roving pointer"); Wilson et al. (1995), section 3.6.
    """

    name = "next-fit"

    def __init__(self, capacity_bytes: int, *, alignment_bytes: int = 1):
        super().__init__(capacity_bytes, alignment_bytes=alignment_bytes)
        self.rover = 0

    def choose(self, size: int) -> int | None:
        offset = self.free_spans.lowest_fit(size, self.rover)
        return self.free_spans.lowest_fit(size) if offset is None else offset

    def malloc(self, size: int, *, tag: str = "", lifetime: str = "") -> Allocation:
        allocation = super().malloc(size, tag=tag, lifetime=lifetime)
        self.rover = allocation.offset + allocation.size
        return allocation
