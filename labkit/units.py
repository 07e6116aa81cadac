"""Sizes as people write them. 1 GiB is 2**30 bytes, 1 GB is 10**9: logs that say "GB" usually mean GiB."""

from __future__ import annotations

import re

from labkit.errors import LabError, shown

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def format_bytes(num_bytes: float) -> str:
    """`1536 -> "1.5 KiB"`: binary units, at most two decimals."""
    sign, size = ("-", -num_bytes) if num_bytes < 0 else ("", num_bytes)
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:.2f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{sign}{size:g} B"


def parse_bytes(text: str) -> int:
    """`"1.5 GiB" -> 1610612736`. Accepts B, KiB, MiB, GiB (binary) and KB, MB, GB (decimal)."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS or len(match[1]) > 24:
        raise LabError(
            f"{shown(text)} is not a size; write a number with one of B, KiB, MiB, GiB, KB, MB, GB"
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])
