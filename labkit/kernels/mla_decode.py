"""MLA decode: attention on the latent cache, where one row serves as key and value of every head."""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import uses_triton
from labkit.kernels.layout import clamped_positions, positions_to_slots
from labkit.kernels.reference import attend_last, gather_heads


def mla_decode_attention(
    query: torch.Tensor,
    latent_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    latent_dim: int = 512,
    validate: bool = True,
) -> torch.Tensor:
    """One query token a request over its latent rows, in DeepSeek's absorbed form (DeepSeek-V2, section 2.1.2).

    query          [num_requests, num_heads, latent_dim + rope_dim]: q_nope times W_UK, then q_rope
    latent_cache   [num_blocks, block_size, latent_dim + rope_dim]: the compressed KV, then the shared rotary key
    returns        [num_requests, num_heads, latent_dim]: still to be multiplied by W_UV

    Scores use the whole row, the weighted sum its first `latent_dim` entries.
    """
    _check(query, latent_cache, block_tables, seq_lens, scale, latent_dim, validate)
    if len(query) == 0:
        return query.new_zeros(*query.shape[:2], latent_dim)
    if uses_triton(query):
        raise LabError(
            "mla_decode: the compiled kernel is not there yet; start with LABKIT_KERNELS=reference"
        )
    return mla_decode_attention_reference(
        query, latent_cache, block_tables, seq_lens, scale=scale, latent_dim=latent_dim
    )


def mla_decode_attention_reference(
    query: torch.Tensor,
    latent_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    latent_dim: int = 512,
) -> torch.Tensor:
    """The same in plain torch: one KV head whose values are a prefix of its keys."""
    if block_tables.shape[1] == 0:
        return query.new_zeros(*query.shape[:2], latent_dim)
    starts = torch.zeros_like(seq_lens)
    positions = clamped_positions(starts, seq_lens)
    slots = positions_to_slots(block_tables, positions, latent_cache.shape[1])
    slots.masked_fill_((seq_lens == 0)[:, None], 0)
    rows = gather_heads(latent_cache[:, :, None], slots)
    return attend_last(query, rows, rows[..., :latent_dim], positions, starts, seq_lens, scale)


def _check(
    query: torch.Tensor,
    latent_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    latent_dim: int,
    validate: bool,
) -> None:
    checks.check_rank("query", query, "num_requests, num_heads, latent_dim + rope_dim")
    checks.check_rank("latent_cache", latent_cache, "num_blocks, block_size, latent_dim + rope_dim")
    checks.check_devices(query=query, latent_cache=latent_cache, block_tables=block_tables, seq_lens=seq_lens)
    if query.dtype != latent_cache.dtype:
        raise checks.fail(
            "query", f"has dtype {query.dtype}, accepted is that of latent_cache ({latent_cache.dtype})"
        )
    if query.shape[-1] != latent_cache.shape[-1]:
        raise checks.fail(
            "query", f"has rows of {query.shape[-1]}, accepted is latent_cache's {latent_cache.shape[-1]}"
        )
    if not 0 < latent_dim <= query.shape[-1]:
        raise checks.fail("latent_dim", f"is {latent_dim}, accepted are 1 to {query.shape[-1]}")
    checks.check_rank("block_tables", block_tables, "num_requests, max_blocks")
    checks.check_index("block_tables", block_tables, len(query))
    checks.check_index("seq_lens", seq_lens, len(query))
    checks.check_scale_and_window(scale, None)
    if validate and len(query):
        num_blocks, block_size = latent_cache.shape[:2]
        checks.check_block_tables(block_tables, seq_lens, num_blocks, block_size, torch.zeros_like(seq_lens))
