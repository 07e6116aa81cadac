"""The table of waiting requests, for the lab's scheduler and for the models of real systems."""

from __future__ import annotations

import pytest

from labkit.experiments.waiting_table import COLUMNS, waiting_table
from labkit.kv import make_kv_cache
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec

SCHEDULERS = {
    "lab": lambda: make_scheduler("lab", make_kv_cache("paged", capacity_tokens=320, bytes_per_token=1)),
    "vllm": lambda: make_scheduler("vllm", num_gpu_blocks=21),
    "tensorrt_llm": lambda: make_scheduler("tensorrt_llm", num_blocks=20, tokens_per_block=16),
    "sglang": lambda: make_scheduler("sglang", max_total_tokens=320),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_row_for_each_who_waits(name):
    scheduler = SCHEDULERS[name]()
    assert waiting_table(scheduler).empty
    load = [RequestSpec(f"r{i}", 0.0, 150, 40, 40) for i in range(5)]
    simulate(scheduler, LinearStepCost(), load, clock="step", max_steps=5)
    table = waiting_table(scheduler)
    assert list(table.columns) == list(COLUMNS)
    assert table["request_id"].tolist() in (["r1", "r2", "r3", "r4"], ["r2", "r3", "r4"])
    assert table["can_ever_fit"].all()
    assert (table["sentence"].str.len() > 20).all()
    assert len(waiting_table(scheduler, max_rows=2)) == 2
