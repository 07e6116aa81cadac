"""Decode attention over a contiguous cache: each request owns a run of slots."""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import uses_triton
from labkit.kernels.layout import clamped_positions
from labkit.kernels.reference import attend_last, gather_heads


def contiguous_decode_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    base_slots: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    validate: bool = True,
) -> torch.Tensor:
    """One query token a request over its slots `[base_slots[r], base_slots[r] + seq_lens[r])`.

    query                 [num_requests, num_heads, head_dim]
    k_cache, v_cache      [num_slots, num_kv_heads, head_dim]
    base_slots, seq_lens  [num_requests], int32 or int64
    returns               [num_requests, num_heads, head_dim] in the query's dtype; a request of length 0 gets zeros
    """
    _check(query, k_cache, v_cache, base_slots, seq_lens, scale, k_scale, v_scale, validate)
    if len(query) == 0:
        return torch.zeros_like(query)
    if uses_triton(query):
        raise LabError(
            "contiguous_decode: the compiled kernel is not there yet; start with LABKIT_KERNELS=reference"
        )
    return contiguous_decode_attention_reference(
        query, k_cache, v_cache, base_slots, seq_lens, scale=scale, k_scale=k_scale, v_scale=v_scale
    )


def contiguous_decode_attention_reference(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    base_slots: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same in plain torch."""
    starts = torch.zeros_like(seq_lens)
    positions = clamped_positions(starts, seq_lens)
    slots = (base_slots[:, None] + positions).masked_fill((seq_lens == 0)[:, None], 0)
    keys, values = gather_heads(k_cache, slots, k_scale), gather_heads(v_cache, slots, v_scale)
    return attend_last(query, keys, values, positions, starts, seq_lens, scale)


def _check(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    base_slots: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    validate: bool,
) -> None:
    checks.check_rank("k_cache", k_cache, "num_slots, num_kv_heads, head_dim")
    checks.check_devices(
        query=query, k_cache=k_cache, v_cache=v_cache, base_slots=base_slots, seq_lens=seq_lens
    )
    checks.check_cache_pair(k_cache, v_cache, k_scale, v_scale)
    checks.check_query(query, k_cache)
    checks.check_index("base_slots", base_slots, len(query))
    checks.check_index("seq_lens", seq_lens, len(query))
    checks.check_scale_and_window(scale, None)
    if validate and len(query):
        checks.check_lengths(seq_lens)
        num_slots = len(k_cache)
        good = ((base_slots >= 0) & (base_slots + seq_lens <= num_slots)) | (seq_lens == 0)
        checks.check_all(
            "base_slots",
            good,
            base_slots,
            f"slots from {{value}} on do not lie inside the cache's {num_slots} slots",
        )
