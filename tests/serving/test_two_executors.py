"""One load through the cost model and through real tensors: arrivals by step, output ids forced from the load. Every
decision is the same in every step, block tables included: what the simulator says about memory is what the tensors do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from labkit.kv import make_kv_cache
from labkit.serving.base import Recorder
from labkit.serving.cost_model import CostModelExecutor
from labkit.serving.engine import simulate
from labkit.serving.forced_outputs import ForcedOutputs
from labkit.serving.llama import random_weights
from labkit.serving.llama_config import LlamaConfig
from labkit.serving.schedulers import make_scheduler
from labkit.serving.tensor_executor import TensorExecutor
from labkit.serving.tensor_memory import TensorMemory
from labkit.units import MIB
from labkit.workload.base import RequestSpec

CONFIG = LlamaConfig(
    vocab_size=512,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    max_model_len=256,
)
BYTES = TensorExecutor.kv_spec(CONFIG).bytes_per_token
NUM_BLOCKS, BLOCK = 40, 8


def load(seed: int = 0) -> tuple[list[RequestSpec], dict[str, list[int]]]:
    """24 requests with a few shared beginnings, more than the pool can hold at once."""
    rng = np.random.default_rng(seed)
    shared = [rng.integers(0, CONFIG.vocab_size, 40).tolist() for _ in range(3)]
    specs, outputs = [], {}
    for i in range(24):
        prompt = shared[i % 3][: int(rng.integers(4, 41))] + rng.integers(0, CONFIG.vocab_size, 20).tolist()
        num_outputs = int(rng.integers(5, 40))
        specs.append(
            RequestSpec(f"r{i}", float(i), len(prompt), num_outputs, num_outputs, prompt_token_ids=prompt)
        )
        outputs[f"r{i}"] = rng.integers(0, CONFIG.vocab_size, num_outputs).tolist()
    return specs, outputs


class Decisions(Recorder):
    def __init__(self):
        self.steps: list[tuple[Any, ...]] = []
        self.num_preempted = self.num_hit_tokens = 0

    def on_step(self, scheduler, plan, outcome, start_s, end_s):
        self.num_preempted += len(plan.preempted)
        self.num_hit_tokens += sum(row.num_hit_tokens for row in plan.admitted)
        self.steps.append(
            (
                plan.num_scheduled_tokens,
                plan.num_kv_tokens_read,
                tuple(
                    (c.request_id, c.start, c.num_tokens, c.samples, tuple(c.block_table))
                    for c in plan.chunks
                ),
                tuple(plan.admitted),
                tuple(plan.preempted),
                tuple(plan.moves),
                tuple(outcome.started),
                tuple(outcome.finished),
            )
        )


def lab(cache: str, **options):
    def build():
        kv = make_kv_cache(cache, bytes_per_token=BYTES, capacity_tokens=NUM_BLOCKS * BLOCK, **options)
        return make_scheduler("lab", kv, record_chunks=True, max_num_batched_tokens=64, max_num_seqs=8), kv

    return build


def system(name: str, **options):
    """A real system's scheduler has blocks of its own; the tensors only need a pool of as many slots."""

    def build():
        scheduler = make_scheduler(name, record_chunks=True, **options)
        slots = make_kv_cache(
            "paged", bytes_per_token=BYTES, capacity_tokens=(NUM_BLOCKS + 1) * BLOCK, block_size=BLOCK
        )
        return scheduler, slots

    return build


VLLM = {
    "num_gpu_blocks": NUM_BLOCKS + 1,
    "block_size": BLOCK,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
}
SCHEDULERS = {
    "vllm": system("vllm", **VLLM),
    "vllm, no caching": system("vllm", **VLLM, enable_prefix_caching=False),
    "sglang": system(
        "sglang",
        max_total_tokens=NUM_BLOCKS * BLOCK,
        page_size=BLOCK,
        chunked_prefill_size=64,
        schedule_conservativeness=0.01,
        max_running_requests=8,
    ),
    "tensorrt_llm": system(
        "tensorrt_llm",
        num_blocks=NUM_BLOCKS,
        tokens_per_block=BLOCK,
        max_num_tokens=64,
        max_batch_size=8,
        enable_chunked_prefill=True,
        capacity_scheduler_policy="MAX_UTILIZATION",
    ),
    "lab, paged": lab("paged", block_size=BLOCK),
    "lab, paged, hash": lab("paged", block_size=BLOCK, prefix="hash"),
    "lab, paged, radix": lab("paged", block_size=BLOCK, prefix="radix"),
    "lab, grow": lab("grow", grow_tokens=BLOCK),
}


def run(build, kind: str) -> tuple[Decisions, dict[str, list[int]]]:
    specs, outputs = load()
    scheduler, kv = build()
    decisions = Decisions()
    if kind == "tensors":
        weights = random_weights(CONFIG, np.random.default_rng(1))
        executor = TensorExecutor(
            CONFIG, kv, TensorMemory(16 * MIB), weights=weights, forced=outputs, validate=True
        )
        executor.add_requests(specs)
    else:
        executor = ForcedOutputs(CostModelExecutor("Llama-3.1-8B", "A100-80GB"), outputs)
    simulate(scheduler, executor, specs, decisions, clock="step")
    scheduler.check_integrity()
    return decisions, outputs


@pytest.mark.parametrize("name", SCHEDULERS)
def test_same_decisions_in_every_step(name):
    torch.set_num_threads(1)
    modelled, outputs = run(SCHEDULERS[name], "cost model")
    real, _ = run(SCHEDULERS[name], "tensors")
    assert len(modelled.steps) == len(real.steps)
    for index, (left, right) in enumerate(zip(modelled.steps, real.steps)):
        assert left == right, f"step {index}"
    assert modelled.num_preempted > 0, "the pool is small enough to preempt"
    if "hash" in name or "radix" in name or name in ("vllm", "sglang", "tensorrt_llm"):
        assert modelled.num_hit_tokens > 0
    num_sampled = sum(chunk[3] for step in modelled.steps for chunk in step[2])
    assert num_sampled == sum(map(len, outputs.values()))


def test_the_comparison_sees_one_block_less():
    """Control: the same scheduler on a pool that is one block smaller decides otherwise."""

    def smaller():
        kv = make_kv_cache(
            "paged",
            bytes_per_token=BYTES,
            capacity_tokens=(NUM_BLOCKS - 1) * BLOCK,
            block_size=BLOCK,
            prefix="hash",
        )
        return make_scheduler("lab", kv, record_chunks=True, max_num_batched_tokens=64, max_num_seqs=8), kv

    one, _ = run(SCHEDULERS["lab, paged, hash"], "cost model")
    other, _ = run(smaller, "cost model")
    assert one.steps != other.steps
