"""Paged KV cache: logically contiguous, physically anywhere (Kwon et al., "Efficient Memory Management for Large
Language Model Serving with PagedAttention", SOSP'23, section 4).

A request's positions are cut into blocks of `block_size` tokens and a block table says where each block lives. Any free
block serves any request, so the pool has no external fragmentation; what is wasted is the rest of the last block. Blocks
are shared by reference count: between forks (parallel sampling), and through a prefix cache. A shared block that is
only partly filled is copied before somebody writes to it (copy-on-write).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from labkit.errors import LabError, require
from labkit.kv.base import NO_MOVES, Admission, Grown, KVCacheManager, KVStats, Move, NoSpace, positive
from labkit.kv.block_pool import BlockPool, FreeOrder
from labkit.kv.prefix_base import PrefixCache
from labkit.kv.publishing import BlockTable, Found, Publisher
from labkit.memory.base import Span


class PagedKVCache(KVCacheManager):
    """`num_blocks` blocks of `block_size` tokens.

    prefix      a prefix cache, or None
    window      sliding attention window in tokens: blocks that no later query can see are given back
    free_order  see `BlockPool`

    `admit` and `append` cost time proportional to the blocks that they touch.
    """

    name = "paged"

    def __init__(
        self,
        num_blocks: int,
        bytes_per_token: int,
        *,
        block_size: int = 16,
        prefix: PrefixCache | None = None,
        window: int | None = None,
        free_order: FreeOrder = "lifo",
    ):
        self.block_size = positive(block_size, "block_size")
        self.bytes_per_token = positive(bytes_per_token, "bytes_per_token")
        self.window = None if window is None else positive(window, "window")
        self.prefix = prefix
        self.pool = BlockPool(positive(num_blocks, "num_blocks"), prefix, free_order)
        self.capacity_tokens = self.num_slots = num_blocks * block_size
        self._tables: dict[str, BlockTable] = {}
        self._num_token_slots = 0  # slots of pinned blocks that hold a token, shared ones once
        self._num_moved_tokens = 0
        self._publisher = None if prefix is None else Publisher(prefix, block_size)

    # --- joining -----------------------------------------------------------------------------------------------------

    def lookup(
        self, token_ids: Sequence[int] | None = None, block_keys: Sequence[Hashable] | None = None
    ) -> int:
        found = self._find(token_ids, block_keys)
        return len(found.blocks) * self.block_size + found.num_inside

    def num_idle_hits(
        self, token_ids: Sequence[int] | None = None, block_keys: Sequence[Hashable] | None = None
    ) -> int:
        return self._num_idle(self._find(token_ids, block_keys).blocks)

    def admit(
        self,
        request_id: str,
        num_tokens: int,
        *,
        max_tokens: int,
        token_ids: Sequence[int] | None = None,
        block_keys: Sequence[Hashable] | None = None,
        final_tokens: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
    ) -> Admission:
        if request_id in self._tables:
            raise LabError(f"request {request_id!r} is already in the KV cache")
        positive(num_tokens, "num_tokens")
        pool, total = self.pool, self.pool.num_blocks
        num_ever = self.most_blocks(num_tokens, max_tokens)
        if num_ever > total:
            return Admission(
                False,
                f"request {request_id} can need {num_ever} blocks and the cache has {total} in all",
                num_ever,
                pool.num_free + pool.num_evictable,
                can_ever_fit=False,
            )
        found = self._find(token_ids, block_keys)
        hits = found.blocks
        num_hit_tokens = len(hits) * self.block_size + found.num_inside
        num_needed = max(0, -(-num_tokens // self.block_size) - len(hits))
        num_free = pool.num_free + pool.num_evictable
        if hits:
            num_free -= self._num_idle(hits)
        if num_needed > num_free:
            reason = f"request {request_id} needs {num_needed} blocks and {num_free} are free or evictable"
            return Admission(False, reason, num_needed, num_free, num_hit_tokens)

        self._num_token_slots += pool.acquire(hits) * self.block_size
        if hits and self.prefix is not None:
            self.prefix.hit(hits)
        blocks = hits + pool.take(num_needed)
        table = BlockTable(blocks, max(num_tokens, num_hit_tokens), priority=priority, ttl_s=ttl_s)
        self._num_token_slots += table.num_tokens - len(hits) * self.block_size
        self._tables[request_id] = table
        moves: Sequence[Move] = ()
        if found.num_inside:
            size = self.block_size
            moves = (Move(found.inside * size, blocks[len(hits)] * size, found.num_inside),)
            self._num_moved_tokens += found.num_inside
        if self._publisher is not None and (token_ids is not None or block_keys is not None):
            self._num_token_slots += self._publisher.joined(table, found, token_ids, pool)
        return Admission(True, "", num_needed, num_free, num_hit_tokens, moves=moves)

    def fork(self, parent_id: str, child_id: str) -> Grown:
        """Shares every block, the partly filled last one included: the first of the two to append copies it."""
        parent = self._table(parent_id)
        if child_id in self._tables:
            raise LabError(f"request {child_id!r} is already in the KV cache")
        self.pool.acquire(parent.blocks[parent.first_live :])
        self._tables[child_id] = parent.forked(self.block_size)
        return NO_MOVES

    # --- growing and leaving -----------------------------------------------------------------------------------------

    def append(self, request_id: str, num_tokens: int = 1, token_ids: Sequence[int] = ()) -> Grown:
        table = self._table(request_id)
        if num_tokens < 1:
            positive(num_tokens, "num_tokens")
        size, blocks, old = self.block_size, table.blocks, table.num_tokens
        new = old + num_tokens
        fill = old % size
        must_copy = fill != 0 and self.pool.refs[blocks[-1]] > 1
        num_needed = -(-new // size) - len(blocks) + must_copy
        if self.window is not None:
            self._recycle(table)
        if num_needed > 0:
            if self._publisher is not None:
                self._num_token_slots += self._publisher.grows(table, self.pool)
            num_free = self.pool.num_free + self.pool.num_evictable
            if num_needed > num_free:
                raise NoSpace(
                    f"request {request_id} needs {num_needed} more blocks and {num_free} are free or evictable"
                )
            taken = self.pool.take(num_needed)
        moves: Sequence[Move] = ()
        if must_copy:
            shared, blocks[-1] = blocks[-1], taken.pop(0)
            self.pool.release([shared])
            moves = (Move(shared * size, blocks[-1] * size, fill),)
            self._num_token_slots += fill
            self._num_moved_tokens += fill
        if num_needed > 0:
            blocks.extend(taken)
        if self._publisher is not None and len(token_ids):
            self._publisher.told(table, token_ids)
        table.num_tokens = new
        self._num_token_slots += num_tokens
        if self._publisher is not None:
            self._num_token_slots += self._publisher.grown(table, self.pool)
        return Grown(moves) if moves else NO_MOVES

    def free(self, request_id: str, *, num_computed_tokens: int | None = None) -> None:
        table = self._table(request_id)
        computed = table.num_tokens if num_computed_tokens is None else num_computed_tokens
        if self._publisher is not None:
            self._num_token_slots += self._publisher.leaves(table, computed, self.pool)
        del self._tables[request_id]
        live = table.blocks[table.first_live :]
        num_idle = self.pool.release(live)
        self._num_token_slots -= num_idle * self.block_size
        if live and not self.pool.refs[live[-1]]:
            self._num_token_slots += len(table.blocks) * self.block_size - table.num_tokens

    # --- questions ---------------------------------------------------------------------------------------------------

    def num_tokens(self, request_id: str) -> int:
        return self._table(request_id).num_tokens

    def block_table(self, request_id: str) -> Sequence[int]:
        return self._table(request_id).blocks

    def first_live_block(self, request_id: str) -> int:
        return self._table(request_id).first_live

    def slot_mapping(self, request_id: str, start: int, stop: int) -> Sequence[int]:
        table, size = self._table(request_id), self.block_size
        if not table.first_live * size <= start <= stop <= table.num_tokens:
            raise LabError(
                f"request {request_id}: positions [{start}, {stop}) are not inside "
                f"[{table.first_live * size}, {table.num_tokens})"
            )
        blocks = table.blocks
        return [blocks[p // size] * size + p % size for p in range(start, stop)]

    def room(self, request_id: str) -> int:
        table = self._table(request_id)
        room = len(table.blocks) * self.block_size - table.num_tokens
        return room if self.pool.refs[table.blocks[-1]] == 1 else 0

    def most_blocks(self, num_tokens: int, max_tokens: int) -> int:
        size = self.block_size
        if self.window is not None:  # the window, a partly dead first block and the one being written
            max_tokens = min(max_tokens, self.window + 2 * size)
        return super().most_blocks(num_tokens, max_tokens)

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    @property
    def num_evictable_blocks(self) -> int:
        return self.pool.num_evictable

    def set_time(self, now_s: float) -> None:
        self.now_s = now_s
        if self.prefix is not None:
            self.prefix.now_s = now_s

    def stats(self) -> KVStats:
        block_bytes = self.block_size * self.bytes_per_token
        free = self.pool.num_free * block_bytes
        return KVStats(
            capacity_bytes=self.pool.num_blocks * block_bytes,
            reserved_bytes=self.pool.num_pinned * block_bytes,
            token_bytes=self._num_token_slots * self.bytes_per_token,
            cached_bytes=self.pool.num_evictable * block_bytes,
            free_bytes=free,
            largest_free_bytes=free,
            num_requests=len(self._tables),
            num_moved_bytes=self._num_moved_tokens * self.bytes_per_token,
        )

    def layout(self) -> list[Span]:
        """One span for each block; `requested` is the filled part. A shared block is tagged with its first owner."""
        size, per_token = self.block_size, self.bytes_per_token
        owner: dict[int, tuple[str, int]] = {}
        for request_id, table in self._tables.items():
            for i in range(table.first_live, len(table.blocks)):
                owner.setdefault(table.blocks[i], (request_id, min(size, table.num_tokens - i * size)))
        spans = []
        for block, count in enumerate(self.pool.refs):
            offset, length = block * size * per_token, size * per_token
            if count:
                tag, filled = owner[block]
                kind = "shared" if count > 1 else "private"
                spans.append(Span(offset, length, "allocated", filled * per_token, tag, kind))
            elif self.prefix is not None and self.prefix.holds(block):
                spans.append(Span(offset, length, "allocated", length, "prefix cache", "cached"))
            else:
                spans.append(Span(offset, length, "free"))
        return spans

    def check_integrity(self) -> None:
        self.pool.check_integrity(table.blocks[table.first_live :] for table in self._tables.values())
        filled: dict[int, int] = {}
        for request_id, table in self._tables.items():
            require(
                len(table.blocks) == -(-table.num_tokens // self.block_size),
                "a table has exactly the blocks its tokens need",
                request=request_id,
                blocks=len(table.blocks),
                tokens=table.num_tokens,
            )
            live = table.blocks[table.first_live :]
            require(
                len(set(live)) == len(live), "a table names a block once", request=request_id, blocks=live
            )
            for i in range(table.first_live, len(table.blocks)):
                block, count = table.blocks[i], min(self.block_size, table.num_tokens - i * self.block_size)
                require(
                    filled.setdefault(block, count) == count,
                    "all tables that share a block agree on how full it is",
                    block=block,
                    request=request_id,
                    fill=count,
                    other=filled[block],
                )
        require(
            sum(filled.values()) == self._num_token_slots,
            "token slots counted = token slots held",
            counted=self._num_token_slots,
            held=sum(filled.values()),
        )
        stats = self.stats()
        require(
            stats.reserved_bytes + stats.cached_bytes + stats.free_bytes == stats.capacity_bytes
            and stats.token_bytes <= stats.reserved_bytes,
            "token <= reserved, and reserved + cached + free = capacity",
            stats=stats,
        )

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _table(self, request_id: str) -> BlockTable:
        try:
            return self._tables[request_id]
        except KeyError:
            raise LabError(f"request {request_id!r} is not in the KV cache") from None

    def _find(self, token_ids: Sequence[int] | None, block_keys: Sequence[Hashable] | None) -> Found:
        return Found() if self._publisher is None else self._publisher.find(token_ids, block_keys)

    def _num_idle(self, blocks: Sequence[int]) -> int:
        refs = self.pool.refs
        return sum(1 for block in blocks if not refs[block])

    def _recycle(self, table: BlockTable) -> None:
        """Give back blocks that lie wholly before the window of the next query: the query at position p sees
        `[p - window + 1, p]`. What this step's queries still see stays until the next step asks."""
        assert self.window is not None
        dead = min((table.num_tokens - self.window + 1) // self.block_size, len(table.blocks) - 1)
        if dead > table.first_live:
            num_idle = self.pool.release(table.blocks[table.first_live : dead])
            self._num_token_slots -= num_idle * self.block_size
            table.first_live = dead
