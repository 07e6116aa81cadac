"""Scheduling and preemption: units, headroom, budgets, and who waits for whom."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.experiments.proofs import Proof
from labkit.experiments.proofs.fragmentation import BYTES_PER_TOKEN, requests_of
from labkit.experiments.scenarios import run_scenario
from labkit.experiments.scheduling import curve_of, decide, outcome
from labkit.workload.base import RequestSpec


def reserving_runs_fewer(max_output_tokens: int) -> Proof:
    """128 tokens are really generated. Do fewer than half as many requests run at once when the maximum is set aside as when
    blocks are taken on demand?"""
    figures = run_scenario("reserve-or-not", max_output_tokens=max_output_tokens).figures
    all_, need = figures["reserving_all"]["num_running"], figures["on_demand"]["num_running"]
    return Proof(all_ < need / 2, {"reserving_all": all_, "on_demand": need})


def headroom_is_wrong(watermark: float) -> Proof:
    """Does this share left free by an admission cost at least 5 % of the throughput that the best share (0.10) reaches?"""
    rates = run_scenario("headroom-sweep", watermarks=[watermark, 0.10]).figures["output_tokens_per_s"]
    return Proof(rates[0] < 0.95 * rates[1], {"tokens_per_s": rates[0], "tokens_per_s_at_0_10": rates[1]})


def large_budget_stalls_decodes(prompt_tokens: int) -> Proof:
    """A prompt joins eight decoding requests. Is their worst gap more than five times as long with a budget of 8,192 tokens a
    step as with 512?"""
    gaps = run_scenario("chunk-budget", prompt_tokens=prompt_tokens, budgets=[512, 8192]).figures[
        "worst_itl_ms"
    ]
    return Proof(gaps["8192"] > 5 * gaps["512"], {"worst_itl_ms": gaps})


def small_ones_wait(rule: str) -> Proof:
    """A large request is blocked at the head of the queue. Does anybody small wait more than twenty steps? `rule`: "stop",
    "skip" or "ageing"."""
    figures = run_scenario("blocked-head").figures[rule]
    return Proof(figures["longest_small_wait_steps"] > 20, figures)


def large_one_starves(rule: str) -> Proof:
    """Does the large request wait more than 300 steps, while small ones keep coming?"""
    figures = run_scenario("blocked-head").figures[rule]
    return Proof(figures["large_wait_steps"] > 300, figures)


def one_chunk_is_not_enough(gate: str) -> Proof:
    """Four requests of 100,000 tokens decode, a fifth arrives. Is somebody preempted over and over (more than 30 times in 300
    steps)? `gate`: admit by "first_chunk" or by "full_prompt"."""
    figures = run_scenario("fifth-long-prompt", num_steps=300).figures[gate]
    return Proof(figures["num_preemptions"] > 30, figures)


def waits_for_ever(check: str) -> Proof:
    """Requests larger than the whole cache: does the service make no progress? `check`: "without_check", "with_check"."""
    figures = run_scenario("never-fits").figures[check]
    return Proof(figures["no_progress"], {k: figures[k] for k in ("num_waiting", "num_refused", "usage")})


def hits_a_wall_later(check: str) -> Proof:
    """The prompt fits, the answer does not: is the request preempted and retried for ever?"""
    figures = run_scenario("fits-now-not-later").figures[check]
    return Proof(figures["retries_for_ever"], {k: figures[k] for k in ("num_outputs_at_wall", "num_refused")})


def swap_is_slower(block_size: int) -> Proof:
    """A context of 256 tokens: does swapping its blocks out and in take longer than computing it again?"""
    figures = run_scenario("swap-or-recompute", block_sizes=[block_size]).figures
    swap, again = figures["swap_ms"][0], figures["recompute_ms"][0]
    return Proof(swap > again, {"swap_ms": swap, "recompute_ms": again})


def decision_moves_memory(rng: np.random.Generator, decision: str, value: str) -> Proof:
    """One decision of the scheduler is changed. Does the curve of live memory move by more than a twentieth of its mean?"""
    load = requests_of(rng, 150)
    usual, other = (
        curve_of(decide(load, options, capacity_tokens=48_000, bytes_per_token=BYTES_PER_TOKEN))
        for options in ({}, {decision: value})
    )
    distance = usual.distance(other)
    return Proof(distance > 0.05, {"moved": distance})


def no_request_limit_fits_both(rng: np.random.Generator, mixes_differ: bool) -> Proof:
    """Two backlogs on a pool of 16,000 tokens: 300 requests of 60 in, 120 out, and 60 of 100 in, 900 out. Is there no "at most
    N at once" that keeps at least 40 % of the pool in use on the first and preempts at most one request in twenty on the
    second, while one rule in tokens (prompt and maximum output set aside) does both?"""
    mixes = [steady(rng, 60, 120, 1000.0, 300), steady(rng, 100, 900, 1000.0, 60)]
    if not mixes_differ:
        mixes[1] = mixes[0]
    rules: dict[str, dict[str, Any]] = {
        f"{limit} requests": {"admission": "requests", "max_requests": limit}
        for limit in (8, 16, 32, 64, 128)
    }
    rules["tokens"] = {"admission": "tokens", "reserve": "all"}
    used, preempted = {}, {}
    for name, options in rules.items():
        runs = [outcome(name, mix, capacity_tokens=16_000, bytes_per_token=1, **options).run for mix in mixes]
        used[name] = float(runs[0].recorder.series_frame()["kv_live_bytes"].mean() / 16_000)
        preempted[name] = runs[1].summary["num_preempted_requests"] / len(mixes[1])
    fits = {name: used[name] >= 0.40 and preempted[name] <= 0.05 for name in rules}
    return Proof(
        fits["tokens"] and not any(fit for name, fit in fits.items() if name != "tokens"),
        {name: [round(used[name], 2), round(preempted[name], 2)] for name in rules},
    )


def steady(
    rng: np.random.Generator, prompt: int, output: int, rate: float, num_requests: int
) -> list[RequestSpec]:
    """Poisson arrivals; lengths within a tenth of these."""
    times = np.cumsum(rng.exponential(1 / rate, num_requests))
    prompts = rng.integers(int(0.9 * prompt), int(1.1 * prompt), num_requests)
    outputs = rng.integers(int(0.9 * output), int(1.1 * output), num_requests)
    return [
        RequestSpec(f"r{i}", float(t), int(p), int(o), int(1.1 * output))
        for i, (t, p, o) in enumerate(zip(times, prompts, outputs))
    ]
