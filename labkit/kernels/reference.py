"""The attention that every kernel is measured against: gather the rows, two matrix products, a softmax.

Vectorised over requests, heads and tokens. Rows are padded to the longest request of the call; the padding repeats a
request's own last row and is masked. Half-precision inputs are computed in float32, float64 stays float64.
"""

from __future__ import annotations

import torch

from labkit.kernels.quantize import dequantize, is_quantized, raw


def gather_heads(cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of a cache, head by head: `[num_requests, num_kv_heads, n, head_dim]`, contiguous.

    cache   [num_slots, num_kv_heads, head_dim] or [num_blocks, block_size, num_kv_heads, head_dim], any strides
    slots   [num_requests, n] int64
    scale   one value per row of the cache, for quantised caches
    """
    num_heads, head_dim = cache.shape[-2:]
    heads = torch.arange(num_heads, device=slots.device)[None, :, None]
    rows = slots[:, None, :] * num_heads + heads
    if cache.is_contiguous():
        gathered = raw(cache).view(-1, head_dim).index_select(0, rows.reshape(-1)).view(*rows.shape, head_dim)
    else:
        gathered = raw(cache)[(*_place(cache, slots[:, None, :]), heads)]
    gathered = gathered.view(cache.dtype)
    if is_quantized(cache.dtype):
        assert scale is not None
        gathered = dequantize(gathered, scale[(*_place(scale[..., None], slots[:, None, :]), heads)])
    return gathered


def _place(cache: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Index of `slots` into the leading one (slots) or two (blocks, offsets) dimensions of a cache."""
    return (slots,) if cache.dim() == 3 else (slots // cache.shape[1], slots % cache.shape[1])


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor, scale: float
) -> torch.Tensor:
    """Softmax attention of `query [num_requests, num_queries, num_heads, head_dim]`.

    keys, values   [num_requests, num_kv_heads, num_keys, head_dim]; query head h reads KV head h // group
    visible        [num_requests, num_queries, num_keys] bool; each query row sees at least one key
    returns        [num_requests, num_queries, num_heads, value_dim] in the query's dtype
    """
    num_requests, num_queries, num_heads, head_dim = query.shape
    num_kv_heads, num_keys, value_dim = keys.shape[1], keys.shape[2], values.shape[3]
    group = num_heads // num_kv_heads
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    grouped = query.view(num_requests, num_queries, num_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(num_requests * num_kv_heads, group * num_queries, head_dim).to(dtype) * scale
    scores = torch.bmm(grouped, keys.to(dtype).flatten(0, 1).transpose(1, 2))
    scores = scores.view(num_requests, num_kv_heads * group, num_queries, num_keys)
    scores.masked_fill_(~visible[:, None], float("-inf"))
    weights = scores.softmax(-1).view(num_requests * num_kv_heads, group * num_queries, num_keys)
    out = torch.bmm(weights, values.to(dtype).flatten(0, 1))
    out = out.view(num_requests, num_kv_heads, group, num_queries, value_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(num_requests, num_queries, num_heads, value_dim).to(query.dtype)


def attend_last(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    starts: torch.Tensor,
    stops: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Decode: one query `[num_requests, num_heads, head_dim]` over the keys of positions `[start, stop)`; 0 if none.

    `positions [num_requests, n]` are those of `keys`, as `clamped_positions` pads them.
    """
    columns = torch.arange(positions.shape[1], device=positions.device)
    visible = columns < (stops - starts).clamp_min(1)[:, None]
    out = attend(query[:, None], keys, values, visible[:, None], scale)[:, 0]
    return out.masked_fill_((stops <= starts)[:, None, None], 0)
