"""Contiguous, grown, compacted, mapped, paged, shared, forked, preempted: the tokens are those of a plain forward pass.

The combinations are those of the table in docs/kv.md.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensor_driver import Driver, assert_same_tokens, random_requests

from labkit.kv import make_kv_cache
from labkit.serving.llama import Llama, random_weights
from labkit.serving.llama_config import LlamaConfig, MLAShape
from labkit.serving.mla import plain_mla_attend
from labkit.serving.tensor_executor import TensorExecutor
from labkit.serving.tensor_memory import TensorMemory
from labkit.units import MIB

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 48,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_model_len": 512,
}
FULL, WINDOWED = LlamaConfig(**SHAPE), LlamaConfig(**SHAPE, window=40)
LATENT = LlamaConfig(**SHAPE, mla=MLAShape(latent_dim=20, rope_dim=8, nope_dim=12, value_dim=10))
MHA = LlamaConfig(**{**SHAPE, "num_kv_heads": 4})
MQA = LlamaConfig(**{**SHAPE, "num_kv_heads": 1})
CONTIGUOUS = {
    "reserve-max": {"max_model_len": 256},
    "reserve-pow2": {},
    "reserve-oracle": {},
    "grow": {"grow_tokens": 16},
    "grow-compact": {"grow_tokens": 16},
    "virtual-contiguous": {"granule_bytes": 4096, "num_ranges": 4, "max_model_len": 256},
}
PREFIXES = {
    "off": {},
    "hash": {"prefix": "hash"},
    "hash-computed": {"prefix": "hash", "prefix_options": {"publish": "computed", "eviction": "lfu"}},
    "radix": {"prefix": "radix"},
    "radix-partial": {"prefix": "radix", "prefix_options": {"partial_hits": True, "eviction": "fifo"}},
}
BLOCK_SIZES = (8, 16, 32, 128)


@pytest.fixture(scope="module")
def memo():
    return {config: {} for config in (FULL, WINDOWED, LATENT, MHA, MQA)}


def serve(
    config: LlamaConfig, name: str, options: dict, memo, *, num_requests=60, capacity=1280, seed=1, **driver
):
    torch.set_num_threads(1)
    weights = random_weights(config, np.random.default_rng(7))
    bytes_per_token = TensorExecutor.kv_spec(config).bytes_per_token
    kv = make_kv_cache(name, capacity_tokens=capacity, bytes_per_token=bytes_per_token, **options)
    executor = TensorExecutor(config, kv, TensorMemory(16 * MIB), weights=weights, validate=True)
    executor.pool.block.tensor.fill_(255)  # NaN everywhere: what was never written must never count
    run = Driver(executor, kv, random_requests(config, num_requests, seed), seed=seed, **driver)
    run.run()
    kv.check_integrity()
    assert run.counts["finished"] == num_requests + run.counts["forks"]
    model = Llama(config, weights)
    assert_same_tokens(executor, model, memo[config], plain_mla_attend(model) if config.mla else None)
    executor.memory.allocator.check_integrity()
    return run


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_same_tokens_contiguous(name, memo):
    run = serve(FULL, name, CONTIGUOUS[name], memo)
    assert run.counts["preemptions"] >= 5
    assert run.counts["forks"] >= 5
    if name == "grow-compact":
        assert run.kv.num_compactions > 0


@pytest.mark.parametrize("name", ["reserve-max", "grow-compact", "virtual-contiguous"])
def test_same_tokens_contiguous_sliding_window(name, memo):
    serve(WINDOWED, name, CONTIGUOUS[name], memo)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_same_tokens_paged(block_size, prefix, memo):
    run = serve(FULL, "paged", {"block_size": block_size, **PREFIXES[prefix]}, memo)
    assert run.counts["preemptions"] >= 5
    assert run.counts["forks"] >= 5
    assert (run.counts["hit_tokens"] > 0) == (prefix != "off")


@pytest.mark.parametrize("prefix", ["off", "hash", "hash-computed"])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_same_tokens_paged_sliding_window(block_size, prefix, memo):
    serve(WINDOWED, "paged", {"block_size": block_size, **PREFIXES[prefix]}, memo)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("paged", {"block_size": 8, "prefix": "hash"}),
        ("paged", {"block_size": 16, "prefix": "radix", "prefix_options": {"partial_hits": True}}),
        ("grow-compact", {"grow_tokens": 16}),
    ],
)
@pytest.mark.parametrize("config", [LATENT, MHA, MQA], ids=["mla", "mha", "mqa"])
def test_same_tokens_other_attention(config, name, options, memo):
    serve(config, name, options, memo, num_requests=30)


def test_same_tokens_checks_something(memo):
    """The control: one wrong block id, and the tokens differ."""
    config = FULL

    class Off(TensorExecutor):
        def execute(self, plan):
            for i, chunk in enumerate(plan.chunks):
                if chunk.start > 20 and len(chunk.block_table) > 1:
                    wrong = (chunk.block_table[0], *chunk.block_table[:1], *chunk.block_table[2:])
                    plan.chunks[i] = type(chunk)(
                        chunk.request_id, chunk.start, chunk.num_tokens, chunk.samples, wrong
                    )
            return super().execute(plan)

    weights = random_weights(config, np.random.default_rng(7))
    kv = make_kv_cache(
        "paged", capacity_tokens=1280, bytes_per_token=TensorExecutor.kv_spec(config).bytes_per_token
    )
    executor = Off(config, kv, TensorMemory(16 * MIB), weights=weights)
    Driver(executor, kv, random_requests(config, 10, 1), seed=1, fork_rate=0, preempt_rate=0).run()
    with pytest.raises(AssertionError, match="has other tokens"):
        assert_same_tokens(executor, Llama(config, weights), {})
