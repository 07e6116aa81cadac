"""Prefix caches: what a hit rate counts, what is reusable at all, and what a pool that is a little too small does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.experiments.scenarios import SCENARIOS
from labkit.kv.block_pool import BlockPool
from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix import make_prefix_cache
from labkit.serving.base import Recorder, Scheduler, StepOutcome, StepPlan
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


@SCENARIOS.register("hit-rate-lies")
def hit_rate_lies(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A warm request is looked up in every step in which it cannot be admitted. Which look-ups count?"""
    size, blocks, warm_blocks = inputs["block_size"], inputs["request_blocks"], inputs["warm_blocks"]
    num_cold, num_lookups = inputs["num_cold"], inputs["num_lookups"]
    prompt = blocks * size
    # the cold ones fill the pool; the first of them, whose beginning the warm one repeats, leaves after the others' start
    kv = _CountedKVCache(num_cold * (blocks + 1) + blocks - warm_blocks - 1, size)
    scheduler = make_scheduler("lab", kv, max_num_batched_tokens=1 << 20, can_ever_fit=False)
    outputs = [num_lookups] + [num_lookups + 5] * (num_cold - 1)
    load = [_request(f"cold{i}", 0, range(i * prompt, (i + 1) * prompt), outputs[i]) for i in range(num_cold)]
    warm = [*range(warm_blocks * size), *range(-prompt + warm_blocks * size, 0)]
    load.append(_request("warm", 1, warm, 1))
    admissions = _Admissions()
    simulate(scheduler, LinearStepCost(), load, admissions, clock="step")
    num_admitted_blocks = len(load) * blocks
    return {
        "num_warm_lookups": kv.num_lookups - num_cold,
        "percent_by_lookup": 100 * kv.num_hit_tokens / (kv.num_lookups * prompt),
        "percent_by_admission": 100 * admissions.num_hit_tokens / (num_admitted_blocks * size),
    }


@SCENARIOS.register("reuse-floor")
def reuse_floor(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Only whole blocks are reused: a prefix shorter than one block, or than the common multiple of several groups'
    block sizes, is never hit."""
    reused = {}
    shared, rest = inputs["shared_tokens"], inputs["rest_tokens"]
    for size in inputs["block_sizes"]:
        reused[str(size)] = _reused(size, shared, rest)
    alignment = math.lcm(*inputs["group_block_sizes"])
    return {
        "reused_tokens": reused,
        "alignment_tokens": alignment,
        "reused_of_aligned_prefix": _reused(alignment, inputs["group_prefix_tokens"], rest),
        "reused_of_longer_prefix": _reused(alignment, alignment, rest),
    }


def _reused(block_size: int, shared: int, rest: int) -> int:
    """Tokens that a second prompt finds, when it shares the first `shared` tokens with one that has been served."""
    num_blocks = 2 * -(-(shared + rest) // block_size) + 2
    kv = PagedKVCache(num_blocks, 1, block_size=block_size, prefix=make_prefix_cache("hash", block_size))
    first, second = ([*range(shared), *range(base, base + rest)] for base in (10**6, 2 * 10**6))
    kv.admit("first", len(first), max_tokens=len(first), token_ids=first)
    kv.free("first")
    return kv.lookup(token_ids=second)


@SCENARIOS.register("lru-cliff")
def lru_cliff(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Sessions take turns in a pool that holds three of them: one session more, and the hit rate falls off a cliff."""
    return {
        order: {str(k): _round_robin(inputs, k, pool) for k in inputs["num_sessions"]}
        for order, pool in (("tail_first", BlockPool), ("head_first", _HeadFirstPool))
    }


def _round_robin(inputs: Mapping[str, Any], num_sessions: int, pool: type[BlockPool]) -> int:
    """Percent of blocks hit, the first (cold) round not counted."""
    size, each = inputs["block_size"], inputs["session_blocks"]
    prefix = make_prefix_cache("hash", size)
    kv = PagedKVCache(inputs["num_blocks"], 1, block_size=size, prefix=prefix)
    if pool is not BlockPool:
        kv.pool = pool(inputs["num_blocks"], prefix)
    num_hits = num_asked = 0
    for round_ in range(inputs["num_rounds"]):
        for session in range(num_sessions):
            keys = [(session, block) for block in range(each)]
            admission = kv.admit("turn", each * size, max_tokens=each * size, block_keys=keys)
            kv.free("turn")
            if round_:
                num_hits += admission.num_hit_tokens // size
                num_asked += each
    return round(100 * num_hits / num_asked)


class _HeadFirstPool(BlockPool):
    """Releases a table from its beginning, so that a chain loses its root before its leaves."""

    def release(self, blocks: Sequence[int]) -> int:
        return super().release(list(reversed(blocks)))


class _CountedKVCache(PagedKVCache):
    """Counts every look-up, as a metric placed in the wrong function would."""

    def __init__(self, num_blocks: int, block_size: int):
        super().__init__(num_blocks, 1, block_size=block_size, prefix=make_prefix_cache("hash", block_size))
        self.num_lookups = self.num_hit_tokens = 0

    def lookup(self, token_ids=None, block_keys=None):  # type: ignore[no-untyped-def]
        hit = super().lookup(token_ids, block_keys)
        self.num_lookups += 1
        self.num_hit_tokens += hit
        return hit


class _Admissions(Recorder):
    num_hit_tokens = 0

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        self.num_hit_tokens += sum(row.num_hit_tokens for row in plan.admitted)


def _request(request_id: str, step: int, token_ids: Sequence[int], num_output: int) -> RequestSpec:
    return RequestSpec(
        request_id, float(step), len(token_ids), num_output, num_output, prompt_token_ids=list(token_ids)
    )
