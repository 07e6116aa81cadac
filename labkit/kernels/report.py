"""The compile table and the bench table as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.kernels.compile import CompileRow


def compile_report(rows: Sequence[CompileRow]) -> str:
    """One line a kernel, shape and architecture."""
    header = (
        "kernel",
        "shape",
        "sm",
        "regs",
        "spill B",
        "shared B",
        "occupancy",
        "KV loads",
        "table loads",
        "matrix instr.",
    )
    lines: list[tuple[str, ...]] = [header]
    for row in rows:
        if row.status != "ok":
            lines.append((row.kernel, row.shape, str(row.arch), row.status, *[""] * 6))
            continue
        lines.append(
            (
                row.kernel,
                row.shape,
                str(row.arch),
                str(row.registers),
                str(row.spill_bytes),
                str(row.shared_bytes),
                f"{row.occupancy:.0%} ({row.occupancy_limit})",
                counts(row.kv_loads),
                counts(row.table_loads),
                " ".join(row.mma or []) or "none",
            )
        )
    return table(lines)


def bench_report(result: dict[str, Any]) -> str:
    """Device and bandwidth, then one line a measurement."""
    head = (
        f"{result['device']}, torch {result['torch']}, triton {result['triton']}; "
        f"copy bandwidth {result['copy_bandwidth_bytes_per_s'] / 1e9:.0f} GB/s (measured in this run)"
    )
    lines = [("kernel", "shape", "median ms", "floor ms", "of floor", "alternatives (median ms)")]
    for row in result["rows"]:
        other = ", ".join(
            f"{name} {value:.4f}" if isinstance(value, float) else f"{name}: {value}"
            for name, value in row["alternatives_ms"].items()
        )
        share = f"{row['floor_ms'] / row['median_ms']:.0%}"
        lines.append(
            (row["kernel"], row["shape"], f"{row['median_ms']:.4f}", f"{row['floor_ms']:.4f}", share, other)
        )
    return head + "\n" + table(lines)


def counts(loads: dict[str, int] | None) -> str:
    """`{"LDGSTS.128": 16}` -> "LDGSTS.128x16"."""
    return " ".join(f"{name}x{count}" for name, count in (loads or {}).items()) or "none"


def table(lines: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
    )
