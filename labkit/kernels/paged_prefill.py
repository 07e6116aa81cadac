# mypy: disable-error-code="valid-type,name-defined"
"""Prefill and chunked prefill through a block table: several query tokens a request over a cached prefix.

One program a (tile of query rows, query head, request). Counted per call, with Q query rows and P = sum over rows of the
keys they see (n * prefix + n * (n + 1) / 2 for n rows behind a prefix), b bytes an element, M rows a tile:

    read    2 * sum(tiles * visible) * num_heads * head_dim * b   keys and values, once a tile and query head (L2 serves
                                                                  the heads of one group)
            Q * num_heads * head_dim * b                          queries
            tiles * ceil(visible / block_size) * num_heads * 4    table entries
    write   Q * num_heads * head_dim * b                          outputs
    FLOPs   4 * P * num_heads * head_dim                          about 2 * M / b FLOPs a byte: bound by the ALUs
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labkit.kernels import checks
from labkit.kernels.backend import jit, tl, uses_triton
from labkit.kernels.decode_tiles import stride
from labkit.kernels.layout import clamped_positions, positions_to_slots
from labkit.kernels.paged_context import PagedContext
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
    max_query_len: int | None = None,
    validate: bool = True,
) -> torch.Tensor:
    """Causal attention of the last tokens of each request over all its tokens so far, these included.

    query           [num_tokens, num_heads, head_dim]: the rows of all requests, one after the other
    cu_query_lens   [num_requests + 1]: request r owns the rows [cu_query_lens[r], cu_query_lens[r + 1])
    seq_lens        [num_requests]: cached prefix plus this chunk; row i of n is position seq_lens[r] - n + i
    k_cache, v_cache, block_tables, window as in `paged_decode_attention`; the chunk's keys are already written
    max_query_len   the longest chunk; None: the launcher reads it from cu_query_lens
    returns         [num_tokens, num_heads, head_dim] in the query's dtype
    """
    context = PagedContext(k_cache, v_cache, block_tables, seq_lens, scale, window, k_scale, v_scale)
    context.check_shapes(query, len(seq_lens))
    _check_rows(query, cu_query_lens, seq_lens, validate)
    if validate and len(seq_lens):
        context.check_tables(first_visible(seq_lens, cu_query_lens.diff(), window))
    if len(query) == 0:
        return torch.zeros_like(query)
    if uses_triton(query):
        return _launch(query, context, cu_query_lens, max_query_len)
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


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """`tile_m` query rows by `tile_n` keys at a time."""

    tile_m: int
    tile_n: int
    num_warps: int
    num_stages: int


def prefill_config(dtype: torch.dtype, head_dim: int, quantized: bool) -> PrefillConfig:
    """Chosen like `decode_config`, for 16-byte loads without spills."""
    num_stages = 1 if quantized else 2
    if dtype == torch.float32:
        tile_m, tile_n = (16 if head_dim > 128 else 32), (16 if head_dim > 64 else 32)
        return PrefillConfig(tile_m, tile_n, num_warps=4, num_stages=num_stages)
    tile_n = 64 if head_dim == 128 else 32
    return PrefillConfig(tile_m=64, tile_n=tile_n, num_warps=8 if head_dim > 64 else 4, num_stages=num_stages)


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
    "stride_k_block",
    "stride_k_slot",
    "stride_k_head",
    "stride_v_block",
    "stride_v_slot",
    "stride_v_head",
)


@jit(
    do_not_specialize=[
        "k_scale",
        "v_scale",
        "block_tables",
        "cu_query_lens",
        "seq_lens",
        "scale_log2",
        "num_kv_heads",
        "window",
        "stride_table",
    ]
)
def paged_prefill_kernel(
    out,
    query,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    block_tables,
    cu_query_lens,
    seq_lens,
    scale_log2,
    num_kv_heads,
    window,
    stride_out_row,
    stride_out_head,
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
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Program (tile of query rows, query head, request)."""
    tile_m = tl.program_id(0)
    head = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    first_row = tl.load(cu_query_lens + request).to(tl.int64)
    num_rows = (tl.load(cu_query_lens + request + 1).to(tl.int64) - first_row).to(tl.int32)
    length = tl.load(seq_lens + request).to(tl.int32)
    if tile_m * BLOCK_M < num_rows:
        kv_head = head // GROUP
        offs_n = tl.arange(0, BLOCK_N)
        offs_d = tl.arange(0, HEAD_DIM)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        real = rows < num_rows
        at = length - num_rows + rows  # positions of the query rows
        tile_end = tl.minimum(length - num_rows + (tile_m + 1) * BLOCK_M, length)
        start = 0
        if WINDOWED:
            start = tl.maximum(length - num_rows + tile_m * BLOCK_M + 1 - window, 0)
        q_at = query + (first_row + rows)[:, None] * stride_q_row + head * stride_q_head + offs_d[None, :]
        q = tl.load(q_at, mask=real[:, None], other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
        table_row = block_tables + request * stride_table
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
        for tile in tl.range(start // BLOCK_N * BLOCK_N, tile_end, BLOCK_N):
            positions = tile + offs_n
            inside = (positions >= start) & (positions < tile_end)
            if BLOCK_SIZE >= BLOCK_N:
                block = tl.load(table_row + tile // BLOCK_SIZE).to(tl.int64)  # table
                offset = tile % BLOCK_SIZE + offs_n
            else:
                entries = tl.load(table_row + positions // BLOCK_SIZE, mask=inside, other=0)  # table
                block = entries.to(tl.int64)
                offset = positions % BLOCK_SIZE
            k_rows = block * stride_k_block + offset * stride_k_slot + kv_head * stride_k_head
            v_rows = block * stride_v_block + offset * stride_v_slot + kv_head * stride_v_head
            k = tl.load(k_cache + k_rows[:, None] + offs_d[None, :], mask=inside[:, None], other=0.0)  # kv
            v = tl.load(v_cache + v_rows[:, None] + offs_d[None, :], mask=inside[:, None], other=0.0)  # kv
            if QUANTIZED:
                scale_at = (block * BLOCK_SIZE + offset) * num_kv_heads + kv_head
                k_row_scale = tl.load(k_scale + scale_at, mask=inside, other=0.0)
                v_row_scale = tl.load(v_scale + scale_at, mask=inside, other=0.0)
                k = k.to(tl.float32).to(q.dtype)
                v = v.to(tl.float32).to(q.dtype)
            if UPCAST:
                k = k.to(tl.float32)
                v = v.to(tl.float32)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
            if QUANTIZED:
                scores = scores * k_row_scale[None, :]
            seen = inside[None, :] & (positions[None, :] <= at[:, None])
            if WINDOWED:
                seen = seen & (positions[None, :] > at[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            # a row may see nothing of this tile, and nothing so far: then there is no maximum to subtract
            base = tl.where(new_top > float("-inf"), new_top, 0.0)
            weights = tl.exp2(scores - base[:, None])
            shrink = tl.exp2(top - base)
            total = total * shrink + tl.sum(weights, 1)
            if QUANTIZED:
                weights = weights * v_row_scale[None, :]
            acc = acc * shrink[:, None]
            acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
            top = new_top
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        out_at = out + (first_row + rows)[:, None] * stride_out_row + head * stride_out_head + offs_d[None, :]
        tl.store(out_at, result.to(out.dtype.element_ty), mask=real[:, None])


def _launch(
    query: torch.Tensor, context: PagedContext, cu_query_lens: torch.Tensor, max_query_len: int | None
) -> torch.Tensor:
    _, num_heads, head_dim = query.shape
    num_requests = len(context.seq_lens)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    context.check_launch(query, out=out)
    checks.check_contiguous(cu_query_lens=cu_query_lens)
    if max_query_len is None:
        max_query_len = int(cu_query_lens.diff().max())  # waits for the device; callers that know it pass it
    config = prefill_config(query.dtype, head_dim, context.is_quantized)
    paged_prefill_kernel[(-(-max_query_len // config.tile_m), num_heads, num_requests)](
        out,
        cu_query_lens=cu_query_lens,
        stride_out_row=stride(out, 0),
        stride_out_head=stride(out, 1),
        **context.kernel_arguments(query),
        BLOCK_M=config.tile_m,
        BLOCK_N=config.tile_n,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def _check_rows(
    query: torch.Tensor, cu_query_lens: torch.Tensor, seq_lens: torch.Tensor, validate: bool
) -> None:
    """Which rows of the query are whose; the values only where asked to."""
    checks.check_index("cu_query_lens", cu_query_lens)
    if len(cu_query_lens) != len(seq_lens) + 1:
        raise checks.fail(
            "cu_query_lens", f"has {len(cu_query_lens)} entries, accepted is {len(seq_lens) + 1}"
        )
    if not validate or not len(seq_lens):
        return
    ends, query_lens = cu_query_lens[1:], cu_query_lens.diff()
    checks.check_all("cu_query_lens", query_lens >= 0, ends, "decreases to {value}")
    if int(cu_query_lens[0]) != 0 or int(cu_query_lens[-1]) != len(query):
        raise checks.fail(
            "cu_query_lens",
            f"spans {int(cu_query_lens[0])} to {int(cu_query_lens[-1])}, accepted is 0 to {len(query)}",
        )
    checks.check_all(
        "seq_lens", seq_lens >= query_lens, seq_lens, "{value} is shorter than the request's query rows"
    )
