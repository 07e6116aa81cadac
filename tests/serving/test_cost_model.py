"""The roofline: which term binds when, and that facts go in where they should."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.kv.base import Move
from labkit.models import get_gpu, get_model
from labkit.serving.base import StepPlan
from labkit.serving.cost_model import CostConstants, CostModelExecutor, LinearStepCost

BARE = CostConstants(mfu=1.0, bandwidth_efficiency=1.0, launch_s=0.0)


def decode(batch: int, context: int) -> StepPlan:
    return StepPlan(
        0,
        num_scheduled_tokens=batch,
        num_decode_requests=batch,
        num_running=batch,
        num_kv_tokens_read=batch * context,
    )


def test_one_decode_step_reads_the_weights_once():
    model, gpu = get_model("Llama-3.1-8B"), get_gpu("A100-80GB")
    cost = CostModelExecutor(model, gpu, BARE)
    seconds = cost.execute(decode(1, 0)).duration_s
    assert seconds == pytest.approx(model.weight_bytes() / gpu.bandwidth_bytes_s, rel=1e-3)
    assert cost.execute(decode(16, 0)).duration_s == pytest.approx(seconds, rel=1e-3), (
        "a batch reads them once too"
    )


def test_kv_bytes_of_the_batch_are_read():
    cost = CostModelExecutor("Llama-3.1-8B", "A100-80GB", BARE)
    grown = cost.execute(decode(16, 4096)).duration_s - cost.execute(decode(16, 0)).duration_s
    assert grown == pytest.approx(16 * 4096 * 131_072 / get_gpu("A100-80GB").bandwidth_bytes_s, rel=1e-6)


def test_prefill_is_bound_by_compute():
    model, gpu = get_model("Llama-3.1-8B"), get_gpu("A100-80GB")
    cost = CostModelExecutor(model, gpu, BARE)
    linear = 2048 * model.linear_flops_per_token / gpu.flops_16bit
    attention = 2048 * 2049 / 2 * model.attention_flops_per_pair / gpu.flops_16bit
    assert cost.prefill_s(2048) == pytest.approx(linear + attention, rel=1e-6)
    assert cost.prefill_s(4096) > 2 * cost.prefill_s(2048), "attention grows with the square"


def test_a_chunk_late_in_a_prompt_costs_more():
    cost = CostModelExecutor("Llama-3.1-8B", "A100-80GB", BARE)

    def chunk(start: int, n: int) -> float:
        pairs = n * start + n * (n + 1) // 2
        plan = StepPlan(0, n, n, num_running=1, num_kv_tokens_read=start, num_prefill_pairs=pairs)
        return cost.execute(plan).duration_s

    assert chunk(30_000, 2048) > 1.5 * chunk(0, 2048)
    whole, parts = cost.prefill_s(4096), chunk(0, 2048) + chunk(2048, 2048)
    assert whole == pytest.approx(parts, rel=1e-6), "cut prompts compute as many pairs"


def test_swaps_moves_and_launches():
    cost = CostModelExecutor("Llama-3.1-8B", "A100-80GB", CostConstants(host_bytes_s=25e9))
    idle = cost.execute(StepPlan(0)).duration_s
    assert idle == CostConstants().launch_s
    assert cost.execute(StepPlan(0, swapped_bytes=25 * 10**8)).duration_s == pytest.approx(idle + 0.1)
    moved = cost.execute(StepPlan(0, moves=[Move(0, 100, 1000)])).duration_s - idle
    bandwidth = get_gpu("A100-80GB").bandwidth_bytes_s * CostConstants().bandwidth_efficiency
    assert moved == pytest.approx(2 * 1000 * 131_072 / bandwidth), "read and written"


def test_a_faster_gpu_is_faster_and_names_are_checked():
    slow, fast = (
        CostModelExecutor("Llama-3.1-8B", gpu).execute(decode(8, 1000)) for gpu in ("A100-80GB", "H100-80GB")
    )
    assert fast.duration_s < slow.duration_s
    with pytest.raises(LabError, match="unknown GPU 'A101'"):
        CostModelExecutor("Llama-3.1-8B", "A101")
    with pytest.raises(LabError, match="mfu=0 is not a positive number"):
        CostConstants(mfu=0)


def test_linear_cost_is_a_line():
    plan = StepPlan(0, num_scheduled_tokens=100, num_kv_tokens_read=10**6)
    assert LinearStepCost(8, 0.03, 2).execute(plan).duration_s == pytest.approx(0.008 + 0.003 + 0.002)
