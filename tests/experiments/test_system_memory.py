"""What is read from a real system's model obeys the same conservation laws as the lab's own caches."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.experiments.system_memory import kv_memory
from labkit.kv import make_kv_cache
from labkit.serving.base import Recorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec

BLOCKS, SIZE = 60, 16
SCHEDULERS = {
    "lab": lambda: make_scheduler(
        "lab", make_kv_cache("paged", capacity_tokens=BLOCKS * SIZE, bytes_per_token=2)
    ),
    "vllm": lambda: make_scheduler("vllm", num_gpu_blocks=BLOCKS + 1, block_size=SIZE),
    "tensorrt_llm": lambda: make_scheduler("tensorrt_llm", num_blocks=BLOCKS, tokens_per_block=SIZE),
    "sglang": lambda: make_scheduler("sglang", max_total_tokens=BLOCKS * SIZE),
}


class Looks(Recorder):
    def __init__(self):
        self.rows = []

    def on_step(self, scheduler, plan, outcome, start_s, end_s):
        self.rows.append(kv_memory(scheduler, 2))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_conservation_at_every_step(name):
    rng = np.random.default_rng(0)
    load = []
    for i in range(60):
        output = int(rng.integers(2, 60))
        load.append(RequestSpec(f"r{i}", float(i), int(rng.integers(5, 200)), output, output))
    looks = Looks()
    simulate(SCHEDULERS[name](), LinearStepCost(), load, looks, clock="step")
    for stats in looks.rows:
        assert stats.capacity_bytes == BLOCKS * SIZE * 2
        assert stats.reserved_bytes + stats.cached_bytes + stats.free_bytes == stats.capacity_bytes
        assert 0 <= stats.token_bytes <= stats.reserved_bytes
    assert max(s.reserved_bytes for s in looks.rows) > 0.6 * BLOCKS * SIZE * 2
    assert looks.rows[-1].reserved_bytes == 0


def test_vllm_and_lab_see_the_same_waste_on_the_same_decisions():
    load = [RequestSpec(f"r{i}", float(3 * i), 37, 20, 20) for i in range(40)]
    seen = {}
    for name in ("lab", "vllm"):
        looks = Looks()
        simulate(SCHEDULERS[name](), LinearStepCost(), load, looks, clock="step")
        seen[name] = [(s.reserved_bytes, s.token_bytes) for s in looks.rows]
    assert seen["lab"] == seen["vllm"]


def test_unknown_systems_show_nothing():
    class Silent:
        name = "silent"

    assert kv_memory(Silent(), 2) is None
