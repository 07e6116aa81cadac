"""Prefill and chunked prefill through a block table: several query tokens a request over a cached prefix."""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import uses_triton
from labkit.kernels.layout import clamped_positions, positions_to_slots
from labkit.kernels.reference import attend, gather_heads


def paged_prefill_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    cu_query_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    validate: bool = True,
) -> torch.Tensor:
    """Causal attention of the last tokens of each request over all its tokens so far, these included.

    query           [num_tokens, num_heads, head_dim]: the rows of all requests, one after the other
    cu_query_lens   [num_requests + 1]: request r owns the rows [cu_query_lens[r], cu_query_lens[r + 1])
    seq_lens        [num_requests]: cached prefix plus this chunk; row i of n is position seq_lens[r] - n + i
    k_cache, v_cache, block_tables, window as in `paged_decode_attention`; the chunk's keys are already written
    returns         [num_tokens, num_heads, head_dim] in the query's dtype
    """
    _check(
        query,
        k_cache,
        v_cache,
        block_tables,
        cu_query_lens,
        seq_lens,
        scale,
        window,
        k_scale,
        v_scale,
        validate,
    )
    if len(query) == 0:
        return torch.zeros_like(query)
    if uses_triton(query):
        raise LabError(
            "paged_prefill: the compiled kernel is not there yet; start with LABKIT_KERNELS=reference"
        )
    return paged_prefill_attention_reference(
        query,
        k_cache,
        v_cache,
        block_tables,
        cu_query_lens,
        seq_lens,
        scale=scale,
        window=window,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def paged_prefill_attention_reference(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    cu_query_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same in plain torch. Queries are padded to the longest chunk, keys to the longest visible context."""
    query_lens = cu_query_lens.diff()
    first_positions = seq_lens - query_lens
    starts = first_visible(seq_lens, query_lens, window)
    positions = clamped_positions(starts, seq_lens)
    slots = positions_to_slots(block_tables, positions, k_cache.shape[1])
    slots.masked_fill_((seq_lens == 0)[:, None], 0)
    keys, values = gather_heads(k_cache, slots, k_scale), gather_heads(v_cache, slots, v_scale)

    columns = torch.arange(int(query_lens.max()), device=query.device)
    real = columns < query_lens[:, None]
    rows = torch.minimum(columns, (query_lens[:, None] - 1).clamp_min(0))  # padding repeats the last row
    padded = query[(cu_query_lens[:-1, None] + rows).clamp_max(len(query) - 1)]
    at = (first_positions[:, None] + rows)[:, :, None]
    column_positions = starts[:, None] + torch.arange(positions.shape[1], device=query.device)
    visible = column_positions[:, None] <= at
    if window is not None:
        visible &= column_positions[:, None] > at - window
    visible[query_lens == 0] = True  # rows of nobody: kept finite, dropped below
    return attend(padded, keys, values, visible, scale)[real]


def first_visible(seq_lens: torch.Tensor, query_lens: torch.Tensor, window: int | None) -> torch.Tensor:
    """First position that the first query row of a chunk sees."""
    if window is None:
        return torch.zeros_like(seq_lens)
    return (seq_lens - query_lens + 1 - window).clamp_min(0).minimum(seq_lens)


def _check(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    cu_query_lens: torch.Tensor,
    seq_lens: torch.Tensor,
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
    checks.check_index("block_tables", block_tables, len(seq_lens))
    checks.check_index("seq_lens", seq_lens)
    checks.check_index("cu_query_lens", cu_query_lens)
    if len(cu_query_lens) != len(seq_lens) + 1:
        raise checks.fail(
            "cu_query_lens", f"has {len(cu_query_lens)} entries, accepted is {len(seq_lens) + 1}"
        )
    checks.check_scale_and_window(scale, window)
    if validate and len(seq_lens):
        query_lens = cu_query_lens.diff()
        checks.check_all(
            "cu_query_lens",
            cu_query_lens[1:] >= cu_query_lens[:-1],
            cu_query_lens[1:],
            "decreases to {value}",
        )
        if int(cu_query_lens[0]) != 0 or int(cu_query_lens[-1]) != len(query):
            raise checks.fail(
                "cu_query_lens",
                f"spans {int(cu_query_lens[0])} to {int(cu_query_lens[-1])}, accepted is 0 to {len(query)}",
            )
        checks.check_all(
            "seq_lens", seq_lens >= query_lens, seq_lens, "{value} is shorter than the request's query rows"
        )
        starts = first_visible(seq_lens, query_lens, window)
        checks.check_block_tables(block_tables, seq_lens, k_cache.shape[0], k_cache.shape[1], starts)
