"""Bytes per value of the number formats that weights and KV caches use."""

from __future__ import annotations

from labkit.errors import LabError

_BYTES = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "fp4": 0.5,
}
_ALIASES = {
    "fp32": "float32",
    "f32": "float32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "16-bit": "bfloat16",
    "8-bit": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "nvfp4": "fp4",
}


def dtype_bytes(name: str) -> float:
    """Bytes per value: `"bf16" -> 2.0`. Raises `LabError` for a format the lab does not know."""
    key = str(name).lower().removeprefix("torch.")
    key = _ALIASES.get(key, key)
    if key not in _BYTES:
        known = ", ".join(sorted({*_BYTES, *_ALIASES}))
        raise LabError(f"unknown number format {name!r}; choose one of: {known}")
    return _BYTES[key]
