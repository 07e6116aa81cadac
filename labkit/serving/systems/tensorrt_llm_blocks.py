"""TensorRT-LLM's KV blocks with full-block reuse (`kvCacheManager.cpp`, `evictionPolicy.cpp`).

Modelled from the text of the C++ files: the free queue, reuse, release and eviction. The recordings confirm the counts, in
cases where no cached block is evicted. Not modelled: partial-block reuse, retention priorities, the host pool, windows.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from labkit.errors import require


class ReusePool:
    """One free queue: taken from the front, released blocks to the back, last block first, with content or without.

    The tree has one block for each content; here a dict by content key (a key names the whole prefix) and the children of
    each key. A block that is taken leaves the tree together with all its descendants.
    """

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.ref = [0] * num_blocks
        self.key = [0] * num_blocks
        self.block_of: dict[int, int] = {}
        self.children: dict[int, list[int]] = {}
        self.num_evicted = 0

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, cached ones included."""
        return len(self.free)

    @property
    def num_evictable(self) -> int:
        """Findable blocks that nobody holds."""
        return sum(1 for block in self.block_of.values() if not self.ref[block])

    def take(self, n: int) -> list[int]:
        """The caller has checked `n <= num_free`."""
        pop, ref = self.free.popitem, self.ref
        taken = [pop(last=False)[0] for _ in range(n)]
        for block in taken:
            ref[block] = 1
        if self.block_of:
            for block in taken:
                if self.key[block]:
                    self._detach(self.key[block])
        return taken

    def _detach(self, key: int) -> None:
        """`freeChildren`: the content and all that continues it can no longer be found."""
        pending = [key]
        while pending:
            gone = pending.pop()
            block = self.block_of.pop(gone, None)
            if block is not None:
                self.key[block] = 0
                self.num_evicted += 1
            pending += self.children.pop(gone, ())

    def cached_prefix(self, keys: Sequence[int], limit: int) -> list[int]:
        """Longest run of findable blocks from the start, at most `limit`."""
        find, hit = self.block_of.get, []
        for key in keys[:limit]:
            block = find(key)
            if block is None:
                break
            hit.append(block)
        return hit

    def claim(self, hit: Iterable[int]) -> None:
        """One more request holds these blocks."""
        for block in hit:
            if not self.ref[block]:
                del self.free[block]
            self.ref[block] += 1

    def store(self, table: Sequence[int], keys: Sequence[int], num_blocks: int) -> None:
        """The first blocks of a table become findable, where their content is not yet in the tree."""
        parent = 0
        for block, key in zip(table[:num_blocks], keys[:num_blocks]):
            if key not in self.block_of and not self.key[block]:
                self.block_of[key] = block
                self.key[block] = key
                self.children.setdefault(parent, []).append(key)
            parent = key

    def release(self, table: list[int]) -> None:
        """A request lets go of its blocks, the last first."""
        ref, free = self.ref, self.free
        for block in reversed(table):
            ref[block] -= 1
            if not ref[block]:
                free[block] = None

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        held = Counter(block for table in tables for block in table)
        for block in range(self.num_blocks):
            require(
                self.ref[block] == held[block],
                "reference count",
                block=block,
                kept=self.ref[block],
                counted=held[block],
            )
            require((self.ref[block] == 0) == (block in self.free), "free means held by nobody", block=block)
            if self.key[block]:
                require(
                    self.block_of.get(self.key[block]) == block, "the tree agrees with the block", block=block
                )
        require(len(self.block_of) == sum(1 for key in self.key if key), "one block for each content")
