"""Counted bytes and FLOPs against the shapes of real models."""

from __future__ import annotations

import pytest

from labkit.kernels import cost


def test_llama_8b_decode_reads_its_kv_once():
    """Llama-3.1-8B: 4,096 bytes of KV a token and layer in 16 bits (8 KV heads, head_dim 128)."""
    counted = cost.decode_cost([1000], 32, 8, 128, 2, 2, block_size=16)
    assert counted.read_bytes == 1000 * 4096 + 63 * 8 * 4 + 32 * 128 * 2
    assert counted.flops == 4 * 1000 * 32 * 128
    assert counted.flops_per_byte == pytest.approx(4, rel=0.01)
    assert counted.floor_s(4.096e6 + counted.table_bytes + 2 * 8192) == pytest.approx(1.0)


def test_block_size_1_pays_an_entry_for_every_token():
    by_block = {b: cost.decode_cost([4096], 32, 8, 128, 2, 2, block_size=b).table_bytes for b in (1, 16, 256)}
    assert by_block == {1: 4096 * 8 * 4, 16: 256 * 8 * 4, 256: 16 * 8 * 4}
    share = by_block[1] / cost.decode_cost([4096], 32, 8, 128, 2, 2, block_size=1).read_bytes
    assert share == pytest.approx(0.0078, abs=2e-4)


def test_window_bounds_what_is_read():
    assert cost.decode_cost([4096], 8, 8, 64, 2, 2, window=128) == cost.decode_cost([128], 8, 8, 64, 2, 2)


def test_prefill_counts_causal_pairs():
    counted = cost.prefill_cost([4], [10], 1, 1, 64, 2, block_size=16)
    assert counted.flops == 4 * 64 * sum(range(7, 11))


def test_int8_halves_the_rows_and_adds_scales():
    wide, narrow = (cost.decode_cost([1000], 32, 8, 128, 2, size) for size in (2, 1))
    assert wide.read_bytes - narrow.read_bytes == 2 * 1000 * 8 * (128 - 4)


def test_mla_reads_one_row_for_all_heads():
    counted = cost.mla_decode_cost([1000], 128, 512, 64, 2, block_size=64)
    assert counted.flops_per_byte == pytest.approx(128 * 2 * (2 * 512 + 64) / (576 * 2), rel=0.2)


def test_quantised_write_counts_scales():
    counted = cost.kv_write_cost(10, 8, 128, 2, 1)
    assert counted.write_bytes == 2 * 10 * 8 * (128 + 4)
