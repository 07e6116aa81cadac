"""int8 and fp8 (e4m3) rows with a scale each. Granularity: one float32 scale per token and KV head.

`scale = max|row| / limit`, `stored = round(row / scale)`, with limit 127 (int8) or 448 (e4m3's largest number). An
all-zero row gets scale 1. A scale costs 4 bytes for each `head_dim` stored bytes: 3.1 % at head_dim 128.
"""

from __future__ import annotations

import torch

from labkit.errors import LabError

LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def is_quantized(dtype: torch.dtype) -> bool:
    """Whether a cache of this dtype has scales."""
    return dtype in LIMITS


def quantize(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows [..., head_dim] -> (stored [..., head_dim] of dtype, scale [...] float32)`. Half-way cases of int8 round
    to even, as the hardware conversion does."""
    if dtype not in LIMITS:
        raise LabError(f"quantize: {dtype} is not a quantised cache dtype; choose int8 or float8_e4m3fn")
    rows = rows.float()
    limit = LIMITS[dtype]
    scale = rows.abs().amax(-1) / limit
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    scaled = (rows / scale[..., None]).clamp(-limit, limit)
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), scale


def dequantize(stored: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The float32 rows that `stored` and `scale` stand for."""
    return stored.float() * scale[..., None]


def raw(cache: torch.Tensor) -> torch.Tensor:
    """fp8 seen as bytes: torch indexes fp8 tensors on no device, and bytes everywhere."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
