"""int8 and fp8 caches, one scale per token and KV head: what the attention output loses."""

from __future__ import annotations

import pytest
import torch

import labkit.kernels as kernels
from labkit.errors import LabError
from labkit.kernels import oracle
from labkit.kernels.quantize import dequantize, quantize

BOUNDS = {torch.int8: 2e-2, torch.float8_e4m3fn: 6e-2}


@pytest.mark.parametrize("store", BOUNDS)
@pytest.mark.parametrize(("head_dim", "length"), [(64, 17), (64, 300), (128, 1), (128, 300), (256, 64)])
def test_norm_wise_error_of_the_attention_output(store, head_dim, length):
    generator = torch.Generator().manual_seed(head_dim + length)
    lengths, block_size = [length, 2 * length, 3 * length], 16
    num_blocks = sum(-(-n // block_size) for n in lengths)
    shape = (num_blocks * block_size, 2, head_dim)
    key, value = (torch.randn(shape, generator=generator) for _ in range(2))
    query = torch.randn(3, 8, head_dim, generator=generator)
    width = -(-max(lengths) // block_size)
    tables = torch.zeros(3, width, dtype=torch.int32)
    free = torch.randperm(num_blocks, generator=generator).tolist()
    for row, n in enumerate(lengths):
        used = -(-n // block_size)
        tables[row, :used] = torch.tensor([free.pop() for _ in range(used)])
    cache = torch.zeros(num_blocks, block_size, 2, head_dim, dtype=store)
    caches, scales = [cache, cache.clone()], [torch.zeros(num_blocks, block_size, 2) for _ in range(2)]
    kernels.kv_write(key, value, *caches, torch.arange(len(key)), k_scale=scales[0], v_scale=scales[1])
    out = kernels.paged_decode_attention(
        query,
        *caches,
        tables,
        torch.tensor(lengths),
        scale=head_dim**-0.5,
        k_scale=scales[0],
        v_scale=scales[1],
    )
    full = [rows.view(num_blocks, block_size, 2, head_dim) for rows in (key, value)]
    expected = oracle.paged_attention(query, *full, tables, [1] * 3, lengths, scale=head_dim**-0.5)
    error = float((out.double() - expected).norm() / expected.norm())
    assert BOUNDS[store] / 20 < error < BOUNDS[store], "neither too wrong nor suspiciously exact"


@pytest.mark.parametrize(("store", "relative"), [(torch.int8, 1 / 254), (torch.float8_e4m3fn, 1 / 16)])
def test_round_trip_is_within_half_a_step(store, relative):
    rows = (
        torch.randn(50, 3, 64, generator=torch.Generator().manual_seed(1))
        * torch.logspace(-6, 6, 50)[:, None, None]
    )
    stored, scale = quantize(rows, store)
    assert stored.dtype == store
    assert scale.shape == (50, 3)
    error = (dequantize(stored, scale) - rows).abs()
    step = (
        rows.abs().amax(-1, keepdim=True)
        if store == torch.int8
        else rows.abs().clamp_min(scale[..., None] * 2**-6)
    )
    assert bool((error <= step * relative * 1.0001).all())


def test_zero_rows_stay_zero():
    for store in BOUNDS:
        stored, scale = quantize(torch.zeros(2, 4), store)
        assert bool((scale == 1).all())
        assert bool((dequantize(stored, scale) == 0).all())


def test_other_dtypes_are_refused():
    with pytest.raises(LabError, match="choose int8 or float8_e4m3fn"):
        quantize(torch.zeros(2, 4), torch.float16)
