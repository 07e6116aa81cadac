"""What a user would pick instead, set up on the lab's own tensors. Each function prepares and returns a call to time.

Preparation (transposed views, masks, plans, compilation) is not part of the time; `NotHere` says that a library is missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


class NotHere(Exception):
    """The alternative is not installed on this machine."""


def sdpa_decode(
    query: torch.Tensor, k_rows: torch.Tensor, v_rows: torch.Tensor, scale: float
) -> Callable[[], Any]:
    """`scaled_dot_product_attention` over contiguous KV of equal lengths: `k_rows [batch * context, kv_heads, dim]`."""
    batch = len(query)
    keys, values = (rows.unflatten(0, (batch, -1)).transpose(1, 2) for rows in (k_rows, v_rows))
    rows = query[:, :, None]
    return lambda: F.scaled_dot_product_attention(rows, keys, values, scale=scale, enable_gqa=True)


def sdpa_prefill(
    query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: int, scale: float
) -> Callable[[], Any]:
    """The same for chunks over a prefix of contiguous KV; the causal mask is aligned at the lower right corner."""
    from torch.nn.attention.bias import causal_lower_right

    keys, values = (
        cache.flatten(0, 1).unflatten(0, (batch, -1)).transpose(1, 2).contiguous()
        for cache in (k_cache, v_cache)
    )
    group = query.shape[1] // keys.shape[1]
    keys, values = (t.repeat_interleave(group, 1) for t in (keys, values))
    rows = query.unflatten(0, (batch, -1)).transpose(1, 2).contiguous()
    mask = causal_lower_right(rows.shape[2], keys.shape[2])
    return lambda: F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)


def flex_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> Callable[[], Any]:
    """FlexAttention over the whole pool with a mask that knows which physical block is whose (as PyTorch's own
    `torch.nn.attention.experimental._paged_attention` does). Compiled on a GPU, eager on a CPU."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    num_blocks, block_size = k_cache.shape[:2]
    batch, width = block_tables.shape
    logical = torch.full((batch, num_blocks), -1, device=query.device)
    columns = torch.arange(width, device=query.device).expand(batch, width)
    logical.scatter_(1, block_tables.long(), columns)

    def visible(b: Any, h: Any, q: Any, slot: Any) -> Any:
        block = logical[b, slot // block_size]
        return (block >= 0) & (block * block_size + slot % block_size < seq_lens[b])

    used = (seq_lens + block_size - 1) // block_size
    indices = torch.zeros(batch, 1, 1, num_blocks, dtype=torch.int32, device=query.device)
    indices[:, 0, 0, :width] = block_tables
    mask = BlockMask.from_kv_blocks(
        used.int().view(batch, 1, 1),
        indices,
        BLOCK_SIZE=(128, block_size),
        mask_mod=visible,
        seq_lengths=(1, num_blocks * block_size),
    )
    keys, values = (cache.flatten(0, 1).transpose(0, 1)[None] for cache in (k_cache, v_cache))
    run: Any = torch.compile(flex_attention) if query.is_cuda else flex_attention
    rows = query[:, :, None]
    call: Callable[[], Any] = lambda: run(rows, keys, values, block_mask=mask, scale=scale, enable_gqa=True)  # noqa: E731
    call()
    return call


def flashinfer_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> Callable[[], Any]:
    """FlashInfer's batch decode on the same pool (its "NHD" layout is the lab's). Raises `NotHere` if not installed."""
    try:
        flashinfer: Any = importlib.import_module("flashinfer")
    except ImportError:
        raise NotHere("not installed") from None
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    used = (seq_lens + block_size - 1) // block_size
    indptr = F.pad(used.cumsum(0), (1, 0)).int()
    columns = torch.arange(block_tables.shape[1], device=query.device)
    indices = block_tables[columns < used[:, None]].int()
    last = (seq_lens - (used - 1) * block_size).int()
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=query.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        indptr,
        indices,
        last,
        query.shape[1],
        num_kv_heads,
        head_dim,
        block_size,
        q_data_type=query.dtype,
        kv_data_type=k_cache.dtype,
        sm_scale=scale,
    )
    return lambda: wrapper.run(query, (k_cache, v_cache))
