"""First fit."""

from __future__ import annotations

from labkit.memory.base import ALLOCATORS
from labkit.memory.fit import FitAllocator


@ALLOCATORS.register("first-fit")
class FirstFitAllocator(FitAllocator):
    """The lowest free span that is long enough.

    Keeps large spans alive at high addresses, litters the low end with small ones. About O(sqrt n) looks for n free
    spans (`FreeSpans.lowest_fit`) plus O(log n) to cut it.
    Source: Knuth, The Art of Computer Programming vol. 1, section 2.5, algorithm A.
    """

    name = "first-fit"

    def choose(self, size: int) -> int | None:
        return self.free_spans.lowest_fit(size)
