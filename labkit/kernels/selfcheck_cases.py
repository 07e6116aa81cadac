"""Drawn inputs of the self-check: caches, tables and queries from a seed, with poison in everything that must not be read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from labkit.kernels.kv_write import kv_write_reference
from labkit.kernels.quantize import dequantize, is_quantized

#: a block id that does not exist
GARBAGE_ID = 2**31 - 7


@dataclass(frozen=True)
class AttentionCase:
    """`lengths` may contain 0. `store` is the cache's dtype when it is not the query's. `strided` interleaves K and V in
    one tensor and cuts the query out of a fused projection, so that neither is contiguous. `query_lens` is for prefill."""

    dtype: torch.dtype = torch.float32
    head_dim: int = 64
    block_size: int = 16
    num_kv_heads: int = 2
    group: int = 4
    lengths: tuple[int, ...] = (1, 16, 17, 40)
    window: int | None = None
    store: torch.dtype | None = None
    strided: bool = False
    num_splits: int = 1
    query_lens: tuple[int, ...] = ()
    seed: int = 0

    @property
    def scale(self) -> float:
        return float(self.head_dim) ** -0.5


@dataclass(frozen=True)
class CaseTensors:
    """What a case is run on. `k_rows`, `v_rows` are the caches as float64, dequantised."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    block_tables: torch.Tensor
    seq_lens: torch.Tensor

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both caches as float64 on the CPU, dequantised: `[num_blocks, block_size, num_kv_heads, head_dim]`."""
        if self.k_scale is None or self.v_scale is None:
            return self.k_cache.cpu().double(), self.v_cache.cpu().double()
        return (
            dequantize(self.k_cache.cpu(), self.k_scale.cpu()).double(),
            dequantize(self.v_cache.cpu(), self.v_scale.cpu()).double(),
        )


def build(
    case: AttentionCase, num_rows: int, device: str, *, consecutive: bool = False
) -> tuple[CaseTensors, torch.Tensor]:
    """Caches, tables and a query of `num_rows` rows. `consecutive` puts each request's blocks side by side."""
    generator = torch.Generator().manual_seed(case.seed)
    tables, num_blocks, slots = place(case, generator, consecutive=consecutive)
    k_cache, v_cache = empty_caches(case, num_blocks, "cpu")
    k_scale, v_scale = empty_scales(case, num_blocks, "cpu")
    written = torch.cat(slots)
    shape = (len(written), case.num_kv_heads, case.head_dim)
    key, value = (torch.randn(shape, generator=generator).to(case.dtype) for _ in range(2))
    kv_write_reference(key, value, k_cache, v_cache, written, k_scale=k_scale, v_scale=v_scale)
    num_heads = case.num_kv_heads * case.group
    query = torch.randn(num_rows, num_heads, case.head_dim, generator=generator).to(case.dtype)
    if case.strided:
        query = torch.cat([query, torch.full_like(query, torch.nan)], 1)
    query = query.to(device)[:, :num_heads]
    if case.strided and device != "cpu":
        k_cache, v_cache = torch.stack([k_cache, v_cache], 1).to(device).unbind(1)
    seq_lens = torch.tensor(case.lengths, device=device)
    if k_scale is not None and v_scale is not None:
        k_scale, v_scale = k_scale.to(device), v_scale.to(device)
    return CaseTensors(
        k_cache.to(device), v_cache.to(device), k_scale, v_scale, tables.to(device), seq_lens
    ), query


def place(
    case: AttentionCase, generator: torch.Generator, *, consecutive: bool = False
) -> tuple[torch.Tensor, int, list[torch.Tensor]]:
    """`(block tables with garbage behind the used part, num_blocks, slots of each request)`."""
    counts = [-(-length // case.block_size) for length in case.lengths]
    num_blocks = sum(counts) + len(counts) + 2
    order = torch.arange(num_blocks) if consecutive else torch.randperm(num_blocks, generator=generator)
    tables = torch.full((len(counts), max(counts, default=0) + 2), GARBAGE_ID, dtype=torch.int32)
    slots, taken = [], 0
    for row, (count, length) in enumerate(zip(counts, case.lengths, strict=True)):
        blocks = order[taken : taken + count]
        taken += count + (1 if consecutive else 0)
        tables[row, :count] = blocks
        offsets = torch.arange(case.block_size)
        slots.append((blocks[:, None] * case.block_size + offsets).flatten()[:length])
    return tables, num_blocks, slots


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fresh tensors start as NaN: an output element that is never written shows."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory: Any = torch.utils.deterministic
    fill, memory.fill_uninitialized_memory = memory.fill_uninitialized_memory, True
    try:
        yield
    finally:
        memory.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def empty_caches(case: AttentionCase, num_blocks: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """NaN everywhere (int8 has none: -128, which no quantised row contains)."""
    store = case.store or case.dtype
    shape = (num_blocks, 2, case.block_size, case.num_kv_heads, case.head_dim)
    if store == torch.int8:
        both = torch.full(shape, -128, dtype=store, device=device)
    else:
        both = torch.full(shape, torch.nan, device=device).to(store)
    if case.strided:
        return both[:, 0], both[:, 1]
    return both[:, 0].contiguous(), both[:, 1].contiguous()


def empty_scales(
    case: AttentionCase, num_blocks: int, device: str
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """NaN everywhere, `[num_blocks, block_size, num_kv_heads]`; None where the cache has no scales."""
    if case.store is None or not is_quantized(case.store):
        return None, None
    shape = (num_blocks, case.block_size, case.num_kv_heads)
    return torch.full(shape, torch.nan, device=device), torch.full(shape, torch.nan, device=device)
