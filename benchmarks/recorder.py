"""What recording costs: the same replay without a recorder, at level summary, at level full (blocks watched), and at level
full beside a device allocator that is read at every step.

    python benchmarks/recorder.py [num_requests]

CPU time, best of 3, ratios to off in one run. Bounds: summary at most 1.15, full at most 2.5.
"""

from __future__ import annotations

import json
import platform
import sys
import time

import numpy as np

from labkit.kv.paged import PagedKVCache
from labkit.memory import make_allocator
from labkit.observe.recorder import make_recorder
from labkit.serving.cost_model import CostModelExecutor
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.units import GIB
from labkit.workload.traces import load_or_synthetic

LEVELS = ("off", "summary", "full", "full+device")


def run(level: str, load: list, num_blocks: int = 20000) -> float:
    """CPU seconds of one replay."""
    rng = np.random.default_rng(0)
    kv = PagedKVCache(num_blocks, 131072, block_size=16)
    scheduler = make_scheduler("lab", kv, max_num_batched_tokens=2048, max_num_seqs=256)
    executor = CostModelExecutor("Llama-3.1-8B", "A100-80GB")
    device = None
    if level == "full+device":
        device = make_allocator("caching", 80 * GIB)
        for _ in range(200):  # weights and buffers that stay, with holes between them
            device.free(device.malloc(int(rng.integers(1 << 20, 64 << 20))))
            device.malloc(int(rng.integers(1 << 20, 64 << 20)))
    recorder = make_recorder(level.partition("+")[0], device=device)
    began = time.process_time()
    simulate(scheduler, executor, load, recorder)
    return time.process_time() - began


def main() -> None:
    num = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    load, sentence = load_or_synthetic("azure-conv", num, np.random.default_rng(0))
    print(sentence)
    times = {level: [] for level in LEVELS}
    for _ in range(3):
        for level in LEVELS:
            times[level].append(run(level, load))
    best = {level: min(values) for level, values in times.items()}
    for level in LEVELS:
        print(f"{level:<13}{best[level]:>8.3f} s CPU   {best[level] / best['off']:>6.3f} of off")
    ratios = {level: round(best[level] / best["off"], 4) for level in LEVELS}
    print(
        json.dumps(
            {
                "benchmark": "recorder",
                "machine": platform.processor() or platform.machine(),
                "num_requests": len(load),
                "seconds": best,
                "ratios": ratios,
            }
        )
    )


if __name__ == "__main__":
    main()
