# ruff: noqa
"""Slot 0 is taken for padding."""

import torch
import triton
import triton.language as tl


@triton.jit
def my_kv_write_kernel(
    key, value, k_cache, v_cache, slot_mapping, stride_key, stride_value, ROW: tl.constexpr, WIDTH: tl.constexpr
):
    token = tl.program_id(0)
    slot = tl.load(slot_mapping + token)
    offs = tl.arange(0, WIDTH)
    mask = (offs < ROW) & (slot > 0)
    k = tl.load(key + token * stride_key + offs, mask=mask)
    v = tl.load(value + token * stride_value + offs, mask=mask)
    tl.store(k_cache + slot * ROW + offs, k, mask=mask)
    tl.store(v_cache + slot * ROW + offs, v, mask=mask)


def my_kv_write(key, value, k_cache, v_cache, slot_mapping):
    """key, value [num_tokens, num_heads, head_dim]; the last two dimensions are contiguous."""
    num_tokens, num_heads, head_dim = key.shape
    row = num_heads * head_dim
    my_kv_write_kernel[(num_tokens,)](
        key,
        value,
        k_cache,
        v_cache,
        slot_mapping,
        key.stride(0),
        value.stride(0),
        ROW=row,
        WIDTH=triton.next_power_of_2(row),
    )


EXPECT = "slot 0 is a slot like any other"  # the message must contain this
