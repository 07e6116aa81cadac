# mypy: disable-error-code="valid-type,name-defined"
"""Decode attention through a block table, in a single pass over each request's context.

One program a (request, KV head). Counted per call, with T = sum of visible context lengths, b bytes a cache element:

    read    2 * T * num_kv_heads * head_dim * b          keys and values, once: what bounds the kernel
            2 * T * num_kv_heads * 4                     scales, quantised caches only
            sum(ceil(visible / block_size)) * num_kv_heads * 4    table entries (block_size 1: T * num_kv_heads * 4)
            num_requests * num_heads * head_dim * b      queries
    write   num_requests * num_heads * head_dim * b      outputs
    FLOPs   4 * T * num_heads * head_dim                 two products of 2 FLOPs a multiply-add

so at most `2 * group / b` FLOPs a byte: 4 for Llama-3.1-8B (group 4) in 16 bits, far below any GPU's ridge. `cost.py`
has these as functions. Block size 1 takes the per-row lookup path of `decode_tiles`: a table entry of 4 bytes for every
token and KV head, loaded before the row's address is known; at head_dim 128 in 16 bits that is 0.8 % more bytes, and one
more dependent load in front of each row.
"""

from __future__ import annotations

import torch

from labkit.kernels.backend import jit, tl, uses_triton
from labkit.kernels.decode_tiles import decode_config, decode_tiles, stride
from labkit.kernels.layout import clamped_positions, positions_to_slots
from labkit.kernels.paged_context import PagedContext
from labkit.kernels.reference import attend_last, gather_heads


def paged_decode_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    num_splits: int | None = None,
    validate: bool = True,
) -> torch.Tensor:
    """One query token a request over the keys and values in its blocks.

    query              [num_requests, num_heads, head_dim]
    k_cache, v_cache   [num_blocks, block_size, num_kv_heads, head_dim]
    block_tables       [num_requests, max_blocks]; entries behind the used part may be garbage
    seq_lens           [num_requests], the new token included; a request of length 0 gets zeros
    window             the query sees only the last `window` positions; blocks wholly before them are never read
    num_splits         pieces into which a context is cut, each for its own program (see `paged_decode_split`); None
                       lets the launcher choose, the reference has no use for it
    returns            [num_requests, num_heads, head_dim] in the query's dtype
    """
    context = PagedContext(k_cache, v_cache, block_tables, seq_lens, scale, window, k_scale, v_scale)
    context.check_shapes(query, len(query))
    if validate and len(query):
        context.check_tables(window_starts(seq_lens, window))
    if len(query) == 0:
        return torch.zeros_like(query)
    if uses_triton(query):
        if num_splits is None:
            num_splits = choose_num_splits(query, k_cache, len(query), block_tables.shape[1])
        if num_splits > 1:
            from labkit.kernels.paged_decode_split import launch_split

            return launch_split(query, context, num_splits)
        return _launch(query, context)
    return paged_decode_attention_reference(
        query,
        k_cache,
        v_cache,
        block_tables,
        seq_lens,
        scale=scale,
        window=window,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def paged_decode_attention_reference(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same in plain torch."""
    if block_tables.shape[1] == 0:
        return torch.zeros_like(query)
    starts = window_starts(seq_lens, window)
    positions = clamped_positions(starts, seq_lens)
    slots = positions_to_slots(block_tables, positions, k_cache.shape[1])
    slots.masked_fill_((seq_lens == 0)[:, None], 0)
    keys, values = gather_heads(k_cache, slots, k_scale), gather_heads(v_cache, slots, v_scale)
    return attend_last(query, keys, values, positions, starts, seq_lens, scale)


def window_starts(seq_lens: torch.Tensor, window: int | None) -> torch.Tensor:
    """First visible position of the last token: `max(0, length - window)`."""
    return torch.zeros_like(seq_lens) if window is None else (seq_lens - window).clamp_min(0)


def choose_num_splits(query: torch.Tensor, k_cache: torch.Tensor, num_requests: int, max_blocks: int) -> int:
    """Pieces a context is cut into: enough programs for two on every multiprocessor, each at least 512 tokens long."""
    num_programs = num_requests * k_cache.shape[2]
    num_sms = torch.cuda.get_device_properties(query.device).multi_processor_count if query.is_cuda else 1
    wanted = -(-2 * num_sms // num_programs)
    longest = max_blocks * k_cache.shape[1]
    return max(1, min(wanted, longest // 512, 64))


#: The parameters that Triton is told are divisible by 16: exactly what `check_alignment` holds before a launch.
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
        "seq_lens",
        "scale_log2",
        "num_kv_heads",
        "window",
        "stride_table",
    ]
)
def paged_decode_kernel(
    out,
    query,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    block_tables,
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
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
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
    stop = tl.load(seq_lens + request).to(tl.int32)
    start = 0
    if WINDOWED:
        start = tl.maximum(stop - window, 0)
    q_at = query + request * stride_q_row + heads[:, None] * stride_q_head + offs_d[None, :]
    q = tl.load(q_at, mask=real[:, None], other=0.0)
    acc, _, total = decode_tiles(
        q,
        k_cache + kv_head * stride_k_head,
        v_cache + kv_head * stride_v_head,
        k_scale,
        v_scale,
        block_tables + request * stride_table,
        0,
        start,
        stop,
        start // BLOCK_N * BLOCK_N,
        stop,
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
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    out_at = out + request * stride_out_row + heads[:, None] * stride_out_head + offs_d[None, :]
    tl.store(out_at, result.to(out.dtype.element_ty), mask=real[:, None])


def _launch(query: torch.Tensor, context: PagedContext) -> torch.Tensor:
    num_requests, num_heads, head_dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    context.check_launch(query, out=out)
    group = num_heads // context.num_kv_heads
    config = decode_config(query.dtype, head_dim, group, context.is_quantized)
    paged_decode_kernel[(num_requests, context.num_kv_heads)](
        out,
        stride_out_row=stride(out, 0),
        stride_out_head=stride(out, 1),
        **context.kernel_arguments(query),
        ROWS=config.rows,
        BLOCK_N=config.tile_n,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out
