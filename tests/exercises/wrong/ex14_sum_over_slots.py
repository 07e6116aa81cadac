# ruff: noqa
"""The scores are summed over the wrong axis."""

import torch
import triton
import triton.language as tl


@triton.jit
def my_paged_decode_kernel(
    out,
    query,
    k_cache,
    v_cache,
    block_tables,
    seq_lens,
    scale,
    max_blocks,
    num_heads,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    request = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (num_heads // NUM_KV_HEADS)
    length = tl.load(seq_lens + request)
    offs_n = tl.arange(0, BLOCK_SIZE)
    offs_d = tl.arange(0, HEAD_DIM)
    row = (request * num_heads + head) * HEAD_DIM
    q = tl.load(query + row + offs_d)
    top = float("-inf")
    total = 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for i in range(0, tl.cdiv(length, BLOCK_SIZE)):
        block = tl.load(block_tables + request * max_blocks + i).to(tl.int64)
        rows = ((block * BLOCK_SIZE + offs_n) * NUM_KV_HEADS + kv_head) * HEAD_DIM
        seen = i * BLOCK_SIZE + offs_n < length
        k = tl.load(k_cache + rows[:, None] + offs_d[None, :], mask=seen[:, None], other=0.0)
        v = tl.load(v_cache + rows[:, None] + offs_d[None, :], mask=seen[:, None], other=0.0)
        scores = tl.sum(q[None, :] * k, 0) * scale
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 0))
        weights = tl.exp(scores - new_top)
        shrink = tl.exp(top - new_top)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink + tl.sum(weights[:, None] * v, 0)
        top = new_top
    acc = acc / tl.where(total > 0, total, 1.0)
    tl.store(out + row + offs_d, acc)


def my_paged_decode(query, k_cache, v_cache, block_tables, seq_lens, scale):
    num_requests, num_heads, head_dim = query.shape
    out = torch.empty_like(query)
    my_paged_decode_kernel[(num_requests, num_heads)](
        out,
        query,
        k_cache,
        v_cache,
        block_tables,
        seq_lens,
        scale,
        block_tables.shape[1],
        num_heads,
        NUM_KV_HEADS=k_cache.shape[2],
        HEAD_DIM=head_dim,
        BLOCK_SIZE=k_cache.shape[1],
    )
    return out


EXPECT = "sum over the wrong axis"  # the message must contain this
