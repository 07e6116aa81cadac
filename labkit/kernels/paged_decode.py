"""Decode attention through a block table."""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import uses_triton
from labkit.kernels.layout import clamped_positions, positions_to_slots
from labkit.kernels.reference import attend_last, gather_heads


def paged_decode_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    num_splits: int | None = None,
    validate: bool = True,
) -> torch.Tensor:
    """One query token a request over the keys and values in its blocks.

    query              [num_requests, num_heads, head_dim]
    k_cache, v_cache   [num_blocks, block_size, num_kv_heads, head_dim]
    block_tables       [num_requests, max_blocks]; entries behind the used part may be garbage
    seq_lens           [num_requests], the new token included; a request of length 0 gets zeros
    window             the query sees only the last `window` positions; blocks wholly before them are never read
    num_splits         pieces into which a context is cut, each for its own program (see `paged_decode_split`); None
                       lets the launcher choose, the reference has no use for it
    returns            [num_requests, num_heads, head_dim] in the query's dtype
    """
    starts = window_starts(seq_lens, window)
    _check(query, k_cache, v_cache, block_tables, seq_lens, starts, scale, window, k_scale, v_scale, validate)
    if len(query) == 0:
        return torch.zeros_like(query)
    if uses_triton(query):
        raise LabError(
            "paged_decode: the compiled kernel is not there yet; start with LABKIT_KERNELS=reference"
        )
    return paged_decode_attention_reference(
        query,
        k_cache,
        v_cache,
        block_tables,
        seq_lens,
        scale=scale,
        window=window,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def paged_decode_attention_reference(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same in plain torch."""
    if block_tables.shape[1] == 0:
        return torch.zeros_like(query)
    starts = window_starts(seq_lens, window)
    positions = clamped_positions(starts, seq_lens)
    slots = positions_to_slots(block_tables, positions, k_cache.shape[1])
    slots.masked_fill_((seq_lens == 0)[:, None], 0)
    keys, values = gather_heads(k_cache, slots, k_scale), gather_heads(v_cache, slots, v_scale)
    return attend_last(query, keys, values, positions, starts, seq_lens, scale)


def window_starts(seq_lens: torch.Tensor, window: int | None) -> torch.Tensor:
    """First visible position of the last token: `max(0, length - window)`."""
    return torch.zeros_like(seq_lens) if window is None else (seq_lens - window).clamp_min(0)


def _check(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    starts: torch.Tensor,
    scale: float,
    window: int | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    validate: bool,
) -> None:
    checks.check_rank("k_cache", k_cache, "num_blocks, block_size, num_kv_heads, head_dim")
    checks.check_devices(
        query=query, k_cache=k_cache, v_cache=v_cache, block_tables=block_tables, seq_lens=seq_lens
    )
    checks.check_cache_pair(k_cache, v_cache, k_scale, v_scale)
    checks.check_query(query, k_cache)
    checks.check_rank("block_tables", block_tables, "num_requests, max_blocks")
    checks.check_index("block_tables", block_tables, len(query))
    checks.check_index("seq_lens", seq_lens, len(query))
    checks.check_scale_and_window(scale, window)
    if validate and len(query):
        checks.check_block_tables(block_tables, seq_lens, k_cache.shape[0], k_cache.shape[1], starts)
