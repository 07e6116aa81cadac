# mypy: disable-error-code="valid-type,name-defined"
"""Decode attention over a contiguous cache: each request owns a run of slots.

One program a (request, KV head); bytes and FLOPs are those of `paged_decode` without the table entries: one base slot of
8 bytes a request instead. Row addresses follow from the base by arithmetic, nothing is looked up.
"""

from __future__ import annotations

import math

import torch

from labkit.kernels import checks
from labkit.kernels.backend import jit, tl, uses_triton
from labkit.kernels.decode_tiles import check_supported, decode_config, decode_tiles, stride, upcasts
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
        return _launch(query, k_cache, v_cache, base_slots, seq_lens, scale, k_scale, v_scale)
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


#: see `paged_decode.ALIGNED`
ALIGNED = (
    "out",
    "query",
    "k_cache",
    "v_cache",
    "stride_out_row",
    "stride_out_head",
    "stride_q_row",
    "stride_q_head",
    "stride_k_slot",
    "stride_k_head",
    "stride_v_slot",
    "stride_v_head",
)


@jit(do_not_specialize=["k_scale", "v_scale", "base_slots", "seq_lens", "scale_log2", "num_kv_heads"])
def contiguous_decode_kernel(
    out,
    query,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    base_slots,
    seq_lens,
    scale_log2,
    num_kv_heads,
    stride_out_row,
    stride_out_head,
    stride_q_row,
    stride_q_head,
    stride_k_slot,
    stride_k_head,
    stride_v_slot,
    stride_v_head,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    QUANTIZED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Program (request, KV head)."""
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    offs_g = tl.arange(0, ROWS)
    offs_d = tl.arange(0, HEAD_DIM)
    heads = kv_head * GROUP + offs_g
    real = offs_g < GROUP
    base_slot = tl.load(base_slots + request).to(tl.int64)
    stop = tl.load(seq_lens + request).to(tl.int32)
    q_at = query + request * stride_q_row + heads[:, None] * stride_q_head + offs_d[None, :]
    q = tl.load(q_at, mask=real[:, None], other=0.0)
    acc, _, total = decode_tiles(
        q,
        k_cache + kv_head * stride_k_head,
        v_cache + kv_head * stride_v_head,
        k_scale,
        v_scale,
        base_slots,
        base_slot,
        0,
        stop,
        0,
        stop,
        kv_head,
        num_kv_heads,
        0,
        stride_k_slot,
        0,
        stride_v_slot,
        scale_log2,
        HEAD_DIM,
        ROWS,
        BLOCK_N,
        1,
        False,
        QUANTIZED,
        UPCAST,
    )
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    out_at = out + request * stride_out_row + heads[:, None] * stride_out_head + offs_d[None, :]
    tl.store(out_at, result.to(out.dtype.element_ty), mask=real[:, None])


def _launch(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    base_slots: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> torch.Tensor:
    num_requests, num_heads, head_dim = query.shape
    num_kv_heads = k_cache.shape[1]
    group = num_heads // num_kv_heads
    check_supported(query.dtype, head_dim)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    checks.check_alignment(query=query, k_cache=k_cache, v_cache=v_cache, out=out)
    checks.check_contiguous(k_scale=k_scale, v_scale=v_scale, base_slots=base_slots, seq_lens=seq_lens)
    config = decode_config(query.dtype, head_dim, group, k_scale is not None)
    contiguous_decode_kernel[(num_requests, num_kv_heads)](
        out,
        query,
        k_cache,
        v_cache,
        k_scale if k_scale is not None else seq_lens,
        v_scale if v_scale is not None else seq_lens,
        base_slots,
        seq_lens,
        scale * math.log2(math.e),
        num_kv_heads,
        stride(out, 0),
        stride(out, 1),
        stride(query, 0),
        stride(query, 1),
        stride(k_cache, 0),
        stride(k_cache, 1),
        stride(v_cache, 0),
        stride(v_cache, 1),
        GROUP=group,
        ROWS=config.rows,
        HEAD_DIM=head_dim,
        BLOCK_N=config.tile_n,
        QUANTIZED=k_scale is not None,
        UPCAST=upcasts(query.dtype),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


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
