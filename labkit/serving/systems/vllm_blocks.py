"""vLLM's block pool: one free queue, and a map from content to block (`core/block_pool.py`).

vLLM keeps a doubly linked free queue. Blocks without content go back to its head, cached ones to its tail, deepest
first; blocks are taken from the head, and a cached block that is taken loses its content (the eviction). So the queue
always reads: blocks without content, last freed first; then cached ones, first freed first. Here those are two lists:

    blank   a stack; its top is the head of vLLM's queue
    idle    cached and held by nobody: a list with a moving start, `head`

A hit on an idle block takes it out of the middle of the queue. Instead of searching for it, `outdated[block]` counts how
many of its entries in `idle` no longer count. An entry is valid if and only if it is its block's last, so skipping the
first `outdated` ones is exact. Everything is a list slice while nothing is outdated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from labkit.errors import require


class BlockPool:
    """Ids `1 .. num_blocks-1`; id 0 is vLLM's null block and never handed out.

    `key[b]` and `ref[b]` mean something for published blocks only. A *private* request, whose content nobody else can
    ask for, does not publish: its blocks wait in `idle` like cached ones and are taken in the same order, and nothing has
    to be entered in or removed from a map that nobody reads. When it is preempted it may itself ask, so then it publishes.
    """

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.blank = list(range(num_blocks - 1, 0, -1))
        self.idle: list[int] = []
        self.head = 0
        self.outdated: dict[int, int] = {}
        self.key = [0] * num_blocks
        self.ref = [0] * num_blocks
        self.block_of: dict[int, int] = {}
        self.copies: dict[int, list[int]] = {}
        self.num_evicted = 0
        #: ids that lost their content, in order; kept only when somebody made this a list
        self.evicted_ids: list[int] | None = None

    @property
    def num_evictable(self) -> int:
        """Cached, held by nobody: free to take, and findable until taken."""
        return self.num_free - len(self.blank)

    @property
    def num_findable(self) -> int:
        """Blocks in the map, copies of one content counted each."""
        return len(self.block_of) + sum(map(len, self.copies.values()))

    def take(self, n: int) -> list[int]:
        """`n` blocks from the head of the free queue. The caller has checked `n <= num_free`."""
        self.num_free -= n
        blank = self.blank
        if n == 1 and blank:
            return [blank.pop()]
        if n <= len(blank):
            taken = blank[: -n - 1 : -1]
            if n:
                del blank[-n:]
            return taken
        taken = blank[::-1]
        blank.clear()
        return taken + self._evict(n - len(taken))

    def _evict(self, n: int) -> list[int]:
        idle, head = self.idle, self.head
        if self.outdated:
            taken: list[int] = []
            while len(taken) < n:
                block = idle[head]
                head += 1
                if self.outdated.get(block):
                    self._skip(block)
                else:
                    taken.append(block)
        else:
            taken = idle[head : head + n]
            head += n
        self.head = head
        self.num_evicted += n
        if head > 4096 and head * 2 > len(idle):
            del idle[:head]
            self.head = 0
        if self.block_of:
            self._unpublish(taken)
        if self.evicted_ids is not None:
            self.evicted_ids += taken
        return taken

    def _skip(self, block: int) -> None:
        self.outdated[block] -= 1
        if not self.outdated[block]:
            del self.outdated[block]

    def publish(self, table: Sequence[int], keys: Sequence[int], start: int, stop: int) -> None:
        """Blocks `table[start:stop]`, held by one request, are full: make `keys[start:stop]` findable. An older block
        with the same content stays the one that is found; there is no de-duplication (`BlockHashToBlockMap`)."""
        key_of, ref, block_of = self.key, self.ref, self.block_of
        for block, key in zip(table[start:stop], keys[start:stop]):
            key_of[block] = key
            ref[block] = 1
            if block_of.setdefault(key, block) != block:
                self.copies.setdefault(key, []).append(block)

    def _unpublish(self, blocks: list[int]) -> None:
        """Blocks lose the content they may have; the oldest copy of it that is left is found from now on."""
        key_of, block_of, all_copies = self.key, self.block_of, self.copies
        for block in blocks:
            key = key_of[block]
            if not key:
                continue
            key_of[block] = 0
            copies = all_copies.get(key) if all_copies else None
            if not copies:
                del block_of[key]
            elif block_of[key] == block:
                block_of[key] = copies.pop(0)
            else:
                copies.remove(block)
            if copies is not None and not copies:
                del all_copies[key]

    def lookup(self, keys: Sequence[int], limit: int) -> list[int]:
        """Longest run of findable blocks from the start, at most `limit`."""
        find, hit = self.block_of.get, []
        for key in keys[:limit]:
            block = find(key)
            if block is None:
                break
            hit.append(block)
        return hit

    def num_idle(self, hit: list[int]) -> int:
        """How many of these published blocks nobody holds: using them makes `num_free` smaller."""
        ref = self.ref
        return [ref[block] for block in hit].count(0) if hit else 0

    def touch(self, hit: Iterable[int]) -> None:
        """One more request holds these published blocks."""
        for block in hit:
            if not self.ref[block]:
                self.outdated[block] = self.outdated.get(block, 0) + 1
                self.num_free -= 1
            self.ref[block] += 1

    def release(self, table: list[int], num_cached: int, private: bool) -> None:
        """A request lets go of its blocks (`free_blocks`): those without content become the next to be taken, the last
        first; cached ones that nobody else holds go to the end of `idle`, deepest first, so children age before parents."""
        idle = self.idle
        if num_cached < len(table):
            self.blank += table[num_cached:]
        self.num_free += len(table) - num_cached
        deepest_first = table[num_cached - 1 :: -1] if num_cached else []
        if not private:
            ref, unused = self.ref, []
            for block in deepest_first:
                ref[block] -= 1
                if not ref[block]:
                    unused.append(block)
            deepest_first = unused
        idle += deepest_first
        self.num_free += len(deepest_first)
        if len(idle) > 4 * self.num_blocks and self.outdated:
            self._rebuild()

    def _rebuild(self) -> None:
        """Drop the entries that do not count. Blocks that are held now have only outdated ones."""
        valid = []
        for block in self.idle[self.head :]:
            if self.outdated.get(block):
                self._skip(block)
            else:
                valid.append(block)
        self.idle, self.head = valid, 0
        self.outdated.clear()

    def valid_idle(self) -> list[int]:
        """The valid entries of `idle`, next to be evicted first."""
        skip = dict(self.outdated)
        valid = []
        for block in self.idle[self.head :]:
            if skip.get(block):
                skip[block] -= 1
            else:
                valid.append(block)
        return valid

    def check_integrity(self, tables: Iterable[tuple[list[int], int, bool]]) -> None:
        """`tables` of all requests that hold blocks, as (table, num_cached, private)."""
        idle, held = self.valid_idle(), Counter[int]()
        for table, num_cached, private in tables:
            require(len(set(table)) == len(table), "a table names a block once", table=table)
            held.update(table)
            for block in table[:num_cached]:
                require(private or self.key[block] > 0, "a cached block has content", block=block)
            for block in table[num_cached:]:
                require(self.key[block] == 0, "a block past num_cached has none", block=block)
        require(
            len(self.blank) + len(idle) == self.num_free,
            "blank + idle = free",
            blank=len(self.blank),
            idle=len(idle),
        )
        everywhere = Counter(self.blank) + Counter(idle) + Counter(held.keys())
        require(
            everywhere == Counter(range(1, self.num_blocks)),
            "every block is blank, idle or held, exactly once",
            wrong=[b for b in range(self.num_blocks) if everywhere[b] != (b > 0)],
        )
        listed = [(k, [b, *self.copies.get(k, ())]) for k, b in self.block_of.items()]
        for key, blocks in listed:
            require(
                all(self.key[b] == key for b in blocks),
                "the map agrees with the blocks",
                key=key,
                blocks=blocks,
            )
        found = {block for _, blocks in listed for block in blocks}
        for block in range(1, self.num_blocks):
            require(
                (self.key[block] > 0) == (block in found), "a block with content is findable", block=block
            )
            if self.key[block]:
                require(
                    self.ref[block] == held[block],
                    "reference count",
                    block=block,
                    kept=self.ref[block],
                    counted=held[block],
                )
