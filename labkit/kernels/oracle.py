"""Attention written for reading, in float64: one request, one head, one query row at a time. The judge of all kernels.

It shares no code with the kernels or with their torch references. Rows of quantised caches must be dequantised first.
"""

from __future__ import annotations

import torch


def attention_row(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """`query [head_dim]`, `keys [n, head_dim]`, `values [n, value_dim]` -> `[value_dim]`; zeros for n = 0."""
    if len(keys) == 0:
        return torch.zeros(values.shape[-1], dtype=torch.float64)
    scores = (keys @ query) * scale
    weights = (scores - scores.max()).exp()
    return (weights / weights.sum()) @ values


def request_rows(cache: torch.Tensor, block_table: torch.Tensor, length: int) -> list[torch.Tensor]:
    """The `length` rows of one request, found one position at a time."""
    block_size = cache.shape[1]
    return [cache[int(block_table[p // block_size]), p % block_size] for p in range(length)]


def paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_lens: list[int],
    seq_lens: list[int],
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Prefill and decode alike: the rows of `query [num_tokens, num_heads, head_dim]` are the last `query_lens[r]`
    positions of request r. Decode is one row a request (also for a request of length 0, which gets zeros)."""
    query, k_cache, v_cache = (t.cpu().double() for t in (query, k_cache, v_cache))
    group = query.shape[1] // k_cache.shape[2]
    out = torch.zeros(*query.shape[:2], v_cache.shape[-1], dtype=torch.float64)
    row = 0
    for request, (num_rows, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        if length:
            keys = torch.stack(request_rows(k_cache, block_tables[request], length))
            values = torch.stack(request_rows(v_cache, block_tables[request], length))
        for i in range(num_rows):
            stop = length - num_rows + i + 1
            start = 0 if window is None else max(0, stop - window)
            for head in range(query.shape[1]) if stop > 0 else ():
                seen = slice(start, stop)
                out[row, head] = attention_row(
                    query[row, head], keys[seen, head // group], values[seen, head // group], scale
                )
            row += 1
    return out


def worst_head_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest of `||result - expected|| / ||expected||` over rows and heads; a head of zeros must be zeros exactly.

    Anything not finite counts as infinitely wrong."""
    result, expected = result.cpu().double().flatten(0, -2), expected.cpu().double().flatten(0, -2)
    if not bool(torch.isfinite(result).all()):
        return float("inf")
    if len(expected) == 0:
        return 0.0
    difference, size = (result - expected).norm(dim=-1), expected.norm(dim=-1)
    error = torch.where(
        size > 0, difference / size.clamp_min(1e-300), torch.where(difference > 0, torch.inf, 0.0)
    )
    return float(error.max())
