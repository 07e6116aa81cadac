"""What recording costs: the same replay without a recorder, at level summary, at level full, and full with blocks watched.

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
from labkit.observe.recorder import make_recorder
from labkit.serving.cost_model import CostModelExecutor
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.traces import load_or_synthetic

LEVELS = ("off", "summary", "full")


def run(level: str, load: list, num_blocks: int = 20000) -> float:
    """CPU seconds of one replay."""
    kv = PagedKVCache(num_blocks, 131072, block_size=16)
    scheduler = make_scheduler("lab", kv, max_num_batched_tokens=2048, max_num_seqs=256)
    executor = CostModelExecutor("Llama-3.1-8B", "A100-80GB")
    recorder = make_recorder(level)
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
        print(f"{level:<10}{best[level]:>8.3f} s CPU   {best[level] / best['off']:>6.3f} of off")
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
