"""What one number decides: the reservation, the token budget of a step, the block size of a swap."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from labkit.experiments.scenarios import SCENARIOS
from labkit.kv.paged import PagedKVCache
from labkit.observe.recorder import RunRecorder
from labkit.serving.cost_model import CostModelExecutor, LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


@SCENARIOS.register("reserve-or-not")
def reserve_or_not(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """How many requests run at once when the maximum, a fixed share of it, or nothing beyond the real need is set aside."""
    prompt, real, asked = inputs["prompt_tokens"], inputs["output_tokens"], inputs["max_output_tokens"]
    predictions = {
        "reserving_all": asked,
        "reserving_some": inputs["reserved_output_tokens"],
        "on_demand": real,
    }
    figures = {}
    for name, output in predictions.items():
        kv = PagedKVCache(inputs["pool_tokens"], 1, block_size=1)
        scheduler = make_scheduler(
            "lab",
            kv,
            admission="tokens",
            reserve="predicted",
            predictor=lambda request, tokens=output: tokens,
            max_num_seqs=10_000,
            max_num_batched_tokens=1 << 30,
        )
        load = [RequestSpec(f"r{i}", 0.0, prompt, real, asked) for i in range(inputs["num_requests"])]
        recorder = RunRecorder()
        totals = simulate(scheduler, LinearStepCost(), load, recorder)
        figures[name] = {
            "num_running": recorder.peak_running,
            "num_preempted": totals.num_preempted,
            "num_finished": totals.num_finished,
        }
    return figures


@SCENARIOS.register("chunk-budget")
def chunk_budget(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """One long prompt joins decoding requests: a small budget spares them, a large one serves the prompt sooner."""
    figures: dict[str, dict[str, float]] = {"ttft_s": {}, "worst_itl_ms": {}}
    prompt, size = inputs["prompt_tokens"], inputs["block_size"]
    num_steps = 4 * prompt // min(inputs["budgets"]) + 10
    for budget in inputs["budgets"]:
        kv = PagedKVCache(2 * (prompt + inputs["num_decoders"] * num_steps) // size, 1, block_size=size)
        scheduler = make_scheduler("lab", kv, max_num_batched_tokens=budget)
        cost = LinearStepCost()
        decoders = [RequestSpec(f"d{i}", 0.0, 1, num_steps, num_steps) for i in range(inputs["num_decoders"])]
        simulate(scheduler, cost, decoders, max_steps=1)
        recorder = _Gaps()
        simulate(
            scheduler, cost, [RequestSpec("long", 0.0, prompt, 2, 2)], recorder, max_steps=num_steps // 2
        )
        figures["ttft_s"][str(budget)] = recorder.first_token_s
        figures["worst_itl_ms"][str(budget)] = 1000 * recorder.worst_gap_s
    return figures


class _Gaps(RunRecorder):
    """All decoding requests share their gaps here: the longest step in which they decode."""

    first_token_s = worst_gap_s = 0.0

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        if "long" in outcome.started:
            self.first_token_s = end_s
        self.worst_gap_s = max(self.worst_gap_s, end_s - start_s)


@SCENARIOS.register("swap-or-recompute")
def swap_or_recompute(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Getting a preempted request back: copy its blocks out and in, or prefill it again.

    A swap costs bytes over the bus and one launch a copy; blocks of each layer, keys and values apart, are copied one
    by one, so small blocks drown in launches. A recompute does not know blocks.
    """
    cost = CostModelExecutor(inputs["model"], inputs["gpu"])
    model, launch_s = cost.model, inputs["copy_launch_us"] * 1e-6

    def swap_s(num_tokens: int, block_size: int) -> float:
        num_copies = 2 * -(-num_tokens // block_size) * 2 * model.num_layers
        return 2 * cost.swap_s(num_tokens * cost.kv_bytes_per_token) + num_copies * launch_s

    sizes, lengths = inputs["block_sizes"], inputs["context_tokens"]
    fixed, size = inputs["fixed_context_tokens"], inputs["fixed_block_size"]
    swaps = [swap_s(fixed, b) for b in sizes]
    recompute = [cost.prefill_s(fixed) for _ in sizes]
    swap_first = [swap_s(n, size) < cost.prefill_s(n) for n in lengths]
    return {
        "swap_ms": [1000 * s for s in swaps],
        "recompute_ms": [1000 * s for s in recompute],
        "recompute_constant": len(set(recompute)) == 1,
        "swap_falls_with_block_size": swaps == sorted(swaps, reverse=True),
        "first_block_size_at_which_swap_wins": next(
            (b for b, s, r in zip(sizes, swaps, recompute) if s < r), None
        ),
        "swap_wins_at_context": dict(zip(map(str, lengths), swap_first)),
        "crossovers_in_context": sum(a != b for a, b in pairwise(swap_first)),
    }
