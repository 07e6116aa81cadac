"""The free spans of one address range, indexed by address and by size: the ground of the whole fit family.

Two sorted lists are kept, so a search, a split and a merge are each a binary search plus one move of list tail:

    starts      offsets of free spans, ascending
    by_size     (size, offset) of the same spans, ascending

Neighbouring free spans are always merged (Knuth, TAOCP vol. 1, section 2.5: boundary tags; here the two lists take
the place of the tags), so no two entries touch.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from labkit.errors import require


class FreeSpans:
    """Free part of `[0, capacity)`. Sizes and offsets are bytes."""

    __slots__ = ("by_size", "size_at", "starts", "total_bytes")

    def __init__(self, capacity: int):
        self.starts: list[int] = [0]
        self.size_at: dict[int, int] = {0: capacity}
        self.by_size: list[tuple[int, int]] = [(capacity, 0)]
        self.total_bytes = capacity

    @property
    def largest_bytes(self) -> int:
        """Length of the longest free span; 0 when nothing is free."""
        return self.by_size[-1][0] if self.by_size else 0

    def take(self, offset: int, size: int) -> None:
        """Cut `size` bytes off the low end of the free span that starts at `offset`."""
        span = self.size_at.pop(offset)
        del self.by_size[bisect_left(self.by_size, (span, offset))]
        place = bisect_left(self.starts, offset)
        if span == size:
            del self.starts[place]
        else:
            rest = offset + size
            self.starts[place] = rest
            self.size_at[rest] = span - size
            insort(self.by_size, (span - size, rest))
        self.total_bytes -= size

    def give(self, offset: int, size: int) -> None:
        """Return `[offset, offset + size)` and merge it with a free neighbour on either side."""
        self.total_bytes += size
        starts, size_at = self.starts, self.size_at
        place = bisect_left(starts, offset)
        if place < len(starts) and starts[place] == offset + size:
            size += self._forget(starts.pop(place))
        if place and starts[place - 1] + size_at[starts[place - 1]] == offset:
            place -= 1
            offset = starts.pop(place)
            size += self._forget(offset)
        starts.insert(place, offset)
        size_at[offset] = size
        insort(self.by_size, (size, offset))

    def lowest_fit(self, size: int, start: int = 0) -> int | None:
        """Lowest offset at or after `start` of a free span of at least `size` bytes.

        Few spans are long enough: look at those only. Many are: walk by address, the first hit comes soon. Either
        way about sqrt(number of spans) looks, without a tree.
        """
        first = bisect_left(self.by_size, (size, -1))
        num_fitting, num_spans = len(self.by_size) - first, len(self.by_size)
        if num_fitting * num_fitting <= num_spans:
            return min((o for _, o in self.by_size[first:] if o >= start), default=None)
        size_at = self.size_at
        for place in range(bisect_left(self.starts, start), num_spans):
            offset = self.starts[place]
            if size_at[offset] >= size:
                return offset
        return None

    def check_integrity(self, capacity: int) -> None:
        """Both lists describe the same spans, which lie apart from each other inside `[0, capacity)`."""
        require(self.starts == sorted(self.size_at), "free spans by address match", starts=self.starts[:8])
        require(
            self.by_size == sorted((size, offset) for offset, size in self.size_at.items()),
            "free spans by size match",
            by_size=self.by_size[:8],
        )
        require(self.total_bytes == sum(self.size_at.values()), "free bytes add up", total=self.total_bytes)
        end = -1
        for offset in self.starts:
            require(offset > end, "free neighbours are merged", offset=offset, previous_end=end)
            end = offset + self.size_at[offset]
            require(
                self.size_at[offset] > 0 and end <= capacity,
                "free span lies in range",
                offset=offset,
                end=end,
            )

    def _forget(self, offset: int) -> int:
        size = self.size_at.pop(offset)
        del self.by_size[bisect_left(self.by_size, (size, offset))]
        return size
