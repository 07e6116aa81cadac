"""Times on a CUDA device: every kernel against its floor and against what a user would pick instead.

The floor is `bytes that must move / bandwidth`, the bandwidth being that of a large copy measured in the same run. Times
are medians of `triton.testing.do_bench`, which empties the L2 cache before each repetition. There is no CPU version: a
time of the torch reference or of Triton's interpreter says nothing about a kernel.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.errors import LabError
from labkit.kernels import alternatives, backend, cost
from labkit.kernels.bench_rows import QUICK, Prepare, Shapes, all_rows

Timer = Callable[[Callable[[], Any]], float]


def run_bench(*, quick: bool = False) -> dict[str, Any]:
    """All rows, with device, versions and date. Raises `LabError` without a CUDA device: CPU times are not kernel times."""
    if backend.MODE != "triton" or not torch.cuda.is_available():
        raise LabError(
            "kernels bench: needs a CUDA device with compiled Triton kernels and refuses to report CPU times as kernel "
            f"times; the backend here is {backend.MODE} ({backend.describe()['reason']})"
        )
    import triton.testing

    def time_ms(function: Callable[[], Any]) -> float:
        return float(triton.testing.do_bench(function, warmup=25, rep=100, return_mode="median"))

    shapes = QUICK if quick else Shapes()
    return {
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "torch": torch.__version__,
        "triton": backend.describe()["triton"],
        "date": datetime.date.today().isoformat(),
        **measure(shapes, "cuda", time_ms),
    }


def measure(shapes: Shapes, device: str, time_ms: Timer) -> dict[str, Any]:
    """Bandwidth and rows. (Tests run it on the CPU with a timer that measures nothing.)"""
    bandwidth = copy_bandwidth(shapes.copy_bytes, device, time_ms)
    rows = []
    for row in all_rows(shapes, device):
        rows.append(_row(*row, bandwidth, time_ms))
    return {"copy_bandwidth_bytes_per_s": bandwidth, "rows": rows}


def copy_bandwidth(num_bytes: int, device: str, time_ms: Timer) -> float:
    """Bytes read plus bytes written a second, by torch's own copy of `num_bytes`."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / (time_ms(lambda: target.copy_(source)) * 1e-3)


def _row(
    name: str,
    shape: str,
    function: Callable[[], Any],
    counted: cost.Cost,
    other: dict[str, Prepare],
    bandwidth: float,
    time_ms: Timer,
) -> dict[str, Any]:
    """One measurement. An alternative that cannot be set up here is reported in words, in place of its time."""
    alternatives_ms: dict[str, float | str] = {}
    for label, prepare in other.items():
        try:
            alternatives_ms[label] = time_ms(prepare())
        except alternatives.NotHere as missing:
            alternatives_ms[label] = str(missing)
        except Exception as error:  # a library's own failure must not cost the other rows
            alternatives_ms[label] = (
                f"failed: {str(error).strip().splitlines()[0] if str(error) else type(error)}"
            )
    median = time_ms(function)
    return {
        "kernel": name,
        "shape": shape,
        "median_ms": median,
        "floor_ms": counted.floor_s(bandwidth) * 1e3,
        "bytes": counted.bytes,
        "tflops": counted.flops / (median * 1e-3) / 1e12,
        "alternatives_ms": alternatives_ms,
    }


def compare_block_sizes(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """`{"batch x context": {"blocks of 16": paged / contiguous time}}`, single pass on both sides."""
    base = {row["shape"]: row["median_ms"] for row in rows if row["kernel"] == "contiguous_decode"}
    ratios: dict[str, dict[str, float]] = {shape: {} for shape in base}
    for row in rows:
        if row["kernel"] == "paged_decode" and row["shape"].endswith("single pass"):
            shape, blocks, _ = row["shape"].split(", ")
            ratios[shape][blocks] = row["median_ms"] / base[shape]
    return ratios
