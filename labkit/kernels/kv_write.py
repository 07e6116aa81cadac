# mypy: disable-error-code="valid-type,name-defined"
"""KV write: put each new token's key and value into its slot.

One program a (token, up to 1,024 elements of its heads). Counted per call, b bytes an input element, c a cache element:

    read    2 * num_tokens * num_kv_heads * head_dim * b + num_tokens * 8     rows and slots
    write   2 * num_tokens * num_kv_heads * head_dim * c                      rows
            2 * num_tokens * num_kv_heads * 4                                 scales, quantised caches only
    FLOPs   none, or about 5 an element to quantise: bound by bytes either way

fp8 e4m3 is converted by instructions of sm_89 and newer; older GPUs do not support it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labkit.kernels import checks
from labkit.kernels.backend import interpreting, jit, tl, uses_triton
from labkit.kernels.decode_tiles import check_supported, stride
from labkit.kernels.quantize import LIMITS, is_quantized, quantize, raw


def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    validate: bool = True,
) -> None:
    """Write `key, value [num_tokens, num_kv_heads, head_dim]` to the slots `slot_mapping [num_tokens]`, in place.

    Slot -1 means "do not write" (padding). The caches are `[num_blocks, block_size, num_kv_heads, head_dim]` or
    `[num_slots, num_kv_heads, head_dim]`. An int8 or fp8 cache is quantised on the way in: the scale of each token and
    head is written to `k_scale`, `v_scale` (the cache's shape without head_dim, float32). Slots must differ.
    """
    _check(key, value, k_cache, v_cache, slot_mapping, k_scale, v_scale, validate)
    if len(key) == 0:
        return
    if uses_triton(k_cache):
        _launch(key, value, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    else:
        kv_write_reference(key, value, k_cache, v_cache, slot_mapping, k_scale=k_scale, v_scale=v_scale)


def kv_write_reference(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """The same in plain torch."""
    if bool((slot_mapping < 0).any()):
        written = slot_mapping >= 0
        key, value, slot_mapping = key[written], value[written], slot_mapping[written]
    slots = slot_mapping.long()
    for rows, cache, scale in ((key, k_cache, k_scale), (value, v_cache, v_scale)):
        place = (slots,) if cache.dim() == 3 else (slots // cache.shape[1], slots % cache.shape[1])
        if is_quantized(cache.dtype):
            assert scale is not None
            rows, scale[place] = quantize(rows, cache.dtype)
        raw(cache)[place] = raw(rows.to(cache.dtype))


#: see `paged_decode.ALIGNED`
ALIGNED = (
    "key",
    "value",
    "k_cache",
    "v_cache",
    "stride_key_row",
    "stride_key_head",
    "stride_value_row",
    "stride_value_head",
    "stride_k_block",
    "stride_k_slot",
    "stride_k_head",
    "stride_v_block",
    "stride_v_slot",
    "stride_v_head",
)


@jit
def _quantize_rows(rows, LIMIT: tl.constexpr, ROUND: tl.constexpr, PREROUND: tl.constexpr):
    """One scale a row. Adding and taking away 1.5 * 2**23 rounds a small float32 to the nearest integer, ties to even.

    PREROUND is set under the interpreter only, whose conversion to fp8 loses the carry when a mantissa rounds up to the
    next power of two (31.97 becomes 16): values are first rounded to e4m3's 4 significant bits (or its smallest step,
    2**-9, below 2**-6), so that the conversion is exact.
    """
    rows = rows.to(tl.float32)
    scale = tl.div_rn(tl.max(tl.abs(rows), 1), tl.full([rows.shape[0]], LIMIT, tl.float32))
    scale = tl.where(scale > 0, scale, 1.0)
    scaled = tl.div_rn(rows, tl.broadcast_to(scale[:, None], rows.shape))
    scaled = tl.minimum(tl.maximum(scaled, -LIMIT), LIMIT)
    if ROUND:
        scaled = (scaled + 12582912.0) - 12582912.0
    if PREROUND:
        split = scaled * 1048577.0
        normal = split - (split - scaled)
        small = ((tl.abs(scaled) + 24576.0) - 24576.0) * tl.where(
            scaled < 0, -1.0, 1.0
        )  # keeps the sign of zero
        scaled = tl.where(tl.abs(scaled) < 0.015625, small, normal)
    return scaled, scale


@jit(do_not_specialize=["k_scale", "v_scale", "slot_mapping", "num_kv_heads"])
def kv_write_kernel(
    key,
    value,
    k_cache,
    v_cache,
    k_scale,
    v_scale,
    slot_mapping,
    num_kv_heads,
    stride_key_row,
    stride_key_head,
    stride_value_row,
    stride_value_head,
    stride_k_block,
    stride_k_slot,
    stride_k_head,
    stride_v_block,
    stride_v_slot,
    stride_v_head,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LIMIT: tl.constexpr,
    ROUND: tl.constexpr,
    PREROUND: tl.constexpr,
):
    """Program (token, HEADS KV heads). LIMIT 0: no quantisation. A contiguous cache is one of block size 1."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        offs_d = tl.arange(0, HEAD_DIM)
        real = heads < num_kv_heads
        mask = real[:, None]
        block = slot // BLOCK_SIZE
        offset = slot % BLOCK_SIZE
        key_at = key + token * stride_key_row + heads[:, None] * stride_key_head + offs_d[None, :]
        value_at = value + token * stride_value_row + heads[:, None] * stride_value_head + offs_d[None, :]
        k_at = k_cache + block * stride_k_block + offset * stride_k_slot + heads[:, None] * stride_k_head
        v_at = v_cache + block * stride_v_block + offset * stride_v_slot + heads[:, None] * stride_v_head
        k = tl.load(key_at, mask=mask, other=0.0)  # kv
        v = tl.load(value_at, mask=mask, other=0.0)  # kv
        if LIMIT > 0:
            k, k_row_scale = _quantize_rows(k, LIMIT, ROUND, PREROUND)
            v, v_row_scale = _quantize_rows(v, LIMIT, ROUND, PREROUND)
            tl.store(k_scale + slot * num_kv_heads + heads, k_row_scale, mask=real)
            tl.store(v_scale + slot * num_kv_heads + heads, v_row_scale, mask=real)
        tl.store(k_at + offs_d[None, :], k.to(k_cache.dtype.element_ty), mask=mask)
        tl.store(v_at + offs_d[None, :], v.to(v_cache.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """KV heads a program writes, and its warps: 8 elements (16 bytes in 16 bits) a thread and load."""

    heads: int
    num_warps: int


def write_config(num_kv_heads: int, head_dim: int) -> WriteConfig:
    """As many heads as fill 1,024 elements, a power of two."""
    heads = min(1 << (num_kv_heads - 1).bit_length(), max(1, 1024 // head_dim))
    return WriteConfig(heads, num_warps=max(1, min(4, heads * head_dim // 256)))


def _launch(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    num_tokens, num_kv_heads, head_dim = key.shape
    check_supported(key.dtype, head_dim)
    checks.check_alignment(key=key, value=value, k_cache=k_cache, v_cache=v_cache)
    checks.check_contiguous(k_scale=k_scale, v_scale=v_scale, slot_mapping=slot_mapping)
    if k_cache.dim() == 3:
        k_cache, v_cache = k_cache[:, None], v_cache[:, None]
    quantized = is_quantized(k_cache.dtype)
    config = write_config(num_kv_heads, head_dim)
    kv_write_kernel[(num_tokens, -(-num_kv_heads // config.heads))](
        key,
        value,
        k_cache,
        v_cache,
        k_scale if k_scale is not None else slot_mapping,
        v_scale if v_scale is not None else slot_mapping,
        slot_mapping,
        num_kv_heads,
        stride(key, 0),
        stride(key, 1),
        stride(value, 0),
        stride(value, 1),
        *(stride(k_cache, dim) for dim in range(3)),
        *(stride(v_cache, dim) for dim in range(3)),
        HEADS=config.heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=k_cache.shape[1],
        LIMIT=LIMITS[k_cache.dtype] if quantized else 0.0,
        ROUND=k_cache.dtype == torch.int8,
        PREROUND=interpreting() and k_cache.dtype == torch.float8_e4m3fn,
        num_warps=config.num_warps,
    )


def _check(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    validate: bool,
) -> None:
    checks.check_rank("key", key, "num_tokens, num_kv_heads, head_dim")
    checks.check_devices(
        k_cache=k_cache,
        v_cache=v_cache,
        key=key,
        value=value,
        slot_mapping=slot_mapping,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    if k_cache.dim() not in (3, 4):
        checks.check_rank("k_cache", k_cache, "num_blocks, block_size, num_kv_heads, head_dim")
    checks.check_cache_pair(k_cache, v_cache, k_scale, v_scale)
    checks.check_index("slot_mapping", slot_mapping, len(key), per="token")
    for name, rows in (("key", key), ("value", value)):
        if rows.shape != (len(key), *k_cache.shape[-2:]):
            raise checks.fail(
                name,
                f"has shape {list(rows.shape)}, accepted is {[len(key), *k_cache.shape[-2:]]} as k_cache has it",
            )
        if not is_quantized(k_cache.dtype) and rows.dtype != k_cache.dtype:
            raise checks.fail(
                name, f"has dtype {rows.dtype}, accepted is the dtype of k_cache ({k_cache.dtype})"
            )
    if validate:
        num_slots = k_cache.shape[:-2].numel()
        good = (slot_mapping >= -1) & (slot_mapping < num_slots)
        checks.check_all(
            "slot_mapping",
            good,
            slot_mapping,
            f"slot {{value}} is out of range, accepted are -1 and [0, {num_slots})",
        )
