"""What the compiler makes of a block-table lookup: the decode kernels of this lab, compiled for GPUs that are not here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def lookup_in_machine_code(
    archs: tuple[int, ...] = (90,), cache_dir: Path = Path("build/kernels")
) -> pd.DataFrame:
    """One row for each of the contiguous and the paged decode kernels (bf16, head_dim 128, group 4): global loads of
    block-table entries and of keys and values in the SASS, registers, spilled bytes, shared memory, occupancy.

    Compiles ahead of time in a subprocess (seconds, kept under `cache_dir`). Raises `LabError` without Triton.
    """
    import pandas as pd
    import torch

    from labkit.kernels.compile import compile_table
    from labkit.kernels.specs import contiguous_case, paged_case

    bf16 = torch.bfloat16
    cases = [contiguous_case(bf16, bf16, 128, 4)] + [paged_case(bf16, bf16, 128, 4, size) for size in (16, 1)]
    rows = compile_table(cases, archs, cache_dir=cache_dir)
    return pd.DataFrame(
        {
            "kernel": [row.kernel for row in rows],
            "shape": [row.shape for row in rows],
            "GPU": [f"sm_{row.arch}" for row in rows],
            "table loads": [_loads(row.table_loads) for row in rows],
            "KV loads": [_loads(row.kv_loads) for row in rows],
            "registers": [row.registers for row in rows],
            "spilled bytes": [row.spill_bytes for row in rows],
            "shared bytes": [row.shared_bytes for row in rows],
            "occupancy": [row.occupancy for row in rows],
        }
    )


def _loads(found: dict[str, int] | None) -> str:
    """`{"LDG.32": 2} -> "LDG.32 x 2"`: mnemonic, bits a thread, number of instructions."""
    return ", ".join(f"{name} x {count}" for name, count in (found or {}).items()) or "none"
