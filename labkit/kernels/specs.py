"""Which kernels are compiled ahead of time, and in which shapes. Cases are data: this module imports no triton.

The divisibility hints of a case are the kernel's `ALIGNED` parameters: the same tuple whose divisibility by 16 the
launcher checks (`checks.check_alignment`), and the only parameters that the runtime may specialise on, everything else
being named in the kernel's `do_not_specialize`. A test holds the three together.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch

from labkit.kernels.copy_words import BLOCK
from labkit.kernels.decode_tiles import decode_config
from labkit.kernels.kv_write import write_config
from labkit.kernels.mla_decode import mla_config
from labkit.kernels.paged_prefill import prefill_config
from labkit.kernels.quantize import LIMITS

ARCHS = (80, 90, 100)
TRITON_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.float8_e4m3fn: "fp8e4nv",
}


@dataclass(frozen=True)
class CompileCase:
    """One kernel in one shape. `types` are Triton's names of the parameters that are not `i32`; `aligned` the hints."""

    kernel: str
    shape: str
    module: str
    function: str
    types: dict[str, str]
    constexprs: dict[str, Any]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int = 1
    dtype: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def default_cases() -> list[CompileCase]:
    """What `make test` compiles: every kernel, in the shapes of Llama-3.1-8B (head_dim 128, 8 KV heads, group 4, blocks
    of 16) and DeepSeek-V3 (latent 512 + 64), in the dtypes that use different instructions."""
    fp16, bf16, fp32 = torch.float16, torch.bfloat16, torch.float32
    return [
        write_case(bf16, bf16, 128, 16),
        write_case(fp16, torch.int8, 128, 16),
        write_case(bf16, torch.float8_e4m3fn, 128, 16),
        contiguous_case(bf16, bf16, 128, 4),
        paged_case(bf16, bf16, 128, 4, 16),
        paged_case(fp16, fp16, 64, 4, 128),
        paged_case(fp32, fp32, 128, 4, 16),
        paged_case(bf16, bf16, 128, 4, 1),
        paged_case(fp16, torch.int8, 128, 4, 16),
        split_case(bf16, bf16, 128, 4, 16),
        reduce_case(bf16, 128),
        prefill_case(bf16, bf16, 128, 4, 16),
        prefill_case(fp32, fp32, 128, 4, 16),
        mla_case(bf16, 16),
        copy_case(),
        gather_case(16),
        move_case(),
    ]


def all_cases() -> list[CompileCase]:
    """The whole matrix: every dtype with head_dim 64, 128, 256; for bfloat16 at head_dim 128 also every block size (1 and
    8 to 256), groups 1, 4, 8, and windows."""
    bf16 = torch.bfloat16
    floats = (torch.float16, bf16, torch.float32)
    caches = [(dtype, dtype) for dtype in floats] + [
        (dtype, store) for dtype in floats[:2] for store in LIMITS
    ]
    cases = []
    for dtype, store in caches:
        for head_dim in (64, 128, 256):
            cases += [
                write_case(dtype, store, head_dim, 16),
                contiguous_case(dtype, store, head_dim, 4),
                paged_case(dtype, store, head_dim, 4, 16),
                paged_case(dtype, store, head_dim, 4, 128),
                split_case(dtype, store, head_dim, 4, 16),
                prefill_case(dtype, store, head_dim, 4, 16),
            ]
    for block_size in (1, 8, 32, 64, 256):
        cases += [paged_case(bf16, bf16, 128, 4, block_size), prefill_case(bf16, bf16, 128, 4, block_size)]
    for group in (1, 8):
        cases += [contiguous_case(bf16, bf16, 128, group), paged_case(bf16, bf16, 128, group, 16)]
    cases += [
        paged_case(bf16, bf16, 128, 4, 16, windowed=True),
        prefill_case(bf16, bf16, 128, 4, 16, windowed=True),
    ]
    cases += [reduce_case(dtype, head_dim) for dtype in floats for head_dim in (64, 128, 256)]
    cases += [mla_case(dtype, block_size) for dtype in floats for block_size in (1, 16, 64)]
    return [*cases, copy_case(), move_case(), *(gather_case(block_size) for block_size in (1, 16, 256))]


def write_case(dtype: torch.dtype, store: torch.dtype, head_dim: int, block_size: int) -> CompileCase:
    """`kv_write`: rows of `dtype` into a cache of `store`, 8 KV heads."""
    types = {**_pointers(dtype, "key", "value"), **_pointers(store, "k_cache", "v_cache"), **_scales(store)}
    config = write_config(8, head_dim)
    constexprs = {
        "HEADS": config.heads,
        "num_warps": config.num_warps,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "LIMIT": LIMITS.get(store, 0.0),
        "ROUND": store == torch.int8,
        "PREROUND": False,
    }
    return _case(
        "kv_write",
        "kv_write_kernel",
        types | {"slot_mapping": "*i64"},
        constexprs,
        dtype,
        store,
        d=head_dim,
        b=block_size,
    )


def contiguous_case(dtype: torch.dtype, store: torch.dtype, head_dim: int, group: int) -> CompileCase:
    """`contiguous_decode`: queries of `dtype` over a cache of `store`, `group` query heads a KV head."""
    constexprs = _decode_constexprs(dtype, store, head_dim, group)
    types = _decode_types(dtype, store) | {"base_slots": "*i64"}
    return _case(
        "contiguous_decode", "contiguous_decode_kernel", types, constexprs, dtype, store, d=head_dim, g=group
    )


def paged_case(
    dtype: torch.dtype,
    store: torch.dtype,
    head_dim: int,
    group: int,
    block_size: int,
    *,
    windowed: bool = False,
) -> CompileCase:
    """`paged_decode` in a single pass."""
    constexprs = _decode_constexprs(dtype, store, head_dim, group)
    constexprs |= {"BLOCK_SIZE": block_size, "WINDOWED": windowed}
    types = _decode_types(dtype, store) | {"block_tables": "*i32"}
    shape = {"d": head_dim, "g": group, "b": block_size} | ({"window": 1} if windowed else {})
    return _case("paged_decode", "paged_decode_kernel", types, constexprs, dtype, store, **shape)


def split_case(
    dtype: torch.dtype, store: torch.dtype, head_dim: int, group: int, block_size: int
) -> CompileCase:
    """`paged_decode` cut into pieces, the kernel that leaves partial sums."""
    constexprs = _decode_constexprs(dtype, store, head_dim, group)
    constexprs |= {"BLOCK_SIZE": block_size, "WINDOWED": False}
    types = _decode_types(dtype, store) | {"block_tables": "*i32", "partial": "*fp32", "partial_lse": "*fp32"}
    del types["out"]
    return _case(
        "paged_decode_split",
        "paged_decode_split_kernel",
        types,
        constexprs,
        dtype,
        store,
        d=head_dim,
        g=group,
        b=block_size,
    )


def reduce_case(dtype: torch.dtype, head_dim: int) -> CompileCase:
    """The kernel that joins 16 partial sums."""
    types = {**_pointers(dtype, "out"), "partial": "*fp32", "partial_lse": "*fp32"}
    constexprs = {"HEAD_DIM": head_dim, "SPLITS": 16, "num_warps": 4}
    return _case(
        "paged_decode_split",
        "paged_decode_reduce_kernel",
        types,
        constexprs,
        dtype,
        dtype,
        d=head_dim,
        splits=16,
    )


def prefill_case(
    dtype: torch.dtype,
    store: torch.dtype,
    head_dim: int,
    group: int,
    block_size: int,
    *,
    windowed: bool = False,
) -> CompileCase:
    """`paged_prefill`; `group` query heads a KV head."""
    config = prefill_config(dtype, head_dim, store in LIMITS)
    constexprs = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "BLOCK_M": config.tile_m,
        "BLOCK_N": config.tile_n,
        "WINDOWED": windowed,
        "QUANTIZED": store in LIMITS,
        "UPCAST": False,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }
    types = _decode_types(dtype, store) | {"block_tables": "*i32", "cu_query_lens": "*i64"}
    shape = {"d": head_dim, "g": group, "b": block_size} | ({"window": 1} if windowed else {})
    return _case("paged_prefill", "paged_prefill_kernel", types, constexprs, dtype, store, **shape)


def mla_case(dtype: torch.dtype, block_size: int) -> CompileCase:
    """`mla_decode` on rows of DeepSeek-V3: 512 latent and 64 rotary entries."""
    config = mla_config(dtype)
    constexprs = {
        "LATENT_DIM": 512,
        "ROPE_DIM": 64,
        "BLOCK_SIZE": block_size,
        "ROWS": config.rows,
        "BLOCK_N": config.tile_n,
        "UPCAST": False,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }
    types = _pointers(dtype, "out", "query", "latent_cache")
    types |= {"block_tables": "*i32", "seq_lens": "*i64", "scale_log2": "fp32"}
    return _case("mla_decode", "mla_decode_kernel", types, constexprs, dtype, dtype, d="512+64", b=block_size)


def copy_case() -> CompileCase:
    """`block_copy`, in 16-byte units of int32 words."""
    types = {**_pointers(None, "source", "target"), "block_pairs": "*i64"}
    return _case("block_copy", "copy_blocks_kernel", types, {"BLOCK_WORDS": BLOCK, "UNIT": 4}, None, None)


def move_case() -> CompileCase:
    """`move_slots`, in 16-byte units of int32 words."""
    types = {**_pointers(None, "source", "target"), "source_slots": "*i64", "target_slots": "*i64"}
    return _case("move_slots", "move_slots_kernel", types, {"BLOCK_WORDS": BLOCK, "UNIT": 4}, None, None)


def gather_case(block_size: int) -> CompileCase:
    """`block_gather`, in 16-byte units of int32 words."""
    module = importlib.import_module("labkit.kernels.block_gather")
    types = {
        **_pointers(None, "out", "cache"),
        "block_tables": "*i32",
        "seq_lens": "*i64",
        "first_rows": "*i64",
    }
    constexprs = {
        "BLOCK_SIZE": block_size,
        "TILE_TOKENS": module.TOKENS,
        "TILE_WORDS": module.WORDS,
        "UNIT": 4,
    }
    return _case("block_gather", "block_gather_kernel", types, constexprs, None, None, b=block_size)


def _case(
    module: str,
    function: str,
    types: dict[str, str],
    constexprs: dict[str, Any],
    dtype: torch.dtype | None,
    store: torch.dtype | None,
    **shape: object,
) -> CompileCase:
    path = f"labkit.kernels.{module}"
    name = "REDUCE_ALIGNED" if "reduce" in function else "ALIGNED"
    kinds = [TRITON_TYPES[t] for t in dict.fromkeys((dtype, store)) if t is not None] or ["words"]
    num_warps, num_stages = constexprs.pop("num_warps", 4), constexprs.pop("num_stages", 1)
    return CompileCase(
        kernel=function.removesuffix("_kernel"),
        shape=" ".join(
            ["/".join(kinds), *(key if key == "window" else f"{key}{value}" for key, value in shape.items())]
        ),
        module=path,
        function=function,
        types=types,
        constexprs=constexprs,
        aligned=getattr(importlib.import_module(path), name),
        num_warps=num_warps,
        num_stages=num_stages,
        dtype=kinds[0],
    )


def _pointers(dtype: torch.dtype | None, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, "*" + ("i32" if dtype is None else TRITON_TYPES[dtype]))


def _scales(store: torch.dtype) -> dict[str, str]:
    """A launcher without scales passes an index vector in their place; the kernel never touches it."""
    return dict.fromkeys(("k_scale", "v_scale"), "*fp32" if store in LIMITS else "*i64")


def _decode_types(dtype: torch.dtype, store: torch.dtype) -> dict[str, str]:
    types = {**_pointers(dtype, "out", "query"), **_pointers(store, "k_cache", "v_cache"), **_scales(store)}
    return types | {"seq_lens": "*i64", "scale_log2": "fp32"}


def _decode_constexprs(dtype: torch.dtype, store: torch.dtype, head_dim: int, group: int) -> dict[str, Any]:
    config = decode_config(dtype, head_dim, group, store in LIMITS)
    return {
        "GROUP": group,
        "ROWS": config.rows,
        "HEAD_DIM": head_dim,
        "BLOCK_N": config.tile_n,
        "QUANTIZED": store in LIMITS,
        "UPCAST": False,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }
