"""Blocks, reference counts and the free list. Every block is in exactly one of three states:

| state | reference count | in the prefix cache |
| --- | --- | --- |
| free | 0 | no |
| evictable | 0 | yes |
| pinned | at least 1 | either |

so free + evictable + pinned = total, always. A block's count is the number of block tables that name it (Kwon et al.,
SOSP'23, section 4.4).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from labkit.errors import LabError, require

if TYPE_CHECKING:
    from labkit.kv.prefix_base import PrefixCache

FreeOrder = Literal["lifo", "fifo"]


class BlockPool:
    """`num_blocks` blocks, handed out from the head of a free list that starts in id order.

    `free_order` says where a freed private block goes: "lifo" to the head (vLLM: the next to be reused, likely still
    in a cache near the processor), "fifo" to the tail.
    """

    def __init__(self, num_blocks: int, prefix: PrefixCache | None = None, free_order: FreeOrder = "lifo"):
        if free_order not in ("lifo", "fifo"):
            raise LabError(f"unknown free order {free_order!r}; choose one of: fifo, lifo")
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.prefix = prefix
        self.free_order = free_order
        self._free: deque[int] = deque(range(num_blocks))
        if prefix is not None:
            prefix.attach(self.refs)

    @property
    def num_free(self) -> int:
        """Blocks with count 0 and no findable content."""
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        """Blocks with count 0 whose content can still be found."""
        return self.prefix.num_evictable if self.prefix is not None else 0

    @property
    def num_pinned(self) -> int:
        """Derived from the other two; `check_integrity` counts it."""
        return self.num_blocks - self.num_free - self.num_evictable

    def take(self, num_blocks: int) -> list[int]:
        """Hand out blocks with count 1, evicting cached ones when the free list is short. The caller has checked that
        `num_free + num_evictable` suffices."""
        free, refs = self._free, self.refs
        short = num_blocks - len(free)
        if short > 0:
            evicted = self.prefix.evict(short) if self.prefix is not None else []
            require(len(evicted) >= short, "evictable blocks can be evicted", asked=short, got=len(evicted))
            free.extend(evicted)
        blocks = [free.popleft() for _ in range(num_blocks)]
        for block in blocks:
            refs[block] = 1
        return blocks

    def acquire(self, blocks: Iterable[int]) -> int:
        """One more table names each of `blocks`. Returns how many were idle (count 0) before."""
        refs, prefix = self.refs, self.prefix
        num_idle = 0
        for block in blocks:
            if refs[block] == 0:
                num_idle += 1
                if prefix is None or not prefix.holds(block):
                    raise LabError(
                        f"block {block} is free: only a block that is held or cached can be shared"
                    )
                refs[block] = 1
                prefix.acquire(block)
            else:
                refs[block] += 1
        return num_idle

    def release(self, blocks: Sequence[int]) -> int:
        """One table less names each of `blocks`, visited last to first so that the end of a chain goes before its
        beginning. Returns how many are idle (count 0) now."""
        refs, prefix = self.refs, self.prefix
        freed: list[int] = []
        num_idle = 0
        for block in reversed(blocks):
            count = refs[block] - 1
            if count < 0:
                raise LabError(f"block {block} is released more often than it was taken")
            refs[block] = count
            if count == 0:
                num_idle += 1
                if prefix is not None and prefix.holds(block):
                    prefix.release(block)
                else:
                    freed.append(block)
        if self.free_order == "lifo":
            self._free.extendleft(reversed(freed))
        else:
            self._free.extend(freed)
        return num_idle

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """`tables`: the live part of every block table."""
        named: Counter[int] = Counter()
        for table in tables:
            named.update(table)
        for block, count in enumerate(self.refs):
            require(
                count == named[block],
                "reference count = tables that name the block",
                block=block,
                count=count,
                named=named[block],
            )
        free = set(self._free)
        require(len(free) == len(self._free), "no block is twice in the free list", free=list(self._free))
        idle = {block for block, count in enumerate(self.refs) if count == 0}
        cached = {b for b in range(self.num_blocks) if self.prefix is not None and self.prefix.holds(b)}
        require(not free & cached, "a free block is not cached", both=sorted(free & cached))
        require(
            free | (idle & cached) == idle and free <= idle,
            "an idle block is free or cached",
            lost=sorted(idle - free - cached),
            free_but_held=sorted(free - idle),
        )
        num_pinned = sum(1 for count in self.refs if count)
        require(
            len(free) + self.num_evictable + num_pinned == self.num_blocks,
            "free + evictable + pinned = total",
            free=len(free),
            evictable=self.num_evictable,
            pinned=num_pinned,
            total=self.num_blocks,
        )
        if self.prefix is not None:
            self.prefix.check_integrity()
