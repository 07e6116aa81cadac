"""Between block tables and a prefix cache: which keys a request has, what it hits, and when its blocks become findable.

| when | hash, "scheduled" (vLLM) | "computed" and radix |
| --- | --- | --- |
| `admit` | full blocks of what was placed | nothing |
| `append` | blocks that it fills | prompt blocks placed before (radix), all blocks placed before (hash) |
| `free` | blocks that were never computed are withdrawn | all computed blocks, outputs included |
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from labkit.kv.block_pool import BlockPool
from labkit.kv.prefix_base import PrefixCache


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

    def forked(self, block_size: int) -> BlockTable:
        """The child's table: the same blocks, and the parent's content as far as it is placed. What follows is the
        child's own."""
        num_full = self.num_tokens // block_size
        return BlockTable(
            list(self.blocks),
            self.num_tokens,
            self.first_live,
            self.keys[:num_full],
            None if self.token_ids is None else self.token_ids[: self.num_tokens],
            min(self.num_prompt_keys, num_full),
            self.num_hits,
            self.num_published,
            self.priority,
            self.ttl_s,
        )


@dataclass(slots=True)
class Found:
    """What is cached of a request: whole blocks, and `num_inside` tokens at the start of block `inside`."""

    keys: list[Hashable] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    inside: int = -1
    num_inside: int = 0


class Publisher:
    """Methods that publish return by how many the token slots held by live requests change (a re-pointed table frees its
    copy and may pin an idle block)."""

    def __init__(self, prefix: PrefixCache, block_size: int):
        self.prefix, self.block_size = prefix, block_size
        self._last: tuple[Sequence, int, list[Hashable]] | None = None

    def find(self, token_ids: Sequence[int] | None, block_keys: Sequence[Hashable] | None) -> Found:
        """At least one known token is always left to compute, so that there is something to sample from."""
        if token_ids is None and block_keys is None:
            return Found()
        keys = self._keys_of(token_ids, block_keys)
        if token_ids is None:
            return Found(keys, self.prefix.match(keys, len(keys)))
        hits = self.prefix.match(keys, (len(token_ids) - 1) // self.block_size)
        if not self.prefix.partial_hits:
            return Found(keys, hits)
        at = len(hits) * self.block_size
        rest = token_ids[at : min(at + self.block_size, len(token_ids) - 1)]
        return Found(keys, hits, *self.prefix.match_inside(hits, rest))

    def joined(
        self, table: BlockTable, found: Found, token_ids: Sequence[int] | None, pool: BlockPool
    ) -> int:
        """The request was admitted onto `found.blocks`."""
        self._last = None  # its keys belong to the table now
        table.keys, table.num_prompt_keys = found.keys, len(found.keys)
        table.num_hits = table.num_published = len(found.blocks)
        table.token_ids = list(token_ids) if token_ids is not None else None
        return 0 if self.prefix.publishes_when_computed else self._publish(table, table.num_tokens, pool)

    def told(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        """Tokens that continue the known ones. After a gap they are of no use: keys are chains."""
        if table.token_ids is not None and len(table.token_ids) >= table.num_tokens:
            table.token_ids.extend(token_ids)

    def grows(self, table: BlockTable, pool: BlockPool) -> int:
        """Before new slots are placed: what was placed earlier is computed by now."""
        if not self.prefix.publishes_when_computed:
            return 0
        num_computed = table.num_tokens
        if self.prefix.publishes_outputs_at_end:
            num_computed = min(num_computed, table.num_prompt_keys * self.block_size)
        return self._publish(table, num_computed, pool)

    def grown(self, table: BlockTable, pool: BlockPool) -> int:
        """After new slots were placed."""
        return 0 if self.prefix.publishes_when_computed else self._publish(table, table.num_tokens, pool)

    def leaves(self, table: BlockTable, num_computed: int, pool: BlockPool) -> int:
        """Publish what was computed and not offered yet; withdraw what was offered and never computed."""
        prefix, delta, num_full = self.prefix, 0, num_computed // self.block_size
        if prefix.publishes_when_computed:
            delta = self._publish(table, num_computed, pool)
        elif table.num_published > max(num_full, table.num_hits):
            prefix.withdraw(table.blocks[max(num_full, table.num_hits) : table.num_published])
        ids = table.token_ids
        if prefix.partial_hits and ids is not None and num_full == table.num_published:
            tail = tuple(ids[num_full * self.block_size : num_computed])
            if tail and len(tail) == num_computed % self.block_size:
                blocks = table.blocks[: num_full + 1]
                prefix.publish_tail(table.keys[:num_full], blocks, tail, table.priority, table.ttl_s)
        return delta

    def _publish(self, table: BlockTable, num_tokens: int, pool: BlockPool) -> int:
        """Offer the full blocks of the first `num_tokens` tokens, as far as their content is known."""
        size, start, num_full = self.block_size, table.num_published, num_tokens // self.block_size
        if num_full <= start or table.first_live > start:
            return 0
        if table.token_ids is not None and num_full > len(table.keys):
            known = min(num_full, len(table.token_ids) // size)
            self.prefix.extend_keys(table.keys, table.token_ids, known)
        num_full = min(num_full, len(table.keys))
        if num_full <= start:
            return 0
        table.num_published = num_full
        delta = 0
        for index, block in self.prefix.publish(
            table.keys, table.blocks, start, num_full, table.priority, table.ttl_s
        ):
            mine, table.blocks[index] = table.blocks[index], block
            delta += pool.acquire([block]) * size
            delta -= pool.release([mine]) * size
        return delta

    def _keys_of(
        self, token_ids: Sequence[int] | None, block_keys: Sequence[Hashable] | None
    ) -> list[Hashable]:
        """The last answer is kept: a queue's head is asked about again in every step."""
        source: Sequence = token_ids if token_ids is not None else block_keys  # type: ignore[assignment]
        if self._last is not None and self._last[0] is source and self._last[1] == len(source):
            return self._last[2]
        keys: list[Hashable] = []
        if token_ids is not None:
            self.prefix.extend_keys(keys, token_ids, len(token_ids) // self.block_size)
        else:
            for page in source:
                self.prefix.extend_key(keys, page)
        self._last = (source, len(source), keys)
        return keys
