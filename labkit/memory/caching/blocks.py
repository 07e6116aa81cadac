"""Segments, the blocks they are cut into, and the pools of free blocks.

A block's neighbours are linked inside its segment; neighbouring segments are never joined.
Source: c10/cuda/CUDACachingAllocator.cpp, `struct Block`, `struct BlockPool`, `BlockComparatorSize`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

from labkit.memory.base import Allocation
from labkit.memory.caching.stats import PoolStats

if TYPE_CHECKING:
    from labkit.memory.caching.expandable import ExpandableSegment

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


class Segment:
    """One device allocation. `ordinal` counts segments (and reservations) in order of creation."""

    __slots__ = ("address", "head", "ordinal", "pool", "size", "stream")

    def __init__(self, ordinal: int, address: int, size: int, pool: BlockPool, stream: int):
        self.ordinal, self.address, self.size, self.pool, self.stream = ordinal, address, size, pool, stream
        self.head: Block

    def blocks(self) -> Iterator[Block]:
        """In address order."""
        block: Block | None = self.head
        while block is not None:
            yield block
            block = block.next


class Block(Allocation):
    """A piece of a segment; `offset` is its address. A block that was handed out as an `Allocation` is never handed
    out again (the next owner of the same bytes gets a new object), so a second free is always noticed.

    allocated     a caller holds it
    num_events    events that must be done before it may be reused (freed while other streams used it)
    mapped        False: address range of an expandable segment without memory behind it
    """

    __slots__ = (
        "age_base",
        "allocated",
        "expandable",
        "mapped",
        "next",
        "num_events",
        "pool",
        "prev",
        "segment",
        "stream",
        "stream_uses",
    )

    def __init__(self, segment: Segment, offset: int, size: int, expandable: ExpandableSegment | None = None):
        self.offset, self.size, self.requested, self.tag, self.lifetime = offset, size, 0, "", ""
        self.segment, self.pool, self.stream, self.expandable = (
            segment,
            segment.pool,
            segment.stream,
            expandable,
        )
        self.prev: Block | None = None
        self.next: Block | None = None
        self.allocated = False
        self.mapped = True
        self.num_events = 0
        self.stream_uses: set[int] | None = None
        self.age_base = 0

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    @property
    def is_free(self) -> bool:
        """Neither held nor waiting (an unmapped block counts as free address range)."""
        return not self.allocated and not self.num_events and not self.stream_uses

    @property
    def state(self) -> str:
        """The word that a PyTorch snapshot uses."""
        if self.allocated:
            return "active_allocated"
        return "inactive" if self.is_free else "active_pending_free"

    def insert_before(self, right: Block) -> None:
        """Link this block in as the left neighbour of `right`."""
        self.prev, self.next = right.prev, right
        if right.prev is None:
            self.segment.head = self
        else:
            right.prev.next = self
        right.prev = self

    def insert_after(self, left: Block) -> None:
        """Link this block in as the right neighbour of `left`."""
        self.prev, self.next = left, left.next
        if left.next is not None:
            left.next.prev = self
        left.next = self

    def take_place_of(self, other: Block) -> None:
        """Link this block in where `other` was."""
        self.prev, self.next = other.prev, other.next
        if other.prev is None:
            self.segment.head = self
        else:
            other.prev.next = self
        if other.next is not None:
            other.next.prev = self

    def swallow(self, neighbour: Block) -> None:
        """Merge a neighbour into this block."""
        if neighbour is self.prev:
            self.offset = neighbour.offset
            self.prev = neighbour.prev
            if self.prev is None:
                self.segment.head = self
            else:
                self.prev.next = self
        else:
            self.next = neighbour.next
            if self.next is not None:
                self.next.prev = self
        self.size += neighbour.size


#: (size, creation order of the segment, address, block): the order of a free list
FreeEntry = tuple[int, int, int, Block]


class BlockPool:
    """The free blocks of the small or the large size class (of the default pool, or of one private pool).

    `free[stream]` is sorted by (size, segment creation order, address): equal sizes are told apart by which segment
    is older. `unmapped[stream]` is sorted by address. PyTorch keeps one set with the stream as first key; one list a
    stream is the same order. `num_searches` is the clock of the garbage collector.
    """

    def __init__(self, is_small: bool, stats: PoolStats, pool_id: PoolId = DEFAULT_POOL):
        self.is_small, self.stats, self.pool_id = is_small, stats, pool_id
        self.free: dict[int, list[FreeEntry]] = {}
        self.unmapped: dict[int, list[tuple[int, Block]]] = {}
        self.num_searches = 0

    def insert(self, block: Block) -> None:
        """Put a free block in its stream's list; its age for garbage collection starts at 0."""
        block.age_base = self.num_searches
        entry = (block.size, block.segment.ordinal, block.offset, block)
        try:
            insort(self.free[block.stream], entry)
        except KeyError:
            self.free[block.stream] = [entry]

    def remove(self, block: Block) -> None:
        """Take a block out of its stream's free list."""
        entries = self.free[block.stream]
        del entries[bisect_left(entries, (block.size, block.segment.ordinal, block.offset))]

    def insert_unmapped(self, block: Block) -> None:
        """Note a range of an expandable segment that has no memory behind it."""
        insort(self.unmapped.setdefault(block.stream, []), (block.offset, block))

    def remove_unmapped(self, block: Block) -> None:
        """The range is mapped, or part of a larger one, from now on."""
        entries = self.unmapped[block.stream]
        del entries[bisect_left(entries, (block.offset,))]

    def free_blocks(self) -> list[Block]:
        """All free blocks in the order of PyTorch's set."""
        return [entry[3] for stream in sorted(self.free) for entry in self.free[stream]]

    def age(self, block: Block) -> int:
        """Searches of this pool since the block became free."""
        return self.num_searches - block.age_base
