# mypy: disable-error-code="valid-type,name-defined"
"""Paged decode, split over the context: several programs a (request, KV head), then a reduction.

One long request with 8 KV heads keeps 8 programs busy on a GPU with 100 multiprocessors. Cut into S pieces it keeps
8 * S busy; each piece leaves its own softmax sum, and the pieces are joined by their log-sum-exp (the "flash-decoding"
idea; exact up to rounding). What it costs over the single pass, per call:

    write + read   2 * num_requests * num_heads * S * (head_dim + 1) * 4    partial sums and log-sum-exps, float32
    launches       one more

The torch reference is that of the single pass: splitting may not change the result.
"""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels.backend import jit, tl
from labkit.kernels.decode_tiles import decode_config, decode_tiles, stride
from labkit.kernels.paged_context import PagedContext

#: see `paged_decode.ALIGNED`; the partial results are this launcher's own contiguous tensors
ALIGNED = (
    "partial",
    "query",
    "k_cache",
    "v_cache",
    "stride_q_row",
    "stride_q_head",
    "stride_k_block",
    "stride_k_slot",
    "stride_k_head",
    "stride_v_block",
    "stride_v_slot",
    "stride_v_head",
)
REDUCE_ALIGNED = ("out", "partial", "stride_out_row", "stride_out_head")


@jit(
    do_not_specialize=[
        "partial_lse",
        "k_scale",
        "v_scale",
        "block_tables",
        "seq_lens",
        "scale_log2",
        "num_kv_heads",
        "num_splits",
        "window",
        "stride_table",
    ]
)
def paged_decode_split_kernel(
    partial,
    partial_lse,
    query,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    block_tables,
    seq_lens,
    scale_log2,
    num_kv_heads,
    num_splits,
    window,
    stride_q_row,
    stride_q_head,
    stride_k_block,
    stride_k_slot,
    stride_k_head,
    stride_v_block,
    stride_v_slot,
    stride_v_head,
    stride_table,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Program (request, KV head, piece): tiles [piece * per_piece, (piece + 1) * per_piece) of the visible ones."""
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    piece = tl.program_id(2)
    offs_g = tl.arange(0, ROWS)
    offs_d = tl.arange(0, HEAD_DIM)
    heads = kv_head * GROUP + offs_g
    real = offs_g < GROUP
    stop = tl.load(seq_lens + request).to(tl.int32)
    start = 0
    if WINDOWED:
        start = tl.maximum(stop - window, 0)
    first_tile = start // BLOCK_N * BLOCK_N
    per_piece = tl.cdiv(tl.cdiv(stop - first_tile, BLOCK_N), num_splits) * BLOCK_N
    tile_begin = first_tile + piece * per_piece
    tile_end = tl.minimum(tile_begin + per_piece, stop)
    q_at = query + request * stride_q_row + heads[:, None] * stride_q_head + offs_d[None, :]
    q = tl.load(q_at, mask=real[:, None], other=0.0)
    acc, top, total = decode_tiles(
        q,
        k_cache + kv_head * stride_k_head,
        v_cache + kv_head * stride_v_head,
        k_scale,
        v_scale,
        block_tables + request * stride_table,
        0,
        start,
        stop,
        tile_begin,
        tile_end,
        kv_head,
        num_kv_heads,
        stride_k_block,
        stride_k_slot,
        stride_v_block,
        stride_v_slot,
        scale_log2,
        HEAD_DIM,
        ROWS,
        BLOCK_N,
        BLOCK_SIZE,
        True,
        QUANTIZED,
        UPCAST,
    )
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    lse = tl.where(total > 0, top + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
    row = (request * num_kv_heads * GROUP + heads) * num_splits + piece
    tl.store(partial + row[:, None] * HEAD_DIM + offs_d[None, :], acc, mask=real[:, None])
    tl.store(partial_lse + row, lse, mask=real)


@jit(do_not_specialize=["partial_lse", "num_splits", "num_heads"])
def paged_decode_reduce_kernel(
    out,
    partial,
    partial_lse,
    num_splits,
    num_heads,
    stride_out_row,
    stride_out_head,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Program (request, head): weight the pieces by `2 ** (lse - max lse)`. SPLITS is num_splits padded to a power of 2."""
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    offs_s = tl.arange(0, SPLITS)
    offs_d = tl.arange(0, HEAD_DIM)
    row = (request * num_heads + head) * num_splits + offs_s
    lse = tl.load(partial_lse + row, mask=offs_s < num_splits, other=float("-inf"))
    top = tl.max(lse, 0)
    weights = tl.where(lse > float("-inf"), tl.exp2(lse - tl.where(top > float("-inf"), top, 0.0)), 0.0)
    pieces = tl.load(
        partial + row[:, None] * HEAD_DIM + offs_d[None, :], mask=weights[:, None] > 0, other=0.0
    )
    total = tl.sum(weights, 0)
    result = tl.sum(pieces * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(
        out + request * stride_out_row + head * stride_out_head + offs_d, result.to(out.dtype.element_ty)
    )


def launch_split(query: torch.Tensor, context: PagedContext, num_splits: int) -> torch.Tensor:
    """Both launches; the arguments are those of `paged_decode_attention`, already checked there."""
    if not 1 <= num_splits <= 64:
        raise LabError(f"num_splits: is {num_splits}, accepted are 1 to 64")
    num_requests, num_heads, head_dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    pieces = (num_requests, num_heads, num_splits)
    partial = torch.empty(*pieces, head_dim, dtype=torch.float32, device=query.device)
    partial_lse = torch.empty(pieces, dtype=torch.float32, device=query.device)
    context.check_launch(query, out=out, partial=partial)
    group = num_heads // context.num_kv_heads
    config = decode_config(query.dtype, head_dim, group, context.is_quantized)
    paged_decode_split_kernel[(num_requests, context.num_kv_heads, num_splits)](
        partial,
        partial_lse,
        num_splits=num_splits,
        **context.kernel_arguments(query),
        ROWS=config.rows,
        BLOCK_N=config.tile_n,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    paged_decode_reduce_kernel[(num_requests, num_heads)](
        out,
        partial,
        partial_lse,
        num_splits,
        num_heads,
        stride(out, 0),
        stride(out, 1),
        HEAD_DIM=head_dim,
        SPLITS=1 << (num_splits - 1).bit_length(),
        num_warps=4,
    )
    return out
