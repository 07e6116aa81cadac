"""Engine steps a second of `TensorExecutor`: 16 running sequences of 256 tokens decode, one CPU thread, CPU time.

    python benchmarks/tensor_executor.py [--kv paged] [--steps 40]

The model has 4 layers, width 256, 8 heads, 2 KV heads and a vocabulary of 1,024 (random weights, float32). A step is the
whole of it: append to the KV manager, build the batch, run the model through the kernels, sample. Best of 3.
"""

from __future__ import annotations

import argparse
import json
import platform
import time

import numpy as np
import torch

from labkit.kernels import backend
from labkit.kv import make_kv_cache
from labkit.serving.base import Chunk, StepPlan
from labkit.serving.llama_config import LlamaConfig
from labkit.serving.tensor_executor import TensorExecutor
from labkit.serving.tensor_memory import TensorMemory
from labkit.units import MIB

NUM_SEQS, CONTEXT = 16, 256


def steps_per_s(kv_name: str, num_steps: int, **options: object) -> float:
    """Decode steps a second around a context of 256 tokens, CPU time of one thread."""
    config = LlamaConfig()
    spec = TensorExecutor.kv_spec(config)
    kv = make_kv_cache(kv_name, capacity_tokens=16_384, bytes_per_token=spec.bytes_per_token, **options)
    executor = TensorExecutor(config, kv, TensorMemory(256 * MIB), rng=np.random.default_rng(0))
    rng = np.random.default_rng(1)
    names = [str(i) for i in range(NUM_SEQS)]
    start = CONTEXT - num_steps // 2

    def step(num_tokens: int) -> None:
        chunks = []
        for name in names:
            stop = kv.num_tokens(name)
            table, base = kv.block_table(name), kv.base_slot(name)
            chunks.append(Chunk(name, stop - num_tokens, num_tokens, True, table, base))
        executor.execute(StepPlan(0, chunks=chunks))

    for name in names:
        executor.add_prompt(name, rng.integers(0, config.vocab_size, start))
        assert kv.admit(name, start, max_tokens=512, final_tokens=512).admitted
    for name in names:  # prefills one by one: the largest step must not set the pace
        table, base = kv.block_table(name), kv.base_slot(name)
        executor.execute(StepPlan(0, chunks=[Chunk(name, 0, start, True, table, base)]))
    began = time.process_time()
    for _ in range(num_steps):
        moves = [move for name in names for move in kv.append(name).moves]
        executor.pool.move(moves)
        step(1)
    return num_steps / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv", default="paged,reserve-max,grow")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    print(
        f"{platform.machine()}, torch {torch.__version__}, kernels: {backend.MODE}, one thread, CPU time, best of 3"
    )
    print(f"{'KV cache':<16}{'block size':>12}{'steps/s':>10}")
    for name in arguments.kv.split(","):
        for size in (16, 64) if name == "paged" else (1,):
            options: dict[str, object] = {"block_size": size} if name == "paged" else {}
            rows[f"{name}/{size}"] = max(steps_per_s(name, arguments.steps, **options) for _ in range(3))
            print(f"{name:<16}{size:>12}{rows[f'{name}/{size}']:>10.1f}")
    shown = {key: round(value, 1) for key, value in rows.items()}
    print(
        json.dumps(
            {"benchmark": "tensor_executor", "num_seqs": NUM_SEQS, "context": CONTEXT, "steps_per_s": shown}
        )
    )


if __name__ == "__main__":
    main()
