"""Every kernel against float64, on whichever backend this process runs: interpreter tests and `make gpu-check` share it.

A case is drawn from a seed. What a kernel must not read is poison: unwritten slots hold NaN, unused table entries hold
ids that do not exist, and every fresh output starts as NaN (`torch.utils.deterministic.fill_uninitialized_memory`).
"""

from __future__ import annotations

from typing import Any

import torch

from labkit.kernels import oracle
from labkit.kernels.contiguous_decode import contiguous_decode_attention
from labkit.kernels.kv_write import kv_write, kv_write_reference
from labkit.kernels.mla_decode import mla_decode_attention
from labkit.kernels.paged_decode import paged_decode_attention
from labkit.kernels.paged_prefill import paged_prefill_attention
from labkit.kernels.quantize import raw
from labkit.kernels.selfcheck_cases import (
    AttentionCase,
    CaseTensors,
    build,
    empty_caches,
    empty_scales,
    place,
    poisoned_memory,
)

#: `||result - float64|| / ||float64||` per head that a kernel may reach, by dtype of the query
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def check_paged_decode(case: AttentionCase, device: str = "cpu") -> float:
    """Largest norm-wise error of a head against float64."""
    tensors, query = build(case, len(case.lengths), device)
    with poisoned_memory():
        out = paged_decode_attention(
            query,
            tensors.k_cache,
            tensors.v_cache,
            tensors.block_tables,
            tensors.seq_lens,
            scale=case.scale,
            window=case.window,
            k_scale=tensors.k_scale,
            v_scale=tensors.v_scale,
            num_splits=case.num_splits,
        )
    ones = [1] * len(case.lengths)
    return oracle.worst_head_error(out, _expected(case, tensors, query, ones))


def check_paged_prefill(case: AttentionCase, device: str = "cpu") -> float:
    """The same for chunks of `case.query_lens` rows."""
    tensors, query = build(case, sum(case.query_lens), device)
    starts = torch.tensor([0, *case.query_lens], device=device).cumsum(0)
    with poisoned_memory():
        out = paged_prefill_attention(
            query,
            tensors.k_cache,
            tensors.v_cache,
            tensors.block_tables,
            starts,
            tensors.seq_lens,
            scale=case.scale,
            window=case.window,
            k_scale=tensors.k_scale,
            v_scale=tensors.v_scale,
        )
    return oracle.worst_head_error(out, _expected(case, tensors, query, list(case.query_lens)))


def check_contiguous_decode(case: AttentionCase, device: str = "cpu") -> float:
    """The same over runs of slots, laid out with a gap behind each request."""
    tensors, query = build(case, len(case.lengths), device, consecutive=True)
    width = tensors.k_cache.shape[1]
    bases = tensors.block_tables[:, 0].long() * width
    with poisoned_memory():
        out = contiguous_decode_attention(
            query,
            tensors.k_cache.flatten(0, 1),
            tensors.v_cache.flatten(0, 1),
            torch.where(tensors.seq_lens > 0, bases, 0),
            tensors.seq_lens,
            scale=case.scale,
            k_scale=None if tensors.k_scale is None else tensors.k_scale.flatten(0, 1),
            v_scale=None if tensors.v_scale is None else tensors.v_scale.flatten(0, 1),
        )
    ones = [1] * len(case.lengths)
    return oracle.worst_head_error(out, _expected(case, tensors, query, ones))


def check_mla_decode(
    case: AttentionCase, device: str = "cpu", *, latent_dim: int = 512, rope_dim: int = 64
) -> float:
    """The same on a latent cache; the case's KV heads and group only give the number of query heads."""
    generator = torch.Generator().manual_seed(case.seed)
    num_heads = case.num_kv_heads * case.group
    tables, num_blocks, slots = place(case, generator)
    cache = torch.full((num_blocks, case.block_size, latent_dim + rope_dim), torch.nan)
    for row, length in zip(slots, case.lengths, strict=True):
        cache.flatten(0, 1)[row] = torch.randn(length, latent_dim + rope_dim, generator=generator)
    cache = cache.to(case.dtype)
    query = torch.randn(len(case.lengths), num_heads, latent_dim + rope_dim, generator=generator).to(
        case.dtype
    )
    seq_lens = torch.tensor(case.lengths)
    scale = float(latent_dim + rope_dim) ** -0.5
    with poisoned_memory():
        out = mla_decode_attention(
            *(t.to(device) for t in (query, cache, tables, seq_lens)), scale=scale, latent_dim=latent_dim
        )
    rows = cache.double()[:, :, None]
    expected = oracle.paged_attention(
        query, rows, rows[..., :latent_dim], tables, [1] * len(case.lengths), list(case.lengths), scale=scale
    )
    return oracle.worst_head_error(out, expected)


def check_kv_write(case: AttentionCase, device: str = "cpu") -> int:
    """Number of bytes in which the kernel's cache differs from the reference's, over written and untouched slots."""
    generator = torch.Generator().manual_seed(case.seed)
    num_tokens = sum(case.lengths)
    _, num_blocks, _ = place(case, generator)
    slots = torch.randperm(num_blocks * case.block_size, generator=generator)[:num_tokens]
    slots[::5] = -1
    results = []
    shape = (num_tokens, case.num_kv_heads, case.head_dim)
    rows = torch.randn(2, *shape, generator=generator).to(case.dtype).to(device)
    for write in (kv_write, kv_write_reference):
        caches = empty_caches(case, num_blocks, device)
        scales = empty_scales(case, num_blocks, device)
        write(rows[0], rows[1], *caches, slots.to(device), k_scale=scales[0], v_scale=scales[1])
        results.append([*caches, *(scale for scale in scales if scale is not None)])
    return sum(int((_bytes(a) != _bytes(b)).sum()) for a, b in zip(*results, strict=True))


def check_all(device: str = "cpu") -> list[dict[str, Any]]:
    """A fixed list of cases, every kernel, for a machine where it should take seconds: `labkit kernels check`."""
    results: list[dict[str, Any]] = []

    def note(kernel: str, case: AttentionCase, error: float, tolerance: float) -> None:
        shape = f"{str(case.dtype)[6:]} d{case.head_dim} b{case.block_size} g{case.group}"
        shape += f" {str(case.store)[6:]}" if case.store else ""
        shape += f" window {case.window}" if case.window else ""
        shape += f" splits {case.num_splits}" if case.num_splits > 1 else ""
        results.append(
            {
                "kernel": kernel,
                "shape": shape,
                "error": error,
                "tolerance": tolerance,
                "held": error <= tolerance,
            }
        )

    lengths, query_lens = (0, 1, 15, 16, 17, 65), (0, 1, 7, 16, 3, 33)
    shapes = [(128, *rest) for rest in ((16, 4, None, 1), (1, 1, None, 3), (128, 8, 20, 1), (32, 4, 9, 2))]
    shapes += [(64, 16, 4, None, 1), (64, 1, 8, 9, 2), (256, 16, 4, None, 1)]
    for dtype, tolerance in TOLERANCES.items():
        for head_dim, block_size, group, window, splits in shapes:
            case = AttentionCase(
                dtype, head_dim, block_size, 2, group, lengths, window, None, group == 4, splits, query_lens
            )
            note("paged_decode", case, check_paged_decode(case, device), tolerance)
            note("paged_prefill", case, check_paged_prefill(case, device), tolerance)
            if window is None and splits == 1:
                note("contiguous_decode", case, check_contiguous_decode(case, device), tolerance)
        case = AttentionCase(dtype, lengths=lengths, num_kv_heads=1, group=20)
        note("mla_decode", case, check_mla_decode(case, device), tolerance)
        for store in (None, torch.int8, torch.float8_e4m3fn):
            if (
                device != "cpu"
                and store == torch.float8_e4m3fn
                and torch.cuda.get_device_capability() < (8, 9)
            ):
                continue
            case = AttentionCase(dtype, 128, lengths=lengths, store=store)
            note("kv_write", case, float(check_kv_write(case, device)), 0.0)
            note("paged_decode", case, check_paged_decode(case, device), tolerance)
    return results


def _expected(
    case: AttentionCase, tensors: CaseTensors, query: torch.Tensor, query_lens: list[int]
) -> torch.Tensor:
    return oracle.paged_attention(
        query,
        *tensors.rows(),
        tensors.block_tables.cpu(),
        query_lens,
        list(case.lengths),
        scale=case.scale,
        window=case.window,
    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return raw(tensor).contiguous().view(torch.uint8)
