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
    # llama.cpp: blocks of 32 values with their scale (and minimum)
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
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


def dtype_in_text(text: str, default: str = "bfloat16") -> str:
    """The format that a free text names ("FP8 (e4m3)" -> fp8), else `default`."""
    said = text.casefold()
    for name in sorted({*_BYTES, *_ALIASES}, key=len, reverse=True):
        if name in said:
            return _ALIASES.get(name, name)
    return default
