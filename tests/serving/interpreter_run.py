"""Run by test_same_tokens_interpreter.py in a process of its own: the backend is fixed before triton is imported."""

from __future__ import annotations

import json
import os

os.environ["LABKIT_KERNELS"] = "interpret"

import numpy as np
import torch
from tensor_driver import Driver

from labkit.kernels import backend
from labkit.kv import make_kv_cache
from labkit.serving.llama import Llama, plain_generate, random_weights
from labkit.serving.llama_config import LlamaConfig
from labkit.serving.tensor_executor import TensorExecutor
from labkit.serving.tensor_memory import TensorMemory
from labkit.units import MIB

CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=64,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=64,
    intermediate_size=64,
    max_model_len=128,
)
CACHES = {
    "reserve-max": {"max_model_len": 64},
    "grow-compact": {"grow_tokens": 8},
    "paged": {"block_size": 8},
    "paged hash": {"block_size": 16, "prefix": "hash"},
    "paged radix": {"block_size": 8, "prefix": "radix", "prefix_options": {"partial_hits": True}},
}


def main() -> None:
    torch.set_num_threads(1)
    weights = random_weights(CONFIG, np.random.default_rng(0))
    model = Llama(CONFIG, weights)
    rng = np.random.default_rng(1)
    start = rng.integers(0, 64, 17).tolist()  # the three prompts begin alike
    prompts = [start[:5], start[:16], start + rng.integers(0, 64, 4).tolist()]
    wanted = [plain_generate(model, prompt, 8) for prompt in prompts]
    rows = {}
    for label, options in CACHES.items():
        bytes_per_token = TensorExecutor.kv_spec(CONFIG).bytes_per_token
        kv = make_kv_cache(label.split()[0], capacity_tokens=192, bytes_per_token=bytes_per_token, **options)
        executor = TensorExecutor(CONFIG, kv, TensorMemory(4 * MIB), weights=weights, validate=True)
        requests = [(f"r{i}", prompt, 8) for i, prompt in enumerate(prompts)]
        Driver(executor, kv, requests, seed=3, fork_rate=0.0, preempt_rate=0.15).run()
        rows[label] = [executor.outputs(f"r{i}") for i in range(3)]
    print(
        json.dumps(
            {
                "mode": backend.MODE,
                "wanted": [w[0] for w in wanted],
                "margin": min(w[1] for w in wanted),
                **rows,
            }
        )
    )


if __name__ == "__main__":
    main()
