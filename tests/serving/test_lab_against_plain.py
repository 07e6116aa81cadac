"""The shipped scheduler touches a decoding request only when its block is full; the plain one touches all. Both decide
alike, step for step, on random loads in small pools."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.kv.paged import PagedKVCache
from labkit.serving.base import StepResult
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec
from tests.reference.lab_plain import PlainScheduler


def compare(seed: int, block_size: int, num_blocks: int, budget: int, headroom: float, gate: str) -> int:
    """Runs both to the end; returns the number of preemptions."""
    rng = np.random.default_rng(seed)
    capacity = num_blocks * block_size
    arrivals = np.sort(rng.integers(0, 60, 40))
    load = []
    for i in range(40):
        prompt = int(rng.integers(1, capacity if rng.random() < 0.1 else capacity // 2))
        output = int(rng.integers(1, min(40, capacity - prompt) + 1))
        load.append((int(arrivals[i]), RequestSpec(f"r{i}", 0.0, prompt, output, max_output_tokens=output)))
    kv = PagedKVCache(num_blocks, 1, block_size=block_size)
    shipped = make_scheduler(
        "lab",
        kv,
        headroom=headroom,
        gate=gate,
        max_num_batched_tokens=budget,
        max_num_seqs=8,
        record_chunks=True,
    )
    plain = PlainScheduler(num_blocks, block_size, budget, 8, headroom, gate)
    preemptions, step, coming = 0, 0, 0
    while coming < len(load) or shipped.has_work():
        while coming < len(load) and load[coming][0] <= step:
            assert shipped.add(load[coming][1]) is None
            plain.add(load[coming][1])
            coming += 1
        plan = shipped.schedule()
        chunks = [(c.request_id, c.start, c.num_tokens) for c in plan.chunks]
        outcome = shipped.update(plan, StepResult(1.0))
        shipped.check_integrity()
        decided = {
            "scheduled": chunks,
            "preempted": [(r.request_id, r.num_blocks, r.num_computed_tokens) for r in plan.preempted],
            "admitted": [row.request_id for row in plan.admitted],
            "finished": sorted(outcome.finished),
            "free": kv.num_free_blocks,
        }
        assert decided == plain.step(), f"step {step}"
        preemptions += len(plan.preempted)
        step += 1
        if step > 5000:
            assert gate == "chunk", "only admission by the first chunk may run in circles"
            break
    return preemptions


SPACE = {
    "seed": st.integers(0, 10**6),
    "block_size": st.sampled_from([1, 2, 5, 16]),
    "num_blocks": st.integers(12, 60),
    "budget": st.integers(8, 80),
    "headroom": st.sampled_from([0.0, 0.1, 0.3]),
    "gate": st.sampled_from(["prompt", "prompt", "chunk"]),
}


@settings(derandomize=True, max_examples=60, deadline=None)
@given(**SPACE)
def test_same_decisions_in_every_step(seed, block_size, num_blocks, budget, headroom, gate):
    compare(seed, block_size, num_blocks, budget, headroom, gate)


@pytest.mark.fuzz
@settings(derandomize=True, max_examples=3000, deadline=None)
@given(**SPACE)
def test_same_decisions_in_every_step_long(seed, block_size, num_blocks, budget, headroom, gate):
    compare(seed, block_size, num_blocks, budget, headroom, gate)


def test_the_loads_preempt():
    """Without preemptions the comparison would say little."""
    assert sum(compare(seed, 5, 20, 32, 0.0, "prompt") for seed in range(5)) > 20
