"""KV write: put each new token's key and value into its slot."""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import uses_triton
from labkit.kernels.quantize import is_quantized, quantize, raw


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
        raise LabError("kv_write: the compiled kernel is not there yet; start with LABKIT_KERNELS=reference")
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
