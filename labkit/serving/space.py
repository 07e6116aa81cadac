"""How a scheduler sees a cache manager: free, needed and findable, in blocks.

A contiguous cache has blocks of one token, and its free count does not say that the free tokens lie side by side: only
`admit` knows (its refusal is the limit "contiguous_room").
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from labkit.kv.base import KVCacheManager, KVStats
from labkit.serving.request import Request


class Space:
    """`num_blocks` blocks of `block_size` tokens and `block_bytes` bytes."""

    def __init__(self, kv: KVCacheManager):
        self.kv = kv
        self.block_size = kv.block_size
        self.block_bytes = kv.block_size * kv.bytes_per_token
        self.num_blocks = kv.num_total_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens`, the last one rounded up."""
        return -(-num_tokens // self.block_size)

    def blocks_asked(self, request: Request, num_hit_tokens: int) -> int:
        """Blocks that an admission takes from the pool for all that is known: a contiguous cache reserves a whole run."""
        return self.blocks_placed(request, num_hit_tokens, request.num_known_tokens, request.max_tokens)

    def blocks_placed(self, request: Request, num_hit_tokens: int, num_tokens: int, max_tokens: int) -> int:
        """The same for an `admit` of the first `num_tokens` of at most `max_tokens`."""
        reservation = getattr(self.kv, "reservation", None)
        if reservation is not None:
            final = request.num_prompt_tokens + request.target_output_tokens
            return int(reservation(num_tokens, max_tokens, final))
        return self.blocks_for(num_tokens) - self.blocks_for(num_hit_tokens)

    @property
    def num_free_blocks(self) -> int:
        """Blocks a new request could take: free ones, and cached ones that nobody holds."""
        return self.kv.num_free_blocks + self.kv.num_evictable_blocks

    def lookup(self, known: dict[str, Any]) -> int:
        """Tokens of `known` content that are cached now. Changes nothing and counts nothing."""
        return self.kv.lookup(**known) if known else 0

    def num_idle_hits(self, known: dict[str, Any]) -> int:
        """Blocks of a `lookup` that nobody holds: evictable, but not for the request that hits them."""
        return self.kv.num_idle_hits(**known) if known else 0

    def known(self, request: Request) -> dict[str, Any]:
        """Its content as `admit` and `lookup` take it: token ids, or one key a full block where a trace has only
        those (and its blocks are the cache's); empty when it cannot share."""
        token_ids = request.token_ids()
        if token_ids is not None:
            return {"token_ids": token_ids}
        keys = self._block_keys(request)
        return {"block_keys": keys} if keys else {}

    def room(self, request: Request) -> int:
        """Tokens that it may still write into slots it holds."""
        return self.kv.room(request.request_id)

    def stats(self, num_unplaced_tokens: int) -> KVStats:
        """The manager's stats, plus the tokens computed since it was last asked for room (`DecodeTable`)."""
        stats = self.kv.stats()
        lag = num_unplaced_tokens * self.kv.bytes_per_token
        return replace(stats, token_bytes=stats.token_bytes + lag) if lag else stats

    def _block_keys(self, request: Request) -> Sequence[Hashable]:
        """A trace's block is cut into this cache's blocks where it is longer (512 = 32 x 16)."""
        spec = request.spec
        if not spec.prefix_hashes or spec.prefix_block_size % self.block_size:
            return ()
        cuts = spec.prefix_block_size // self.block_size
        num_full = (spec.num_prompt_tokens - 1) // self.block_size
        if cuts == 1:
            return spec.prefix_hashes[:num_full]
        return [(h, i) for h in spec.prefix_hashes for i in range(cuts)][:num_full]
