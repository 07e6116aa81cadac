"""What is measured: each kernel with its inputs, its counted bytes and FLOPs, and what a user would pick instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from labkit.kernels import alternatives, cost
from labkit.kernels.block_copy import block_copy
from labkit.kernels.block_gather import block_gather
from labkit.kernels.contiguous_decode import contiguous_decode_attention
from labkit.kernels.kv_write import kv_write
from labkit.kernels.mla_decode import mla_decode_attention
from labkit.kernels.move_slots import move_slots
from labkit.kernels.paged_decode import paged_decode_attention
from labkit.kernels.paged_prefill import paged_prefill_attention
from labkit.kernels.swap_blocks import swap_blocks

#: sets an alternative up and returns what is timed; may raise `alternatives.NotHere`
Prepare = Callable[[], Callable[[], Any]]
#: name, shape in words, what is timed, its cost, and the alternatives by label
Row = tuple[str, str, Callable[[], Any], cost.Cost, dict[str, Prepare]]


@dataclass(frozen=True)
class Shapes:
    """What is measured. Heads are those of Llama-3.1-8B; every context has about `num_tokens` tokens in its batch."""

    contexts: tuple[int, ...] = (512, 2048, 8192, 32768, 131072)
    block_sizes: tuple[int, ...] = (1, 8, 16, 32, 64, 128, 256)
    num_tokens: int = 131072
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    flex_block_size: int = 128
    flashinfer_block_size: int = 16
    copy_bytes: int = 1 << 30

    @property
    def scale(self) -> float:
        return float(self.head_dim) ** -0.5


QUICK = Shapes(contexts=(2048, 32768), block_sizes=(1, 16, 128))


def all_rows(shapes: Shapes, device: str) -> Iterator[Row]:
    """Every family on `device`, one row at a time."""
    for family in (decode_rows, prefill_rows, mla_rows, write_rows, copy_rows):
        yield from family(shapes, device)


def decode_rows(shapes: Shapes, device: str) -> Iterator[Row]:
    """Section 6.4's price: the same tokens contiguous, and in blocks of every size, shuffled over the pool."""
    generator = torch.Generator().manual_seed(0)
    heads, kv_heads, dim = shapes.num_heads, shapes.num_kv_heads, shapes.head_dim
    for context in shapes.contexts:
        batch = max(1, shapes.num_tokens // context)
        seq_lens = torch.full((batch,), context, device=device)
        shape = (batch * context, kv_heads, dim)
        k_rows, v_rows = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
        query = torch.randn(batch, heads, dim, device=device, dtype=torch.bfloat16)
        bases = torch.arange(batch, device=device) * context
        yield (
            "contiguous_decode",
            f"{batch} x {context}",
            partial(
                contiguous_decode_attention,
                query,
                k_rows,
                v_rows,
                bases,
                seq_lens,
                scale=shapes.scale,
                validate=False,
            ),
            cost.decode_cost([context] * batch, heads, kv_heads, dim, 2, 2),
            {"SDPA, contiguous": partial(alternatives.sdpa_decode, query, k_rows, v_rows, shapes.scale)},
        )
        for block_size in shapes.block_sizes:
            num_blocks = batch * context // block_size
            tables = torch.randperm(num_blocks, generator=generator).view(batch, -1).int().to(device)
            k_cache, v_cache = (rows.view(num_blocks, block_size, kv_heads, dim) for rows in (k_rows, v_rows))
            given = (query, k_cache, v_cache, tables, seq_lens)
            counted = cost.decode_cost([context] * batch, heads, kv_heads, dim, 2, 2, block_size=block_size)
            other: dict[str, Prepare] = {}
            if block_size == shapes.flex_block_size:
                other["FlexAttention, paged mask"] = partial(alternatives.flex_decode, *given, shapes.scale)
            if block_size == shapes.flashinfer_block_size:
                other["FlashInfer"] = partial(alternatives.flashinfer_decode, *given, shapes.scale)
            decode = partial(paged_decode_attention, *given, scale=shapes.scale, validate=False)
            shape_name = f"{batch} x {context}, blocks of {block_size}"
            yield "paged_decode", f"{shape_name}, single pass", partial(decode, num_splits=1), counted, {}
            yield "paged_decode", f"{shape_name}, launcher's choice", decode, counted, other


def prefill_rows(shapes: Shapes, device: str) -> Iterator[Row]:
    """Four chunks of 1,024 over a prefix as long (scaled down where `num_tokens` is small)."""
    chunk, batch, block_size = min(1024, shapes.num_tokens // 8), 4, 16
    heads, kv_heads, dim = shapes.num_heads, shapes.num_kv_heads, shapes.head_dim
    num_blocks = batch * 2 * chunk // block_size
    shape = (num_blocks, block_size, kv_heads, dim)
    k_cache, v_cache = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
    tables = torch.randperm(num_blocks).view(batch, -1).int().to(device)
    query = torch.randn(batch * chunk, heads, dim, device=device, dtype=torch.bfloat16)
    starts = torch.arange(batch + 1, device=device) * chunk
    seq_lens = torch.full((batch,), 2 * chunk, device=device)
    yield (
        "paged_prefill",
        f"{batch} x {chunk} over {chunk}, blocks of {block_size}",
        lambda: paged_prefill_attention(
            query,
            k_cache,
            v_cache,
            tables,
            starts,
            seq_lens,
            scale=shapes.scale,
            max_query_len=chunk,
            validate=False,
        ),
        cost.prefill_cost(
            [chunk] * batch, [2 * chunk] * batch, heads, kv_heads, dim, 2, block_size=block_size
        ),
        {"SDPA, contiguous": lambda: alternatives.sdpa_prefill(query, k_cache, v_cache, batch, shapes.scale)},
    )


def mla_rows(shapes: Shapes, device: str) -> Iterator[Row]:
    """DeepSeek-V3: 128 heads on one latent row of 512 + 64."""
    context, block_size = min(4096, shapes.num_tokens), 64
    batch = max(1, shapes.num_tokens // context)
    num_blocks = batch * -(-context // block_size)
    cache = torch.randn(num_blocks, block_size, 576, device=device, dtype=torch.bfloat16)
    tables = torch.randperm(num_blocks).view(batch, -1).int().to(device)
    query = torch.randn(batch, 128, 576, device=device, dtype=torch.bfloat16)
    seq_lens = torch.full((batch,), context, device=device)
    yield (
        "mla_decode",
        f"{batch} x {context}, blocks of {block_size}",
        lambda: mla_decode_attention(query, cache, tables, seq_lens, scale=576**-0.5, validate=False),
        cost.mla_decode_cost([context] * batch, 128, 512, 64, 2, block_size=block_size),
        {},
    )


def write_rows(shapes: Shapes, device: str) -> Iterator[Row]:
    """A prefill's worth of new tokens, as they are and quantised."""
    num_tokens, block_size = min(8192, shapes.num_tokens), 16
    kv_heads, dim = shapes.num_kv_heads, shapes.head_dim
    rows = torch.randn(num_tokens, kv_heads, dim, device=device, dtype=torch.bfloat16)
    slots = torch.randperm(num_tokens // block_size * block_size, device=device)
    rows = rows[: len(slots)]
    stores = [torch.bfloat16, torch.int8]
    if device == "cpu" or torch.cuda.get_device_capability() >= (8, 9):
        stores.append(torch.float8_e4m3fn)
    for store in stores:
        shape = (num_tokens // block_size, block_size, kv_heads, dim)
        k_cache, v_cache = (torch.zeros(shape, device=device, dtype=store) for _ in range(2))
        scales = {}
        if store != torch.bfloat16:
            scales = {name: torch.zeros(shape[:-1], device=device) for name in ("k_scale", "v_scale")}
        yield (
            "kv_write",
            f"{len(slots)} tokens to {str(store)[6:]}",
            partial(kv_write, rows, rows, k_cache, v_cache, slots, validate=False, **scales),
            cost.kv_write_cost(len(slots), kv_heads, dim, 2, k_cache.element_size()),
            {},
        )


@dataclass(frozen=True, slots=True)
class _Move:
    src_slot: int
    dst_slot: int
    num_tokens: int


def copy_rows(shapes: Shapes, device: str) -> Iterator[Row]:
    """Half a pool copied onto the other half, by block, by slot, out of the pool, and to the host."""
    block_size, kv_heads, dim = 16, shapes.num_kv_heads, shapes.head_dim
    num_blocks = max(2, min(4096, shapes.num_tokens // block_size)) // 2 * 2
    half = num_blocks // 2
    pool = torch.zeros(num_blocks, block_size, kv_heads, dim, device=device, dtype=torch.bfloat16)
    order = torch.randperm(half, device=device)
    pairs = torch.stack([order, half + torch.arange(half, device=device)], 1)
    num_bytes = half * pool[0].numel() * 2
    counted, shape = cost.copy_cost(num_bytes), f"{half} blocks of {block_size}"
    host = torch.zeros(pool.shape, dtype=pool.dtype, pin_memory=device != "cpu")
    tables = order.int().view(1, -1)
    seq_lens = torch.tensor([half * block_size], device=device)
    out = torch.empty(half * block_size, kv_heads, dim, device=device, dtype=pool.dtype)
    move = [_Move(0, half * block_size, half * block_size)]
    yield "block_copy", shape, lambda: block_copy([pool], pairs, validate=False), counted, {}
    yield "move_slots", shape, lambda: move_slots([pool.flatten(0, 1)], move), counted, {}
    gather: Callable[[], Any] = lambda: block_gather(pool, tables, seq_lens, out=out, validate=False)  # noqa: E731
    index: Callable[[], Any] = lambda: pool[order]  # noqa: E731
    yield "block_gather", shape, gather, counted, {"torch indexing": lambda: index}
    yield (
        "swap_blocks",
        f"{shape}, to the host",
        lambda: swap_blocks(pool, host, pairs, validate=False),
        counted,
        {},
    )
