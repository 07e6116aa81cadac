# mypy: disable-error-code="valid-type,name-defined"
"""MLA decode: attention on the latent cache, where one row serves as key and value of every head.

One program a (request, 16 query heads). Counted per call, with T = sum of lengths, C = latent_dim, R = rope_dim:

    read    T * (C + R) * b                     latent rows, once if the programs of a request meet in L2
                                                (ceil(num_heads / 16) times if not)
            num_requests * num_heads * (C + R) * b     queries
    write   num_requests * num_heads * C * b           outputs
    FLOPs   2 * T * num_heads * (2 * C + R)

so about `2 * num_heads * (2 * C + R) / ((C + R) * b)` FLOPs a byte: 242 with 128 heads in 16 bits. The same row is key
and value: it is loaded once and used in both products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import jit, tl, uses_triton
from labkit.kernels.decode_tiles import check_supported, stride, upcasts
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
        return _launch(query, latent_cache, block_tables, seq_lens, scale, latent_dim)
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


@dataclass(frozen=True, slots=True)
class MLAConfig:
    """`rows` query heads by `tile_n` latent rows at a time."""

    rows: int
    tile_n: int
    num_warps: int
    num_stages: int


def mla_config(dtype: torch.dtype) -> MLAConfig:
    """16 heads share each latent row that is loaded; the accumulator alone is 16 x 512 float32."""
    return MLAConfig(rows=16, tile_n=16, num_warps=8 if dtype == torch.float32 else 4, num_stages=2)


#: see `paged_decode.ALIGNED`
ALIGNED = (
    "out",
    "query",
    "latent_cache",
    "stride_out_row",
    "stride_out_head",
    "stride_q_row",
    "stride_q_head",
    "stride_block",
    "stride_slot",
)


@jit(do_not_specialize=["block_tables", "seq_lens", "scale_log2", "num_heads", "stride_table"])
def mla_decode_kernel(
    out,
    query,
    latent_cache,
    block_tables,
    seq_lens,
    scale_log2,
    num_heads,
    stride_out_row,
    stride_out_head,
    stride_q_row,
    stride_q_head,
    stride_block,
    stride_slot,
    stride_table,
    LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Program (request, ROWS query heads)."""
    request = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real = heads < num_heads
    offs_n = tl.arange(0, BLOCK_N)
    offs_c = tl.arange(0, LATENT_DIM)
    offs_r = LATENT_DIM + tl.arange(0, ROPE_DIM)
    stop = tl.load(seq_lens + request).to(tl.int32)
    q_row = query + request * stride_q_row + heads[:, None] * stride_q_head
    q_latent = tl.load(q_row + offs_c[None, :], mask=real[:, None], other=0.0)
    q_rope = tl.load(q_row + offs_r[None, :], mask=real[:, None], other=0.0)
    if UPCAST:
        q_latent = q_latent.to(tl.float32)
        q_rope = q_rope.to(tl.float32)
    table_row = block_tables + request * stride_table
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, LATENT_DIM], tl.float32)
    for tile in tl.range(0, stop, BLOCK_N):
        positions = tile + offs_n
        seen = positions < stop
        if BLOCK_SIZE >= BLOCK_N:
            block = tl.load(table_row + tile // BLOCK_SIZE).to(tl.int64)  # table
            offset = tile % BLOCK_SIZE + offs_n
        else:
            block = tl.load(table_row + positions // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)  # table
            offset = positions % BLOCK_SIZE
        row = latent_cache + (block * stride_block + offset * stride_slot)[:, None]
        latent = tl.load(row + offs_c[None, :], mask=seen[:, None], other=0.0)  # kv
        rope = tl.load(row + offs_r[None, :], mask=seen[:, None], other=0.0)  # kv
        if UPCAST:
            latent = latent.to(tl.float32)
            rope = rope.to(tl.float32)
        scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
        scores = tl.dot(q_rope, tl.trans(rope), scores, input_precision="ieee") * scale_log2
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(latent.dtype), latent, acc, input_precision="ieee")
        top = new_top
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    out_at = out + request * stride_out_row + heads[:, None] * stride_out_head + offs_c[None, :]
    tl.store(out_at, result.to(out.dtype.element_ty), mask=real[:, None])


def _launch(
    query: torch.Tensor,
    latent_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    latent_dim: int,
) -> torch.Tensor:
    num_requests, num_heads, width = query.shape
    rope_dim = width - latent_dim
    check_supported(query.dtype, 64, latent_cache.shape[1])
    for name, size in (("latent_dim", latent_dim), ("rope_dim", rope_dim)):
        if size < 16 or size & (size - 1):
            raise LabError(f"{name}: is {size}, the compiled kernel accepts powers of two from 16 up")
    out = torch.empty(num_requests, num_heads, latent_dim, dtype=query.dtype, device=query.device)
    checks.check_alignment(query=query, latent_cache=latent_cache, out=out)
    checks.check_contiguous(seq_lens=seq_lens)
    checks.check_rows_contiguous("block_tables", block_tables)
    config = mla_config(query.dtype)
    mla_decode_kernel[(num_requests, -(-num_heads // config.rows))](
        out,
        query,
        latent_cache,
        block_tables,
        seq_lens,
        scale * math.log2(math.e),
        num_heads,
        stride(out, 0),
        stride(out, 1),
        stride(query, 0),
        stride(query, 1),
        stride(latent_cache, 0),
        stride(latent_cache, 1),
        block_tables.stride(0),
        LATENT_DIM=latent_dim,
        ROPE_DIM=rope_dim,
        BLOCK_SIZE=latent_cache.shape[1],
        ROWS=config.rows,
        BLOCK_N=config.tile_n,
        UPCAST=upcasts(query.dtype),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


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
