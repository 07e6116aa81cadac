"""Worst fit."""

from __future__ import annotations

from bisect import bisect_left

from labkit.memory.base import ALLOCATORS
from labkit.memory.fit import FitAllocator


@ALLOCATORS.register("worst-fit")
class WorstFitAllocator(FitAllocator):
    """The longest free span; of equal ones the lowest.

    Keeps remainders usable for a while and eats every large span on the way. O(log n) for n free spans.
    Source: Wilson et al. (1995), section 3.6 ("worst fit ... seems to work quite badly").
    """

    name = "worst-fit"

    def choose(self, size: int) -> int | None:
        by_size = self.free_spans.by_size
        if not by_size or by_size[-1][0] < size:
            return None
        return by_size[bisect_left(by_size, (by_size[-1][0], -1))][1]
