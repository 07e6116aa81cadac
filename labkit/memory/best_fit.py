"""Best fit."""

from __future__ import annotations

from bisect import bisect_left

from labkit.memory.base import ALLOCATORS
from labkit.memory.fit import FitAllocator


@ALLOCATORS.register("best-fit")
class BestFitAllocator(FitAllocator):
    """The shortest free span that is long enough; of equal ones the lowest.

    Leaves the smallest remainder, which is also the least useful one. O(log n) for n free spans.
    Source: Knuth, TAOCP vol. 1, section 2.5; Wilson et al., "Dynamic Storage Allocation: A Survey and Critical
    Review" (1995), section 3.6.
    """

    name = "best-fit"

    def choose(self, size: int) -> int | None:
        by_size = self.free_spans.by_size
        place = bisect_left(by_size, (size, -1))
        return by_size[place][1] if place < len(by_size) else None
