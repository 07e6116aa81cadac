# mypy: disable-error-code="valid-type,name-defined"
"""The loop that all decode kernels share: walk a request's tokens tile by tile with an online softmax.

One program holds the `GROUP` query heads that read the same KV head, padded to at least 16 rows (the smallest matrix
instruction), so each key and value is loaded once for the whole group. Per tile of `BLOCK_N` tokens:

    paged, block_size >= BLOCK_N   one scalar block-table load, then rows at a fixed stride
    paged, block_size <  BLOCK_N   one block-table load per row (block_size 1: a lookup for every token)
    contiguous                     no lookup

Rows are `HEAD_DIM` contiguous elements: 16-byte loads, whatever the block size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labkit.errors import LabError
from labkit.kernels.backend import interpreting, jit, tl

HEAD_DIMS = (16, 32, 64, 128, 256)
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TRITON_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How a decode kernel is cut. `tile_n` tokens at a time, `rows` query rows (the group, padded)."""

    tile_n: int
    rows: int
    num_warps: int
    num_stages: int


def decode_config(dtype: torch.dtype, head_dim: int, group: int, quantized: bool) -> DecodeConfig:
    """Tiles chosen so that shapes do not spill (the exceptions stand in docs/kernels.md) and every key and value comes in
    16-byte loads (`labkit kernels compile` shows both).

    Products of float32 run on the plain ALUs, whose operands live in registers: smaller tiles. Quantised rows are not
    prefetched (one stage): Triton's asynchronous copy into the shared-memory layout of the later 16-bit product would
    move 8 bytes at a time.
    """
    rows = max(16, 1 << (group - 1).bit_length())
    if dtype == torch.float32:
        tile_n, num_stages = (16 if head_dim > 64 else 32), 2
    elif quantized:
        tile_n, num_stages = (32 if head_dim > 64 else 64), 1
    else:
        tile_n, num_stages = (32 if head_dim > 128 else 64), 3
    return DecodeConfig(tile_n, rows, num_warps=4, num_stages=1 if quantized else num_stages)


def check_supported(dtype: torch.dtype, head_dim: int, block_size: int | None = None) -> None:
    """Raise for what the Triton kernels are not built for (the torch references take anything)."""
    if dtype not in TRITON_DTYPES:
        raise LabError(f"query: has dtype {dtype}, the compiled kernels accept float16, bfloat16 and float32")
    if head_dim not in HEAD_DIMS:
        raise LabError(f"query: has head_dim {head_dim}, the compiled kernels accept {HEAD_DIMS}")
    if block_size is not None and block_size not in BLOCK_SIZES:
        raise LabError(f"k_cache: has block_size {block_size}, the compiled kernels accept {BLOCK_SIZES}")


def stride(tensor: torch.Tensor, dim: int) -> int:
    """The stride in elements; 0 for a dimension of size 1, whose stride means nothing."""
    return tensor.stride(dim) if tensor.shape[dim] > 1 else 0


def upcasts(dtype: torch.dtype) -> bool:
    """Triton's interpreter multiplies bfloat16 bit patterns as if they were integers: there, and only there, the
    operands of `tl.dot` are widened first."""
    return interpreting() and dtype == torch.bfloat16


@jit
def decode_tiles(
    q,
    k_head,
    v_head,
    k_scale,
    v_scale,
    table_row,
    base_slot,
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
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Tiles `[tile_begin, tile_end)` (multiples of BLOCK_N) of the visible positions `[start, stop)`.

    q [ROWS, HEAD_DIM]; k_head, v_head point at the KV head's first element. Returns the unnormalised sum
    [ROWS, HEAD_DIM] float32, the running maximum (base-2 exponent) and the sum of weights [ROWS].
    """
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, HEAD_DIM)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for tile in tl.range(tile_begin, tile_end, BLOCK_N):
        positions = tile + offs_n
        seen = (positions >= start) & (positions < stop)
        if PAGED:
            if BLOCK_SIZE >= BLOCK_N:
                block = tl.load(table_row + tile // BLOCK_SIZE).to(tl.int64)  # table
                offset = tile % BLOCK_SIZE + offs_n
            else:
                block = tl.load(table_row + positions // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)  # table
                offset = positions % BLOCK_SIZE
            k_rows = block * stride_k_block + offset * stride_k_slot
            v_rows = block * stride_v_block + offset * stride_v_slot
            slots = block * BLOCK_SIZE + offset
        else:
            slots = base_slot + positions
            k_rows = slots * stride_k_slot
            v_rows = slots * stride_v_slot
        k = tl.load(k_head + k_rows[:, None] + offs_d[None, :], mask=seen[:, None], other=0.0)  # kv
        v = tl.load(v_head + v_rows[:, None] + offs_d[None, :], mask=seen[:, None], other=0.0)  # kv
        if QUANTIZED:
            k_row_scale = tl.load(k_scale + slots * num_kv_heads + kv_head, mask=seen, other=0.0)
            v_row_scale = tl.load(v_scale + slots * num_kv_heads + kv_head, mask=seen, other=0.0)
            k = k.to(tl.float32).to(q.dtype)
            v = v.to(tl.float32).to(q.dtype)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
            scores = tl.dot(q.to(tl.float32), tl.trans(k), input_precision="ieee") * scale_log2
        else:
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        if QUANTIZED:
            scores = scores * k_row_scale[None, :]
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        if QUANTIZED:
            weights = weights * v_row_scale[None, :]
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        top = new_top
    return acc, top, total
