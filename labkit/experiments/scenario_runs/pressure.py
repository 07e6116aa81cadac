"""A full pool: what admission and headroom make of it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib import resources
from typing import Any

from labkit.experiments.scenarios import SCENARIOS
from labkit.kv.paged import PagedKVCache
from labkit.observe.recorder import RunRecorder
from labkit.serving.closed_loop import simulate_closed
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.lab import LabScheduler
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


@SCENARIOS.register("fifth-long-prompt")
def fifth_long_prompt(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Four long requests decode; a fifth is admitted by its first chunk, or by its whole prompt."""
    figures = {}
    prompt, output = inputs["prompt_tokens"], inputs["output_tokens"]
    for name, gate in (("first_chunk", "chunk"), ("full_prompt", "prompt")):
        kv = PagedKVCache(inputs["num_blocks"], 1, block_size=inputs["block_size"])
        scheduler = make_scheduler("lab", kv, gate=gate, can_ever_fit=False)
        assert isinstance(scheduler, LabScheduler)
        cost = LinearStepCost()
        residents = [
            RequestSpec(f"resident{i}", 0.0, prompt, output, output) for i in range(inputs["num_residents"])
        ]
        scheduler.batching.max_num_batched_tokens = prompt * len(residents)
        simulate(scheduler, cost, residents, max_steps=1)  # now they are resident and decode
        scheduler.batching.max_num_batched_tokens = inputs["max_num_batched_tokens"]
        recorder = _Window()
        fifth = RequestSpec("fifth", 0.0, prompt, output, output)
        totals = simulate(scheduler, cost, [fifth], recorder, max_steps=inputs["num_steps"])
        figures[name] = {
            "output_tokens_per_s": recorder.num_output_tokens / totals.end_s,
            "num_preemptions": totals.num_preempted,
            "num_recomputed_tokens": totals.num_recomputed_tokens,
        }
    return figures


class _Window(RunRecorder):
    """Counts output tokens of a window in which some requests were there before."""

    num_output_tokens = 0

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        self.num_output_tokens += plan.num_decode_requests + len(outcome.started)


@SCENARIOS.register("headroom-sweep")
def headroom_sweep(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The same closed load under six watermarks: too little preempts, too much idles."""
    figures: dict[str, Any] = {"num_preemptions": [], "output_tokens_per_s": [], "ttft_p50_s": []}
    for watermark in inputs["watermarks"]:
        kv = PagedKVCache(inputs["num_blocks"], 1, block_size=inputs["block_size"])
        scheduler = make_scheduler(
            "lab",
            kv,
            headroom=watermark,
            gate="prompt",
            max_num_batched_tokens=inputs["max_num_batched_tokens"],
            max_num_seqs=inputs["num_clients"],
        )
        recorder = RunRecorder()
        simulate_closed(scheduler, LinearStepCost(), _lengths(), inputs["num_clients"], recorder)
        summary = recorder.summary()
        figures["num_preemptions"].append(summary["num_preemptions"])
        figures["output_tokens_per_s"].append(summary["output_tokens_per_s"])
        figures["ttft_p50_s"].append(summary["ttft_s"]["p50"])
    rates = figures["output_tokens_per_s"]
    best = inputs["watermarks"][rates.index(max(rates))]
    names = [f"{w:g}".replace(".", "_") for w in inputs["watermarks"]]
    for key in ("num_preemptions", "output_tokens_per_s", "ttft_p50_s"):
        figures[f"{key}_by"] = dict(zip(names, figures[key]))
    figures["best_watermark"] = best
    figures["preemptions_fall"] = figures["num_preemptions"] == sorted(
        figures["num_preemptions"], reverse=True
    )
    figures["ttft_rises"] = figures["ttft_p50_s"][0] < figures["ttft_p50_s"][-1]
    figures["both_ends_lose"] = rates[0] < max(rates) > rates[-1]
    return figures


def _lengths() -> list[RequestSpec]:
    text = (
        resources.files("labkit")
        .joinpath("data/scenarios/headroom_sweep_lengths.csv")
        .read_text(encoding="utf-8")
    )
    return [
        RequestSpec(
            f"r{i}", 0.0, int(row["prompt_tokens"]), int(row["output_tokens"]), int(row["output_tokens"])
        )
        for i, row in enumerate(csv.DictReader(text.splitlines()))
    ]
