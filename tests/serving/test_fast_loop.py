"""The loop without plans gives the same summary as the engine loop, and counts every gap between tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.errors import InputError, LabError
from labkit.serving.engine import simulate
from labkit.serving.fast_loop import Gaps, LinearStepTime, LoadSummary, SummaryRecorder, summarize_load
from labkit.serving.systems import make_system
from labkit.workload.base import RequestSpec

COMMON = (
    "num_requests",
    "num_refused",
    "num_finished",
    "num_steps",
    "num_scheduled_tokens",
    "num_preempted",
    "end_s",
)


def load(count: int, rate: float, seed: int = 0) -> list[RequestSpec]:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    return [
        RequestSpec(f"r{i}", float(t), int(rng.integers(1, 600)), int(rng.integers(1, 200)))
        for i, t in enumerate(arrivals)
    ]


def vllm(**options: Any) -> Any:
    return make_system(
        "vllm", {"num_gpu_blocks": 120, "max_num_seqs": 16, "max_num_batched_tokens": 256, **options}
    )


@pytest.mark.parametrize("options", [{}, {"num_gpu_blocks": 60}, {"enable_prefix_caching": False}])
def test_the_same_summary_as_the_engine_loop(options: dict[str, Any]) -> None:
    requests = load(120, 20.0)
    fast = summarize_load(vllm(**options), requests)
    recorder = SummaryRecorder()
    simulate(vllm(**options), LinearStepTime(), requests, recorder)
    slow = recorder.summary
    for name in (*COMMON, "ttft", "tpot", "e2e", "num_request_steps"):
        assert getattr(fast, name) == getattr(slow, name), name
    assert fast.num_preempted > 0 or "num_gpu_blocks" not in options


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("num_gpu_blocks", [60, 900])
def test_every_token_but_the_first_has_one_gap(async_scheduling: bool, num_gpu_blocks: int) -> None:
    requests = load(150, 30.0)
    summary = summarize_load(vllm(async_scheduling=async_scheduling, num_gpu_blocks=num_gpu_blocks), requests)
    assert (summary.num_preempted > 0) == (num_gpu_blocks == 60)
    assert int(summary.gaps.counts.sum()) == sum(r.num_output_tokens - 1 for r in requests)
    # gaps of one request add up to its time from first to last token
    gap_sum = sum(
        t * (r.num_output_tokens - 1) for r, t in _tpot_by_request(async_scheduling, num_gpu_blocks, requests)
    )
    centres = Gaps.FLOOR_S * np.exp((np.arange(len(summary.gaps.counts)) + 0.5) / Gaps.BINS_PER_E)
    assert float((summary.gaps.counts * centres).sum()) == pytest.approx(gap_sum, rel=1e-3)


def _tpot_by_request(async_scheduling: bool, num_gpu_blocks: int, requests: list[RequestSpec]) -> list[Any]:
    """From the engine loop, which names requests."""
    by_id = {r.request_id: r for r in requests}
    order: list[str] = []

    class Order(SummaryRecorder):
        def on_step(self, scheduler: Any, plan: Any, outcome: Any, start_s: float, end_s: float) -> None:
            order.extend(name for name in outcome.finished if by_id[name].num_output_tokens > 1)
            super().on_step(scheduler, plan, outcome, start_s, end_s)

    recorder = Order()
    s = vllm(async_scheduling=async_scheduling, num_gpu_blocks=num_gpu_blocks)
    simulate(s, LinearStepTime(), requests, recorder)
    return [(by_id[name], t) for name, t in zip(order, recorder.summary.tpot)]


def test_nothing_is_kept_of_finished_requests() -> None:
    s = vllm()
    summary = summarize_load(s, iter(load(200, 20.0)))
    assert summary.num_finished == 200
    assert not s.requests
    assert not s.decoding.last
    assert s.pool.num_free == 119


def test_times_follow_from_the_line() -> None:
    summary = summarize_load(vllm(), [RequestSpec("a", 0.5, 10, 3)], LinearStepTime(1.0, 0.01, 0.001))
    first = 1.0 + 0.1
    second = 1.0 + 0.01 + 10 * 0.001
    third = 1.0 + 0.01 + 11 * 0.001
    assert list(summary.ttft) == pytest.approx([first])
    assert list(summary.e2e) == pytest.approx([first + second + third])
    assert list(summary.tpot) == pytest.approx([(second + third) / 2])
    assert summary.quantile("itl", 0.0) == pytest.approx(second, rel=1e-3)
    assert summary.quantile("itl", 1.0) == pytest.approx(third, rel=1e-3)


def test_arrivals_out_of_order_are_named() -> None:
    with pytest.raises(InputError, match="request b, field arrival_s: arrives at 1, before a at 2"):
        summarize_load(vllm(), [RequestSpec("a", 2.0, 3, 3), RequestSpec("b", 1.0, 3, 3)])


def test_a_scheduler_that_spins_is_stopped() -> None:
    with pytest.raises(
        LabError, match="no progress: nothing was scheduled in 1001 steps while 1 requests wait"
    ):
        summarize_load(vllm(refuse=False), [RequestSpec("a", 0.0, 5000, 3)])


def test_quantiles_of_nothing_and_of_unknown_things() -> None:
    assert np.isnan(LoadSummary().quantile("itl", 0.5))
    assert np.isnan(LoadSummary().quantile("ttft", 0.5))
    with pytest.raises(LabError, match="latency 'ttlt' is not known; choose one of: e2e, itl, tpot, ttft"):
        LoadSummary().quantile("ttlt", 0.5)


def test_refused_requests_are_counted() -> None:
    summary = summarize_load(vllm(), [RequestSpec("a", 0.0, 5000, 3), RequestSpec("b", 0.0, 5, 3)])
    assert (summary.num_requests, summary.num_refused, summary.num_finished) == (2, 1, 1)
