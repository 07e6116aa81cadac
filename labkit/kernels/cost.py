"""Bytes and FLOPs of a kernel call, counted from its shapes: the floor that a bench compares with.

Each function states the traffic that cannot be avoided with the kernel's algorithm and perfect caches. `num_*` are counts,
`dtype_bytes` bytes a query element, `store_bytes` bytes a cache element (1 for int8 and fp8, which add a 4-byte scale for
each row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TABLE_ENTRY_BYTES = 4
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """`table_bytes` is the part of `read_bytes` that only a block table asks for."""

    read_bytes: int
    write_bytes: int
    flops: int
    table_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    @property
    def flops_per_byte(self) -> float:
        return self.flops / self.bytes

    def floor_s(self, bandwidth_bytes_per_s: float) -> float:
        """Seconds in which memory of that bandwidth can move the bytes: no kernel that needs them is faster."""
        return self.bytes / bandwidth_bytes_per_s


def kv_write_cost(
    num_tokens: int, num_kv_heads: int, head_dim: int, dtype_bytes: int, store_bytes: int
) -> Cost:
    """`dtype_bytes` an element of the new rows, `store_bytes` one of the cache (1: quantised, with a scale a row)."""
    rows = 2 * num_tokens * num_kv_heads
    scales = rows * SCALE_BYTES if store_bytes == 1 else 0
    return Cost(
        read_bytes=rows * head_dim * dtype_bytes + num_tokens * 8,
        write_bytes=rows * head_dim * store_bytes + scales,
        flops=5 * rows * head_dim if store_bytes == 1 else 0,
    )


def decode_cost(
    seq_lens: Sequence[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype_bytes: int,
    store_bytes: int,
    *,
    block_size: int | None = None,
    window: int | None = None,
    num_splits: int = 1,
) -> Cost:
    """Contiguous (`block_size` None: one 8-byte base slot a request) or paged decode attention. `seq_lens` and `window` in
    tokens."""
    visible = [length if window is None else min(length, window) for length in seq_lens]
    num_tokens, num_requests = sum(visible), len(seq_lens)
    rows = 2 * num_tokens * num_kv_heads
    scales = rows * SCALE_BYTES if store_bytes == 1 else 0
    table = 8 * num_requests
    if block_size is not None:
        table = sum(-(-length // block_size) for length in visible) * num_kv_heads * TABLE_ENTRY_BYTES
    query = num_requests * num_heads * head_dim * dtype_bytes
    partial = num_requests * num_heads * num_splits * (head_dim + 1) * 4 if num_splits > 1 else 0
    return Cost(
        read_bytes=rows * head_dim * store_bytes + scales + table + query + partial,
        write_bytes=query + partial,
        flops=4 * num_tokens * num_heads * head_dim,
        table_bytes=table,
    )


def prefill_cost(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype_bytes: int,
    *,
    block_size: int,
) -> Cost:
    """Chunked prefill; keys and values counted once a request (tiles and heads of one group meet in L2)."""
    num_rows = sum(query_lens)
    table = sum(-(-length // block_size) for length in seq_lens) * num_kv_heads * TABLE_ENTRY_BYTES
    pairs = sum(n * (length - n) + n * (n + 1) // 2 for n, length in zip(query_lens, seq_lens, strict=True))
    query = num_rows * num_heads * head_dim * dtype_bytes
    return Cost(
        read_bytes=2 * sum(seq_lens) * num_kv_heads * head_dim * dtype_bytes + table + query,
        write_bytes=query,
        flops=4 * pairs * num_heads * head_dim,
        table_bytes=table,
    )


def mla_decode_cost(
    seq_lens: Sequence[int],
    num_heads: int,
    latent_dim: int,
    rope_dim: int,
    dtype_bytes: int,
    *,
    block_size: int,
) -> Cost:
    """The latent row is read once a request and serves all heads."""
    table = sum(-(-length // block_size) for length in seq_lens) * TABLE_ENTRY_BYTES
    rows = sum(seq_lens) * (latent_dim + rope_dim) * dtype_bytes
    query = len(seq_lens) * num_heads * dtype_bytes
    return Cost(
        read_bytes=rows + table + query * (latent_dim + rope_dim),
        write_bytes=query * latent_dim,
        flops=2 * sum(seq_lens) * num_heads * (2 * latent_dim + rope_dim),
        table_bytes=table,
    )


def copy_cost(num_bytes: int) -> Cost:
    """Block copy, gather, move, swap: every byte once in and once out."""
    return Cost(read_bytes=num_bytes, write_bytes=num_bytes, flops=0)
