"""Blocks of a model whose layers do not all keep the same: vLLM's hybrid KV cache groups, next to one flat pool.

vLLM puts layers of one kind into groups of equal size that share the pool's tensors (`v1/core/kv_cache_utils.py`,
`_get_kv_cache_groups_uniform_page_size`): a block belongs to one group and holds `block_size` tokens of the layers of
that group. A request holds blocks of every group: all its tokens for full attention; for a sliding window the window
and the tokens of one step, plus one block for a window that is not aligned; for linear attention one block a group,
which holds the state of fixed size. So that all blocks have one size, the attention block then grows to the size of a
state: Qwen3.5-27B (784 tokens, four groups) printed 290,864 tokens and 33.04x for 32,768 tokens = 1,487 blocks / (42 + 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from labkit.models.spec import ModelSpec

#: blocks are multiples of this many tokens
ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class KVGroups:
    """`bytes_per_token` is what one token takes in a block of one group; a uniform model has one group. Of `num_groups`
    the full and the state groups are counted apart; the others slide."""

    num_groups: int
    num_full_groups: int
    bytes_per_token: int
    sliding_window: int | None = None
    num_state_groups: int = 0
    #: tokens a block must hold so that a state fits into one; None where the engine's block size stays
    block_size: int | None = None

    def blocks_per_request(self, num_tokens: int, block_size: int, max_batched_tokens: int) -> int:
        """Blocks that a request of `num_tokens` can hold at once, over all groups."""
        full = -(-num_tokens // block_size)
        sliding = 0
        if self.sliding_window is not None:
            seen = min(self.sliding_window - 1 + max_batched_tokens, num_tokens)
            sliding = -(-seen // block_size) + 1
        num_sliding = self.num_groups - self.num_full_groups - self.num_state_groups
        return self.num_full_groups * full + num_sliding * sliding + self.num_state_groups

    def num_tokens(self, num_blocks: int, block_size: int) -> int:
        """The "GPU KV cache size" that is printed: what the pool holds if every group kept every token."""
        return num_blocks // self.num_groups * block_size


def kv_groups(model: ModelSpec, kv_dtype: str = "auto", tp: int = 1, *, hybrid: bool = True) -> KVGroups:
    """Groups of a model on one rank. `hybrid=False`: every layer in one group, as if all kept every token."""
    if hybrid and model.linear is not None:
        return _with_states(model, kv_dtype, tp)
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


def _with_states(model: ModelSpec, kv_dtype: str, tp: int) -> KVGroups:
    full, linear = model.num_layers_of("full"), model.num_layers_of("linear")
    per_layer = model.kv_bytes_per_token_per_layer(kv_dtype, tp)
    state = model.state_bytes_per_sequence(tp) / linear
    block_size = ceil(state / per_layer / ALIGNMENT) * ALIGNMENT
    size = min(full, linear)
    num_full, num_state = -(-full // size), -(-linear // size)
    return KVGroups(num_full + num_state, num_full, round(size * per_layer), None, num_state, block_size)
