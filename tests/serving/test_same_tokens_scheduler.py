"""40 random requests through the lab's scheduler and engine loop: the tokens do not depend on the KV cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensor_driver import assert_same_tokens, random_requests

from labkit.kv import make_kv_cache
from labkit.serving.engine import simulate
from labkit.serving.llama import Llama, random_weights
from labkit.serving.llama_config import LlamaConfig
from labkit.serving.schedulers import make_scheduler
from labkit.serving.tensor_executor import TensorExecutor
from labkit.serving.tensor_memory import TensorMemory
from labkit.units import MIB
from labkit.workload.base import RequestSpec

CONFIG = LlamaConfig(
    vocab_size=96,
    hidden_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=64,
    max_model_len=512,
)
#: label -> (cache, options, capacity in tokens)
CASES = {
    "contiguous reserve": ("reserve-max", {"max_model_len": 256}, 4096),
    "contiguous grow": ("grow", {"grow_tokens": 8}, 4096),
    "contiguous grow, compacted, preempted": ("grow-compact", {"grow_tokens": 8}, 640),
    "paged 1": ("paged", {"block_size": 1}, 4096),
    "paged 8": ("paged", {"block_size": 8}, 4096),
    "paged 16": ("paged", {"block_size": 16}, 4096),
    "paged 64": ("paged", {"block_size": 64}, 4096),
    "paged, preempted": ("paged", {"block_size": 8}, 256),
    "paged, preempted, hash": ("paged", {"block_size": 8, "prefix": "hash"}, 256),
    "paged, preempted, radix": ("paged", {"block_size": 8, "prefix": "radix"}, 256),
}


@pytest.fixture(scope="module")
def memo():
    return {}


@pytest.mark.parametrize("label", CASES)
def test_same_tokens_lab_scheduler(label, memo):
    torch.set_num_threads(1)
    name, options, capacity = CASES[label]
    weights = random_weights(CONFIG, np.random.default_rng(7))
    bytes_per_token = TensorExecutor.kv_spec(CONFIG).bytes_per_token
    kv = make_kv_cache(name, capacity_tokens=capacity, bytes_per_token=bytes_per_token, **options)
    executor = TensorExecutor(CONFIG, kv, TensorMemory(16 * MIB), weights=weights, validate=True)
    load = [
        RequestSpec(request_id, float(i // 2), len(prompt), num_outputs, num_outputs, prompt_token_ids=prompt)
        for i, (request_id, prompt, num_outputs) in enumerate(random_requests(CONFIG, 40, 5))
    ]
    executor.add_requests(load)
    scheduler = make_scheduler("lab", kv, record_chunks=True, max_num_batched_tokens=96, max_num_seqs=12)
    totals = simulate(scheduler, executor, load, clock="step")
    assert totals.num_finished == 40
    assert (totals.num_preempted > 0) == ("preempted" in label)
    for spec in load:
        assert len(executor.outputs(spec.request_id)) == spec.num_output_tokens
    assert_same_tokens(executor, Llama(CONFIG, weights), memo)
