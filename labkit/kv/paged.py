"""Paged KV cache: logically contiguous, physically anywhere (Kwon et al., "Efficient Memory Management for Large
Language Model Serving with PagedAttention", SOSP'23, section 4).

A request's positions are cut into blocks of `block_size` tokens and a block table says where each block lives. Any free
block serves any request, so the pool has no external fragmentation; what is wasted is the rest of the last block. Blocks
are shared by reference count: between forks (parallel sampling), and through a prefix cache. A shared block that is
only partly filled is copied before somebody writes to it (copy-on-write).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from labkit.errors import LabError, require
from labkit.kv.base import NO_MOVES, Admission, Grown, KVCacheManager, KVStats, Move, NoSpace, positive
from labkit.kv.block_pool import BlockPool, FreeOrder
from labkit.kv.prefix_base import PrefixCache
from labkit.memory.base import Span


@dataclass(slots=True)
class BlockTable:
    """One live request. Blocks below `first_live` left a sliding window and are no longer its own."""

    blocks: list[int]
    num_tokens: int
    first_live: int = 0
    #: one key for each full block of known tokens, and how many blocks were offered to the prefix cache
    keys: list[Hashable] = field(default_factory=list)
    token_ids: list[int] | None = None
    num_prompt_keys: int = 0
    num_hits: int = 0
    num_published: int = 0
    priority: int = 0
    ttl_s: float | None = None


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
        self._last_keys: tuple[Sequence, int, list[Hashable]] | None = None

    # --- joining -----------------------------------------------------------------------------------------------------

    def lookup(
        self, token_ids: Sequence[int] | None = None, block_keys: Sequence[Hashable] | None = None
    ) -> int:
        _, hits, (_, num_inside) = self._find(token_ids, block_keys)
        return len(hits) * self.block_size + num_inside

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
        num_ever = self._most_blocks(num_tokens, max_tokens)
        if num_ever > total:
            return Admission(
                False,
                f"request {request_id} can need {num_ever} blocks and the cache has {total} in all",
                num_ever,
                pool.num_free + pool.num_evictable,
                can_ever_fit=False,
            )
        keys, hits, (inside, num_inside) = self._find(token_ids, block_keys)
        num_hit_tokens = len(hits) * self.block_size + num_inside
        num_needed = max(0, -(-num_tokens // self.block_size) - len(hits))
        num_free = pool.num_free + pool.num_evictable
        if hits:
            refs = pool.refs
            num_free -= sum(1 for block in hits if not refs[block])
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
        if num_inside:
            moves = (Move(inside * self.block_size, blocks[len(hits)] * self.block_size, num_inside),)
            self._num_moved_tokens += num_inside
        if self.prefix is not None and (token_ids is not None or block_keys is not None):
            self._last_keys = None
            table.keys, table.num_prompt_keys = keys, len(keys)
            table.num_hits = table.num_published = len(hits)
            table.token_ids = list(token_ids) if token_ids is not None else None
            if not self.prefix.publishes_when_computed:
                self._publish(table, table.num_tokens)
        return Admission(True, "", num_needed, num_free, num_hit_tokens, moves=moves)

    def fork(self, parent_id: str, child_id: str) -> Grown:
        """Shares every block, the partly filled last one included: the first of the two to append copies it."""
        parent = self._table(parent_id)
        if child_id in self._tables:
            raise LabError(f"request {child_id!r} is already in the KV cache")
        self.pool.acquire(parent.blocks[parent.first_live :])
        num_full = parent.num_tokens // self.block_size
        ids = parent.token_ids
        self._tables[child_id] = BlockTable(
            list(parent.blocks),
            parent.num_tokens,
            parent.first_live,
            parent.keys[:num_full],  # what follows the fork is the child's own
            None if ids is None else ids[: parent.num_tokens],
            min(parent.num_prompt_keys, num_full),
            parent.num_hits,
            parent.num_published,
            parent.priority,
            parent.ttl_s,
        )
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
            if self.prefix is not None and self.prefix.publishes_when_computed:
                self._publish_computed(table, old)
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
        table.num_tokens = new
        self._num_token_slots += num_tokens
        if len(token_ids) and table.token_ids is not None and len(table.token_ids) >= old:
            table.token_ids.extend(token_ids)  # after a gap the later tokens are of no use: keys are chains
        if (
            self.prefix is not None
            and table.token_ids is not None
            and not self.prefix.publishes_when_computed
        ):
            self._publish(table, new)
        return Grown(moves) if moves else NO_MOVES

    def free(self, request_id: str, *, num_computed_tokens: int | None = None) -> None:
        table = self._table(request_id)
        computed = table.num_tokens if num_computed_tokens is None else num_computed_tokens
        if self.prefix is not None and (table.keys or table.token_ids is not None):
            self._leave_prefix(self.prefix, table, computed)
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

    def _most_blocks(self, num_tokens: int, max_tokens: int) -> int:
        """Blocks that the request can hold at once, at worst."""
        size = self.block_size
        if self.window is not None:  # the window, a partly dead first block and the one being written
            max_tokens = min(max_tokens, self.window + 2 * size)
        return -(-max(num_tokens, max_tokens) // size)

    def _find(
        self, token_ids: Sequence[int] | None, block_keys: Sequence[Hashable] | None
    ) -> tuple[list[Hashable], list[int], tuple[int, int]]:
        """Keys of all full blocks, the blocks that are cached, and `(block, num_tokens)` of a hit inside the next one.
        At least one known token is always left to compute, so that there is something to sample from."""
        if self.prefix is None or (token_ids is None and block_keys is None):
            return [], [], (-1, 0)
        keys = self._keys_of(token_ids, block_keys)
        if token_ids is None:
            return keys, self.prefix.match(keys, len(keys)), (-1, 0)
        hits = self.prefix.match(keys, (len(token_ids) - 1) // self.block_size)
        if not self.prefix.partial_hits:
            return keys, hits, (-1, 0)
        at = len(hits) * self.block_size
        rest = token_ids[at : min(at + self.block_size, len(token_ids) - 1)]
        return keys, hits, self.prefix.match_inside(hits, rest)

    def _keys_of(
        self, token_ids: Sequence[int] | None, block_keys: Sequence[Hashable] | None
    ) -> list[Hashable]:
        """The last answer is kept: a queue's head is asked about again in every step."""
        assert self.prefix is not None
        source: Sequence = token_ids if token_ids is not None else block_keys  # type: ignore[assignment]
        if self._last_keys is not None and self._last_keys[0] is source and self._last_keys[1] == len(source):
            return self._last_keys[2]
        keys: list[Hashable] = []
        if token_ids is not None:
            self.prefix.extend_keys(keys, token_ids, len(token_ids) // self.block_size)
        else:
            for page in source:
                self.prefix.extend_key(keys, page)
        self._last_keys = (source, len(source), keys)
        return keys

    def _leave_prefix(self, prefix: PrefixCache, table: BlockTable, num_computed: int) -> None:
        """Publish what was computed and not offered yet; withdraw what was offered and never computed."""
        num_full = num_computed // self.block_size
        if prefix.publishes_when_computed:
            self._publish(table, num_computed)
        elif table.num_published > max(num_full, table.num_hits):
            prefix.withdraw(table.blocks[max(num_full, table.num_hits) : table.num_published])
        ids = table.token_ids
        if prefix.partial_hits and ids is not None and num_full == table.num_published:
            tail = tuple(ids[num_full * self.block_size : num_computed])
            if tail and len(tail) == num_computed % self.block_size:
                keys = table.keys[:num_full]
                prefix.publish_tail(keys, table.blocks[: num_full + 1], tail, table.priority, table.ttl_s)

    def _publish_computed(self, table: BlockTable, num_computed: int) -> None:
        assert self.prefix is not None
        if self.prefix.publishes_outputs_at_end:
            num_computed = min(num_computed, table.num_prompt_keys * self.block_size)
        self._publish(table, num_computed)

    def _publish(self, table: BlockTable, num_tokens: int) -> None:
        """Offer the full blocks of the first `num_tokens` tokens, as far as their content is known."""
        assert self.prefix is not None
        num_full = num_tokens // self.block_size
        if num_full <= table.num_published or table.first_live > table.num_published:
            return
        if table.token_ids is not None and num_full > len(table.keys):
            self.prefix.extend_keys(
                table.keys, table.token_ids, min(num_full, len(table.token_ids) // self.block_size)
            )
        num_full = min(num_full, len(table.keys))
        if num_full <= table.num_published:
            return
        repoint = self.prefix.publish(
            table.keys, table.blocks, table.num_published, num_full, table.priority, table.ttl_s
        )
        for index, block in repoint:
            mine, table.blocks[index] = table.blocks[index], block
            self._num_token_slots += self.pool.acquire([block]) * self.block_size
            self._num_token_slots -= self.pool.release([mine]) * self.block_size
        table.num_published = num_full

    def _recycle(self, table: BlockTable) -> None:
        """Give back blocks that lie wholly before the window of the next query: the query at position p sees
        `[p - window + 1, p]`. What this step's queries still see stays until the next step asks."""
        assert self.window is not None
        dead = min((table.num_tokens - self.window + 1) // self.block_size, len(table.blocks) - 1)
        if dead > table.first_live:
            num_idle = self.pool.release(table.blocks[table.first_live : dead])
            self._num_token_slots -= num_idle * self.block_size
            table.first_live = dead
