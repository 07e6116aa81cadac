"""Blocks of a model whose layers do not all keep the same: vLLM's hybrid KV cache groups, next to one flat pool.

vLLM puts layers of one kind into groups of equal size that share the pool's tensors (`v1/core/kv_cache_utils.py`,
`_get_kv_cache_groups_uniform_page_size`): a block belongs to one group and holds `block_size` tokens of the layers of
that group. A request holds blocks of every group: all its tokens for full attention; for a sliding window the window
and the tokens of one step, plus one block for a window that is not aligned.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KVGroups:
    """`bytes_per_token` is what one token takes in a block of one group; a uniform model has one group."""

    num_groups: int
    num_full_groups: int
    bytes_per_token: int
    sliding_window: int | None

    def blocks_per_request(self, num_tokens: int, block_size: int, max_batched_tokens: int) -> int:
        """Blocks that a request of `num_tokens` can hold at once, over all groups."""
        full = -(-num_tokens // block_size)
        sliding = 0
        if self.sliding_window is not None:
            seen = min(self.sliding_window - 1 + max_batched_tokens, num_tokens)
            sliding = -(-seen // block_size) + 1
        return self.num_full_groups * full + (self.num_groups - self.num_full_groups) * sliding

    def num_tokens(self, num_blocks: int, block_size: int) -> int:
        """The "GPU KV cache size" that is printed: what the pool holds if every group kept every token."""
        return num_blocks // self.num_groups * block_size


def kv_groups(model: ModelSpec, kv_dtype: str = "auto", tp: int = 1, *, hybrid: bool = True) -> KVGroups:
    """Groups of a model on one rank. `hybrid=False`: every layer in one group, as if all kept every token."""
    full, sliding = model.num_layers_of("full"), model.num_layers_of("sliding")
    per_layer = model.kv_bytes_per_token_per_layer(kv_dtype, tp)
    if not hybrid or not sliding or not full:
        window = model.sliding_window if hybrid and not full else None
        return KVGroups(1, 0 if window else 1, round((full + sliding) * per_layer), window)
    size = min(full, sliding)
    if max(full, sliding) < 1.25 * size:
        size = max(full, sliding)
    num_full, num_sliding = -(-full // size), -(-sliding // size)
    return KVGroups(num_full + num_sliding, num_full, round(size * per_layer), model.sliding_window)
