"""The tensor run's memory: the ledger has all seven kinds, the map tiles the arena, quantised caches stay close, and
wrong plans are refused in one sentence."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch

from labkit.errors import LabError
from labkit.kv import make_kv_cache
from labkit.memory import OutOfMemory
from labkit.serving.base import Chunk, StepPlan
from labkit.serving.llama import Llama, plain_logits, random_weights
from labkit.serving.llama_config import LlamaConfig
from labkit.serving.step_batch import StepBatch
from labkit.serving.tensor_executor import TensorExecutor
from labkit.serving.tensor_memory import KINDS, TensorMemory
from labkit.serving.weights_in_memory import weight_bytes
from labkit.units import MIB

CONFIG = LlamaConfig(
    vocab_size=96,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=96,
    max_model_len=256,
)


def build(kv_dtype=None, dtype=torch.float32, memory=None, **options):
    spec = TensorExecutor.kv_spec(CONFIG, dtype, kv_dtype)
    kv = make_kv_cache(
        "paged", capacity_tokens=512, bytes_per_token=spec.bytes_per_token, block_size=8, **options
    )
    executor = TensorExecutor(
        CONFIG,
        kv,
        memory or TensorMemory(8 * MIB),
        weights=random_weights(CONFIG, np.random.default_rng(3), dtype),
        kv_dtype=kv_dtype,
        max_num_batched_tokens=128,
        validate=True,
    )
    return executor, kv


def prefill(executor, kv, name, prompt):
    executor.add_prompt(name, prompt)
    kv.admit(name, len(prompt), max_tokens=200)
    executor.execute(StepPlan(0, chunks=[Chunk(name, 0, len(prompt), True, kv.block_table(name))]))


def decode(executor, kv, name):
    kv.append(name)
    stop = kv.num_tokens(name)
    return executor.execute(StepPlan(0, chunks=[Chunk(name, stop - 1, 1, True, kv.block_table(name))]))


def test_the_ledger_of_a_real_run_has_all_seven_kinds():
    executor, kv = build()
    memory = executor.memory
    steady = dict(memory.live_bytes)
    prefill(executor, kv, "a", list(range(40)))
    decode(executor, kv, "a")
    assert memory.live_bytes == steady, "what a step takes it gives back"
    peak = memory.ledger(peak=True)
    assert set(peak) == {*KINDS, "allocator"}
    assert all(value > 0 for value in peak.values()), peak
    assert peak["weights"] == weight_bytes(executor.model.weights)
    assert peak["kv_cache"] == kv.stats().capacity_bytes
    assert peak["communication"] == 128 * CONFIG.hidden_size * 4
    assert peak["activations"] == 40 * CONFIG.hidden_size * 4
    assert peak["workspace"] == 40 * (CONFIG.q_size + 2 * CONFIG.kv_size) * 4, "the widest product"
    stats = memory.allocator.stats()
    assert sum(memory.ledger().values()) == stats.reserved_bytes
    memory.allocator.check_integrity()


def test_the_map_tiles_the_arena_and_shows_blocks_inside_the_pool():
    executor, kv = build()
    prefill(executor, kv, "a", list(range(20)))
    spans = executor.layout()
    end = 0
    for span in spans:
        assert span.offset == end
        end = span.end
    assert end == executor.memory.allocator.capacity_bytes
    blocks = [span for span in spans if span.tag == "a"]
    assert len(blocks) == 3
    assert sum(span.requested for span in blocks) == 20 * kv.bytes_per_token


def test_keys_really_lie_where_the_table_says():
    executor, kv = build()
    prefill(executor, kv, "other", [1, 2, 3])
    prefill(executor, kv, "a", list(range(20)))
    before = executor.pool.k_cache[1].clone()
    block = kv.block_table("a")[2]
    executor.pool.k_cache[1][block] += 1.0
    arena = executor.memory.arena.buffer
    pool = executor.pool.block.allocation
    assert executor.pool.k_cache[1].untyped_storage().data_ptr() == arena.untyped_storage().data_ptr()
    assert pool.offset <= executor.pool.k_cache[1][block].storage_offset() * 4 < pool.offset + pool.size
    changed = (executor.pool.k_cache[1] != before).any(-1).any(-1).nonzero()[:, 0].unique().tolist()
    assert changed == [block]


@pytest.mark.parametrize(("kv_dtype", "bound"), [("int8", 2e-2), ("fp8", 6e-2)])
def test_quantised_caches_stay_close(kv_dtype, bound):
    """Norm-wise error of the first layer's attention output, the same q, k and v read back from the cache."""
    outputs = []
    for dtype in (None, kv_dtype):
        executor, kv = build(dtype)
        prefill(executor, kv, "a", [5] * 3)
        kv.append("a", 60)
        rng = torch.Generator().manual_seed(0)
        shape = (60, CONFIG.num_heads + 2 * CONFIG.num_kv_heads, CONFIG.head_dim)
        q, k, v = torch.randn(shape, generator=rng).split((CONFIG.num_heads, *[CONFIG.num_kv_heads] * 2), 1)
        with ExitStack() as step:
            chunk = Chunk("a", 3, 60, False, kv.block_table("a"))
            batch = StepBatch([chunk], lambda _: [0] * 63, executor.pool, executor.memory, step)
            outputs.append(
                batch.attend(0, q, k.contiguous(), v.contiguous(), 32**-0.5, validate=True).clone()
            )
    exact, quantised = outputs
    error = float((exact - quantised).norm() / exact.norm())
    assert 0 < error < bound


def test_half_precision_models_run():
    executor, kv = build(dtype=torch.bfloat16)
    prefill(executor, kv, "a", list(range(30)))
    for _ in range(4):
        decode(executor, kv, "a")
    known = executor.known_ids["a"]
    exact = plain_logits(
        Llama(CONFIG, random_weights(CONFIG, np.random.default_rng(3), torch.bfloat16)), known
    )
    assert known[30] == int(exact[29].argmax())


def test_forced_outputs_are_followed():
    executor, kv = build()
    executor.forced = {"a": [11, 12, 13]}
    prefill(executor, kv, "a", [1, 2, 3])
    assert decode(executor, kv, "a").tokens == {"a": 12}
    assert executor.outputs("a") == [11, 12]


def test_wrong_plans_are_one_sentence():
    executor, kv = build()
    executor.add_prompt("a", [1, 2, 3, 4])
    kv.admit("a", 4, max_tokens=20)
    table = tuple(kv.block_table("a"))
    for chunks, says in (
        (None, "build the scheduler with record_chunks=True"),
        ([Chunk("z", 0, 1, True, table)], "request z has no prompt here"),
        ([Chunk("a", 0, 5, True, table)], "the step computes position 4 and 4 are known"),
        ([Chunk("a", 0, 3, True, table)], "computes the last known token (3), not 2"),
        ([Chunk("a", 0, 4, True, ())], "its block table has 0 blocks of 8"),
        ([Chunk("a", 0, 4, True, (999,))], "block id 999"),
        ([Chunk("a", 0, 200, False, table)], "max_num_batched_tokens is 128"),
    ):
        with pytest.raises(LabError) as caught:
            executor.execute(StepPlan(0, chunks=chunks))
        assert says in str(caught.value) or "out of range" in str(caught.value)
        assert "\n" not in str(caught.value)
    for call, says in (
        (lambda: executor.add_prompt("b", [96]), "request b: token 0 is 96; the vocabulary has 96"),
        (lambda: executor.add_prompt("b", []), "request b has an empty prompt"),
        (
            lambda: TensorExecutor.kv_spec(CONFIG, torch.float32, "bf16"),
            "KV dtype bf16 does not go with a fp32 model",
        ),
        (lambda: TensorExecutor(CONFIG, kv, executor.memory), "give either rng"),
        (lambda: executor.memory.new("heap", (1,), torch.float32), "unknown kind of memory 'heap'"),
    ):
        with pytest.raises(LabError) as caught:
            call()
        assert says in str(caught.value)


def test_swaps_are_refused_not_ignored():
    executor, _ = build()
    with pytest.raises(LabError, match="TensorExecutor does not swap"):
        executor.execute(StepPlan(0, chunks=[], swapped_bytes=1024))


def test_a_manager_that_counts_other_bytes_is_refused():
    kv = make_kv_cache("paged", capacity_tokens=64, bytes_per_token=100)
    with pytest.raises(LabError, match="counts 100 bytes a token and the model's cache has 1024"):
        TensorExecutor(CONFIG, kv, TensorMemory(MIB), rng=np.random.default_rng(0))


def test_an_arena_that_is_too_small_says_so():
    with pytest.raises(OutOfMemory, match="out of memory"):
        build(memory=TensorMemory(256 * 1024))
