"""A small run of the lab at level full, for the tests of this folder."""

from __future__ import annotations

import numpy as np

from labkit.kv import make_kv_cache
from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix import make_prefix_cache
from labkit.observe.recorder import make_recorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.synthetic import synthetic_load


def run(
    num: int = 120, num_blocks: int = 300, kind: str = "paged", pressure: str = "recompute", seed: int = 0
):
    load = synthetic_load("azure-conv", num, np.random.default_rng(seed), rate_scale=30)
    load = [r for r in load if r.num_prompt_tokens + r.num_output_tokens < 3000]
    if kind == "prefix":
        kv = PagedKVCache(num_blocks, 64, block_size=16, prefix=make_prefix_cache("hash", 16))
        for i, request in enumerate(load):
            start = 10**6 * (i % 5)
            request.prompt_token_ids = [
                *range(start, start + 160),
                *range(10**8 + i * 10**5, 10**8 + i * 10**5 + 64),
            ]
            request.num_prompt_tokens = 224
    elif kind == "paged":
        kv = PagedKVCache(num_blocks, 64, block_size=16)
    else:
        kv = make_kv_cache(kind, bytes_per_token=64, capacity_bytes=64 * 16 * num_blocks)
    scheduler = make_scheduler("lab", kv, max_num_seqs=32, pressure=pressure)
    recorder = make_recorder("full")
    simulate(scheduler, LinearStepCost(), load, recorder)
    return recorder
