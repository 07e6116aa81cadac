"""The one memory layout of KV, and the arithmetic from positions to slots.

    k_cache, v_cache   [num_blocks, block_size, num_kv_heads, head_dim]
    slot               block * block_size + offset: the number of a token's row, in [0, num_blocks * block_size)
    contiguous cache   the same memory seen as [num_slots, num_kv_heads, head_dim]; a request owns the slots
                       [base_slot, base_slot + length)
    latent cache       [num_blocks, block_size, latent_dim + rope_dim] (MLA: one row for all heads, K and V at once)
    k_scale, v_scale   [num_blocks, block_size, num_kv_heads] float32, only for int8 and fp8 caches

    position p of a request      block_tables[r, p // block_size] * block_size + p % block_size
    used part of a table's row   [0, ceil(length / block_size)); what lies behind it is never read

All tokens of one head are `num_kv_heads * head_dim` elements apart and each head's row is contiguous, so a warp reads a
row in 16-byte pieces wherever its block lies.
"""

from __future__ import annotations

import torch


def as_slots(cache: torch.Tensor) -> torch.Tensor:
    """`[num_blocks, block_size, ...] -> [num_slots, ...]`, a view (the block stride must be block_size slots)."""
    return cache.flatten(0, 1)


def positions_to_slots(block_tables: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """Slots `[num_requests, n]` (int64) of `positions [num_requests, n]`, which must lie in the used part."""
    return block_tables.gather(1, positions // block_size).long() * block_size + positions % block_size


def clamped_positions(starts: torch.Tensor, stops: torch.Tensor) -> torch.Tensor:
    """`[num_requests, max(stops - starts)]`: the positions `[start, stop)` of each row, the last one repeated.

    Rows are padded with a position that is really theirs, so that nothing unwritten is read and no garbage of a block
    table is followed. An empty row is padded with position 0; its result must be discarded.
    """
    width = max(1, int((stops - starts).max())) if len(stops) else 1
    columns = torch.arange(width, device=stops.device)
    return torch.minimum(starts[:, None] + columns, (stops[:, None] - 1).clamp_min(0)).long()
