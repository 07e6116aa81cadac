"""The torch references against the float64 oracle, which shares no code with them."""

from __future__ import annotations

import pytest
import torch

import labkit.kernels as kernels
from labkit.kernels import oracle


def cache_of(generator, num_blocks, block_size, num_kv_heads, head_dim, lengths):
    """Caches whose unwritten slots are NaN, and block tables whose unused entries are garbage."""
    k_cache, v_cache = (
        torch.full((num_blocks, block_size, num_kv_heads, head_dim), torch.nan) for _ in range(2)
    )
    width = max(-(-n // block_size) for n in lengths) + 2
    tables = torch.full((len(lengths), width), -7777)
    free = torch.randperm(num_blocks, generator=generator).tolist()
    for row, length in enumerate(lengths):
        blocks = [free.pop() for _ in range(-(-length // block_size))]
        tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.long)
        slots = torch.tensor([blocks[p // block_size] * block_size + p % block_size for p in range(length)])
        shape = (length, num_kv_heads, head_dim)
        key, value = (torch.randn(shape, generator=generator) for _ in range(2))
        kernels.kv_write(key, value, k_cache, v_cache, slots.long())
    return k_cache, v_cache, tables


@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize(
    ("block_size", "num_kv_heads", "group", "head_dim"), [(8, 2, 4, 64), (16, 1, 8, 32), (1, 3, 1, 32)]
)
def test_decode_and_prefill_match_float64(block_size, num_kv_heads, group, head_dim, window):
    generator = torch.Generator().manual_seed(block_size)
    lengths = [0, 1, block_size, block_size + 1, max(1, 3 * block_size - 1), 37]
    caches = cache_of(generator, 120, block_size, num_kv_heads, head_dim, lengths)
    seq_lens = torch.tensor(lengths)
    scale = head_dim**-0.5
    query = torch.randn(len(lengths), num_kv_heads * group, head_dim, generator=generator)
    out = kernels.paged_decode_attention(query, *caches, seq_lens, scale=scale, window=window)
    expected = oracle.paged_attention(query, *caches, [1] * len(lengths), lengths, scale=scale, window=window)
    assert oracle.worst_head_error(out, expected) < 1e-5

    query_lens = [0, 1, min(3, block_size), block_size, 1, 20]
    query = torch.randn(sum(query_lens), num_kv_heads * group, head_dim, generator=generator)
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    out = kernels.paged_prefill_attention(query, *caches, starts, seq_lens, scale=scale, window=window)
    expected = oracle.paged_attention(query, *caches, query_lens, lengths, scale=scale, window=window)
    assert oracle.worst_head_error(out, expected) < 1e-5


def test_contiguous_decode_matches_paged_on_the_same_memory():
    generator = torch.Generator().manual_seed(3)
    lengths = [0, 7, 64, 33]
    k_cache, v_cache = (torch.randn(16, 16, 2, 32, generator=generator) for _ in range(2))
    query = torch.randn(4, 8, 32, generator=generator)
    seq_lens, bases = torch.tensor(lengths), torch.tensor([0, 0, 64, 160])
    tables = torch.arange(4)[None] + (bases // 16)[:, None]
    paged = kernels.paged_decode_attention(query, k_cache, v_cache, tables, seq_lens, scale=0.2)
    contiguous = kernels.contiguous_decode_attention(
        query, k_cache.flatten(0, 1), v_cache.flatten(0, 1), bases, seq_lens, scale=0.2
    )
    assert torch.equal(paged, contiguous)
