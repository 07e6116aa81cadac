"""Kernels on KV memory, each beside the plain torch function that says what it must compute.

The layout is in `layout.py`, which of the three ways runs is decided in `backend.py`.
"""

from labkit.kernels.block_copy import block_copy
from labkit.kernels.block_gather import block_gather
from labkit.kernels.contiguous_decode import contiguous_decode_attention
from labkit.kernels.kv_write import kv_write
from labkit.kernels.mla_decode import mla_decode_attention
from labkit.kernels.move_slots import move_slots
from labkit.kernels.paged_decode import paged_decode_attention
from labkit.kernels.paged_prefill import paged_prefill_attention
from labkit.kernels.swap_blocks import swap_blocks

__all__ = [
    "block_copy",
    "block_gather",
    "contiguous_decode_attention",
    "kv_write",
    "mla_decode_attention",
    "move_slots",
    "paged_decode_attention",
    "paged_prefill_attention",
    "swap_blocks",
]
