"""Prefix caches: what a hit is, who keeps blocks, and who has to give way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.experiments.dynamics import freed_with_shared_prefix
from labkit.experiments.proofs import Proof
from labkit.experiments.scenarios import run_scenario
from labkit.kv import make_kv_cache
from labkit.kv.mutants import run_stream
from labkit.observe.recorder import RunRecorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


def last_token_is_computed(same_prompt: bool, block_size: int = 16, num_blocks: int = 10) -> Proof:
    """A prompt of ten full blocks was served. Is less than all of it found by the next one? `same_prompt`: it is the same
    again; otherwise it goes on by one token."""
    prompt = list(range(num_blocks * block_size))
    kv = make_kv_cache("paged", capacity_tokens=4096, bytes_per_token=1, block_size=block_size, prefix="hash")
    kv.admit("first", len(prompt), max_tokens=len(prompt), token_ids=prompt)
    kv.free("first")
    found = kv.lookup(prompt if same_prompt else [*prompt, -1])
    return Proof(found < len(prompt), {"prompt_tokens": len(prompt), "hit_tokens": found})


def bug_breaks_a_law(bug: str) -> Proof:
    """Does a law of the pool (free + evictable + pinned = total, counts equal tables) break under random operations?
    "cache fills up" is no bug: the free list is short and nothing is pinned."""
    report = run_stream(bug, 0, 300)
    return Proof(report.caught, {"law": report.law[:120], "operations": report.num_operations})


def whole_blocks_only(block_size: int) -> Proof:
    """Two prompts share their first 240 tokens. Is any of it reused?"""
    reused = run_scenario("reuse-floor", block_sizes=[block_size]).figures["reused_tokens"][str(block_size)]
    return Proof(reused > 0, {"reused_tokens": reused})


def one_session_too_many(num_sessions: int) -> Proof:
    """Sessions take turns in a pool that holds three. Is less than half of what could be hit hit?"""
    percent = run_scenario("lru-cliff", num_sessions=[num_sessions]).figures["tail_first"][str(num_sessions)]
    return Proof(percent < 50, {"hit_percent": percent})


def tail_first_saves(num_sessions: int) -> Proof:
    """Does freeing a chain from its end leave more hits than freeing it from its beginning?"""
    figures = run_scenario("lru-cliff", num_sessions=[num_sessions]).figures
    tail, head = figures["tail_first"][str(num_sessions)], figures["head_first"][str(num_sessions)]
    return Proof(tail > head, {"tail_first_percent": tail, "head_first_percent": head})


def lookups_inflate(num_lookups: int) -> Proof:
    """One warm request is looked up `num_lookups` times before it is admitted. Does a hit rate over look-ups say more than
    twice what admissions say?"""
    figures = run_scenario("hit-rate-lies", num_lookups=num_lookups).figures
    by_lookup, by_admission = figures["percent_by_lookup"], figures["percent_by_admission"]
    return Proof(by_lookup > 2 * by_admission, {"by_lookup": by_lookup, "by_admission": by_admission})


def shared_blocks_stay(shared: bool) -> Proof:
    """A request ends. Are blocks that it gave back still out of reach?"""
    found = freed_with_shared_prefix(shared=shared)
    return Proof(found.held_back(), {"given_back": found.freed, "usable": found.usable})


def free_list_is_short(prefix: str) -> Proof:
    """All requests have ended and nothing leaks. Is the free list still short (and what is missing evictable)?"""
    kv = make_kv_cache("paged", capacity_tokens=1024, bytes_per_token=1, block_size=16, prefix=prefix)
    for number in range(4):
        tokens = list(range(1000 * number, 1000 * number + 160))
        kv.admit("r", 160, max_tokens=160, token_ids=tokens)
        kv.free("r")
    kv.check_integrity()
    missing = kv.num_total_blocks - kv.num_free_blocks
    return Proof(
        0 < missing == kv.num_evictable_blocks and kv.stats().reserved_bytes == 0,
        {"total": kv.num_total_blocks, "free": kv.num_free_blocks, "evictable": kv.num_evictable_blocks},
    )


# --- pinned prefixes: hits for some, less room for all ---------------------------------------------------------------------

PREFIX_TOKENS, BLOCK = 512, 16


@dataclass(frozen=True)
class Pinned:
    """One run with `num_pinned` of the prefixes held for good."""

    num_pinned: int
    hit_ratio: float
    num_preempted: int
    num_lost_tokens: int
    goodput: float
    peak_private_blocks: int
    private_blocks: int


def serve_with_pinned(
    rng: np.random.Generator,
    num_pinned: int,
    capacity_tokens: int,
    *,
    num_prefixes: int = 24,
    num_requests: int = 600,
    rate: float = 8.0,
) -> Pinned:
    """Requests with one of `num_prefixes` system prompts (512 tokens, the popular ones far more often), a question of their
    own (about 60 tokens) and an answer (about 200). The first `num_pinned` prompts are kept by a reference that nobody
    gives up; the rest are cached and may be evicted. A request counts for goodput when its first token came within 2 s and
    the others within 60 ms each. A queue needs time to build up: with 240 requests (half a minute) one seed in forty saw
    next to nothing of it."""
    weights = 1 / np.arange(1, num_prefixes + 1)
    which = rng.choice(num_prefixes, num_requests, p=weights / weights.sum())
    arrivals = np.cumsum(rng.exponential(1 / rate, num_requests))
    questions, answers = rng.integers(20, 100, num_requests), rng.integers(50, 350, num_requests)
    prefix = [list(range(i * 10_000, i * 10_000 + PREFIX_TOKENS)) for i in range(num_prefixes)]
    load, at = [], 10_000_000
    for i in range(num_requests):
        own = list(range(at, at + int(questions[i])))
        at += len(own)
        ids = prefix[which[i]] + own
        load.append(RequestSpec(f"r{i}", float(arrivals[i]), len(ids), int(answers[i]), 350, ids))
    kv = make_kv_cache(
        "paged", capacity_tokens=capacity_tokens, bytes_per_token=1, block_size=BLOCK, prefix="hash"
    )
    for i in range(num_pinned):
        kv.admit(f"pin{i}", PREFIX_TOKENS, max_tokens=PREFIX_TOKENS, token_ids=prefix[i])
    scheduler = make_scheduler("lab", kv, max_model_len=1024)
    recorder = _Peak()
    totals = simulate(scheduler, LinearStepCost(), load, recorder)
    done = [r for r in recorder.requests.values() if r.finish_s is not None]
    good = [r for r in done if (r.ttft_s or 0) <= 2.0 and (r.tpot_s or 0) <= 0.060]
    pinned = num_pinned * PREFIX_TOKENS // BLOCK
    return Pinned(
        num_pinned,
        recorder.summary()["prefix_hit_ratio"],
        totals.num_preempted,
        totals.num_recomputed_tokens,
        len(good) / totals.end_s,
        recorder.peak_blocks - pinned,
        capacity_tokens // BLOCK - pinned,
    )


class _Peak(RunRecorder):
    """Most blocks held at once."""

    peak_blocks = 0

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        kv = scheduler.kv
        held = kv.num_total_blocks - kv.num_free_blocks - kv.num_evictable_blocks
        self.peak_blocks = max(self.peak_blocks, held)


def more_hits_less_room(rng: np.random.Generator, capacity_tokens: int) -> Proof:
    """Pinning 16 of 24 system prompts raises the hit rate. Do at least twice as many requests get preempted, and does
    goodput fall by a tenth or more?"""
    seed = int(rng.integers(1 << 30))
    none, many = (serve_with_pinned(np.random.default_rng(seed), n, capacity_tokens) for n in (0, 16))
    return Proof(
        many.hit_ratio > none.hit_ratio
        and many.num_preempted > 2 * none.num_preempted
        and many.goodput < 0.9 * none.goodput,
        {
            "hit_ratio": [none.hit_ratio, many.hit_ratio],
            "preempted": [none.num_preempted, many.num_preempted],
            "goodput": [none.goodput, many.goodput],
        },
    )
