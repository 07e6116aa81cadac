"""Metrics: what a number hides, which limit binds, and what a restart says."""

from __future__ import annotations

import dataclasses

import numpy as np

from labkit.experiments.churn import AllocatorMemory, Churn, Holding, holdings_of
from labkit.experiments.dynamics import mean_demand
from labkit.experiments.harms import peak_demand
from labkit.experiments.proofs import Proof
from labkit.experiments.proofs.fragmentation import BYTES_PER_TOKEN, requests_of
from labkit.experiments.proofs.scheduling import steady
from labkit.experiments.scheduling import faster, outcome
from labkit.experiments.serve import serve
from labkit.kv.paged import PagedKVCache
from labkit.memory import make_allocator
from labkit.observe.recorder import RunRecorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.progress import waiting_ids
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


def mean_hides_the_stall(budget: int) -> Proof:
    """One request of 200 tokens decodes when a prompt of 16,384 joins. Is its worst gap more than eight times its mean time
    per output token?"""
    kv = PagedKVCache(4096, 1, block_size=16)
    recorder = RunRecorder()
    load = [RequestSpec("decodes", 0.0, 16, 200, 200), RequestSpec("long", 1.0, 16_384, 2, 2)]
    simulate(make_scheduler("lab", kv, max_num_batched_tokens=budget), LinearStepCost(), load, recorder)
    tpot = recorder.requests["decodes"].tpot_s or 0.0
    gaps, counts = recorder.gaps.weighted()
    worst = float(gaps[counts > 0].max())
    return Proof(worst > 8 * tpot, {"tpot_ms": 1000 * tpot, "worst_gap_ms": 1000 * worst})


def busy_is_not_good(rng: np.random.Generator, factor: float) -> Proof:
    """The same 500 requests (200 in, 200 out) arrive `factor` times as fast as ten a second. Does throughput hold (at least
    95 % of what it was) while goodput falls to less than half?"""
    load = steady(rng, 200, 200, 10.0, 500)
    rows = []
    for speed in (1.0, factor):
        row = outcome("", faster(load, speed), capacity_tokens=16_000, bytes_per_token=1)
        rows.append((row.run.summary["output_tokens_per_s"], row.goodput))
    (tokens, good), (tokens_now, good_now) = rows
    return Proof(
        tokens_now >= 0.95 * tokens and good_now < 0.5 * good,
        {"tokens_per_s": [tokens, tokens_now], "goodput": [good, good_now]},
    )


def memory_binds(capacity_tokens: int, max_num_seqs: int) -> Proof:
    """Requests wait. Is memory the limit that binds, so that more of it would help?"""
    load = [RequestSpec(f"r{i}", 0.0, 500, 100, 100) for i in range(20)]
    run = serve(
        "paged",
        load,
        capacity_tokens=capacity_tokens,
        bytes_per_token=1,
        max_steps=20,
        max_num_seqs=max_num_seqs,
    )
    head = run.scheduler.why_waiting(waiting_ids(run.scheduler)[0])
    return Proof(head.limit == "blocks", {"limit": head.limit, "sentence": head.sentence})


@dataclasses.dataclass(frozen=True)
class Restarted:
    """Share of requests refused before and after a restart with the same memory and the same load, and the share of memory
    that nobody's request held just before it."""

    refused_before: float
    refused_after: float
    left_behind: float


def restart(rng: np.random.Generator, cause: str, num_requests: int = 1200) -> Restarted:
    """Half of the load runs, its last 200 requests are watched; then a fresh memory gets those 200 again.

    `cause`: "left behind" (of those before the watched 200, one request in ten is never freed, sized so that all of these
    would leave 0.3 of the mean demand), or "too much load" (memory is 0.7 of the mean demand).
    """
    holdings = holdings_of(
        requests_of(rng, num_requests), bytes_per_token=BYTES_PER_TOKEN, seconds_per_token=0.03
    )
    peak, mean = peak_demand(holdings), mean_demand(holdings)
    half = len(holdings) // 2
    watched = half - 200
    if cause == "left behind":
        capacity = int(1.3 * peak)
        never = 10 * holdings[-1].arrival_s
        size = int((capacity - 0.3 * mean) / (watched // 10))
        load = [
            Holding(h.arrival_s, never, size, "session") if i % 10 == 9 and i < watched else h
            for i, h in enumerate(holdings)
        ]
    else:
        capacity, load = int(0.7 * mean), holdings
    before = Churn(_contiguous(capacity), on_failure="drop")
    before.feed(load[:watched])
    already = before.run.num_dropped
    before.feed(load[watched:half])
    left = sum(span.size for span in before.memory.layout() if span.lifetime == "session")
    fresh = Churn(_contiguous(capacity), on_failure="drop").feed(load[watched:half])
    return Restarted((before.run.num_dropped - already) / 200, fresh.num_dropped / 200, left / capacity)


def restart_heals(rng: np.random.Generator, cause: str) -> Proof:
    """A service refuses more than one request in twenty. Does a restart with the same memory and the same load cut that to
    less than a third?"""
    found = restart(rng, cause)
    return Proof(
        found.refused_before > 0.05 and found.refused_after < found.refused_before / 3,
        dataclasses.asdict(found),
    )


def _contiguous(capacity: int) -> AllocatorMemory:
    return AllocatorMemory(make_allocator("first-fit", capacity))
