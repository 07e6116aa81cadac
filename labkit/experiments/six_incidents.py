"""Six small incidents for exercise 15: one service, one load with a lull in the middle, one thing wrong.

    recording("leak", np.random.default_rng(3))      # the numbers that an operator has afterwards

The load is the same kind each time (about 300 tokens in, 200 out, two busy stretches, and everything drains between them);
only the fault differs. What each number means stands at `FIGURES`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.experiments.proofs.scheduling import steady
from labkit.experiments.serve import STEP_COST
from labkit.kv import make_kv_cache
from labkit.kv.base import KVCacheManager
from labkit.observe.recorder import RunRecorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.progress import waiting_ids
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec

#: cause -> the figure that tells it from the others
CAUSES = {
    "leak": "kv_at_rest_growth",
    "pinned prefixes": "kv_at_rest_first",
    "fragmentation": "largest_free_while_waiting",
    "admission limit": "free_while_waiting",
    "step too large": "worst_gap_ms",
    "pool too small": "kv_peak",
}
#: shares are of the pool
FIGURES = {
    "kv_peak": "most of the pool that live requests and holders ever had",
    "kv_at_rest_first": "share still held when nobody runs, in the lull",
    "kv_at_rest_growth": "share held at the end, when nobody runs, less that in the lull",
    "mean_waiting": "requests in the queue, averaged over steps",
    "free_while_waiting": "mean free share in steps in which somebody waited (1 when nobody ever did)",
    "largest_free_while_waiting": "the longest free run over what is free, in those steps (1 in blocks, or when nobody waited)",
    "num_preemptions": "requests sent back to the queue",
    "hit_ratio": "prompt tokens found in the prefix cache",
    "worst_gap_ms": "the longest time between two tokens of one request",
    "usual_gap_ms": "its median",
}
POOL = 16_000
LULL_S = 60.0


def recording(cause: str, rng: np.random.Generator) -> dict[str, float]:
    """The figures of one incident; `cause` is one of `CAUSES`, or "healthy"."""
    if cause not in (*CAUSES, "healthy"):
        raise LabError(f"unknown cause {cause!r}; choose one of: healthy, {', '.join(CAUSES)}")
    load = _load(rng)
    pool, kv_name = POOL, "paged"
    options: dict[str, Any] = {}
    kv_options: dict[str, Any] = {"prefix": "hash"}
    if cause == "pool too small":
        pool = 4_500
    elif cause == "admission limit":
        options = {"max_num_seqs": 5}
    elif cause == "fragmentation":
        kv_name, kv_options, pool = "reserve-oracle", {}, 7_000
        load = _mixed(load, rng)
    elif cause == "step too large":
        options = {"max_num_batched_tokens": 1 << 16}
        load = _with_documents(load)
        pool = 60_000
    kv = make_kv_cache(kv_name, capacity_tokens=pool, bytes_per_token=1, **kv_options)
    holder = _Holder(kv, cause, load)
    scheduler = make_scheduler("lab", kv, max_model_len=16_384, **options)
    watch = _Watch(holder, load)
    simulate(scheduler, LinearStepCost(**STEP_COST), load, watch)
    return watch.figures(_held(kv))


def six(seed: int) -> list[tuple[str, dict[str, float]]]:
    """One incident of each cause, in an order drawn by `seed`."""
    rng = np.random.default_rng(seed)
    causes = list(CAUSES)
    return [(causes[i], recording(causes[i], rng)) for i in rng.permutation(len(causes)).tolist()]


def _load(rng: np.random.Generator) -> list[RequestSpec]:
    """Two stretches of 80 requests; half of the prompts begin with one of six prefixes of 128 tokens."""
    specs: list[RequestSpec] = []
    for part in range(2):
        start = specs[-1].arrival_s + LULL_S if specs else 0.0
        for r in steady(rng, 300, 200, 6.0, 80):
            number = len(specs)
            prefix = int(rng.integers(0, 12))
            begin = range(prefix * 1000, prefix * 1000 + 128) if prefix < 6 else range(0)
            fresh = range(10**6 + 1000 * number, 10**6 + 1000 * number + r.num_prompt_tokens - len(begin))
            specs.append(
                dataclasses.replace(
                    r,
                    request_id=f"p{part}r{number}",
                    arrival_s=start + r.arrival_s,
                    prompt_token_ids=[*begin, *fresh],
                )
            )
    return specs


def _mixed(load: list[RequestSpec], rng: np.random.Generator) -> list[RequestSpec]:
    """Very different lengths with the same sum, and no content."""
    factors = rng.choice([0.3, 0.6, 2.4], len(load), p=[0.4, 0.4, 0.2])
    return [
        dataclasses.replace(r, num_prompt_tokens=int(r.num_prompt_tokens * f), prompt_token_ids=None)
        for r, f in zip(load, factors)
    ]


def _with_documents(load: list[RequestSpec]) -> list[RequestSpec]:
    """Four prompts of 12,000 tokens among them."""
    documents = [
        RequestSpec(f"doc{i}", load[at].arrival_s, 12_000, 20, 64) for i, at in enumerate((20, 50, 100, 130))
    ]
    return sorted([*load, *documents], key=lambda r: r.arrival_s)


class _Holder:
    """What keeps memory that no request has: a leak grows with every tenth request, pins are there from the start."""

    def __init__(self, kv: KVCacheManager, cause: str, load: list[RequestSpec]):
        self.kv, self.cause, self.num = kv, cause, 0
        if cause == "pinned prefixes":
            for prefix in range(6):
                ids = list(range(prefix * 1000, prefix * 1000 + 128))
                for copy in range(14):  # each prompt's own continuation is pinned with it
                    ids_here = [
                        *ids,
                        *range(
                            2 * 10**6 + 10_000 * prefix + 100 * copy,
                            2 * 10**6 + 10_000 * prefix + 100 * copy + 96,
                        ),
                    ]
                    kv.admit(
                        f"pin{prefix}.{copy}", len(ids_here), max_tokens=len(ids_here), token_ids=ids_here
                    )

    def finished(self, num_finished: int) -> None:
        if self.cause == "leak":
            while self.num < num_finished // 5:
                self.num += 1
                self.kv.admit(f"leak{self.num}", 320, max_tokens=320)


class _Watch(RunRecorder):
    def __init__(self, holder: _Holder, load: list[RequestSpec]):
        super().__init__()
        self.holder, self.half = holder, sum(r.request_id.startswith("p0") for r in load)
        self.peak = self.at_rest = 0.0
        self.waiting: list[int] = []
        self.free: list[float] = []
        self.run: list[float] = []

    def on_step(self, scheduler: Any, plan: Any, outcome: Any, start_s: float, end_s: float) -> None:
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        kv = scheduler.kv
        self.holder.finished(self.num_finished)
        held = _held(kv)
        self.peak = max(self.peak, held)
        waiting = len(waiting_ids(scheduler))
        self.waiting.append(waiting)
        if waiting and self.num_steps % 5 == 0:
            stats = kv.stats()
            free = stats.free_bytes + stats.cached_bytes
            self.free.append(free / stats.capacity_bytes)
            self.run.append(1.0 if kv.block_size > 1 else stats.largest_free_bytes / free if free else 1.0)
        if not scheduler.has_work():
            self.at_rest = self.at_rest or held

    def figures(self, at_end: float) -> dict[str, float]:
        gaps, counts = self.gaps.weighted()
        present = counts > 0
        cumulated = np.cumsum(counts[np.argsort(gaps)])
        median = float(np.sort(gaps)[np.searchsorted(cumulated, cumulated[-1] / 2)])
        found = {
            "kv_peak": self.peak,
            "kv_at_rest_first": self.at_rest,
            "kv_at_rest_growth": at_end - self.at_rest,
            "mean_waiting": float(np.mean(self.waiting)),
            "free_while_waiting": float(np.mean(self.free)) if self.free else 1.0,
            "largest_free_while_waiting": float(np.mean(self.run)) if self.run else 1.0,
            "num_preemptions": float(self.num_preemptions),
            "hit_ratio": float(self.summary()["prefix_hit_ratio"]),
            "worst_gap_ms": 1000 * float(gaps[present].max()),
            "usual_gap_ms": 1000 * median,
        }
        return {name: round(value, 3) for name, value in found.items()}


def _held(kv: KVCacheManager) -> float:
    """Share of the pool that somebody holds."""
    stats = kv.stats()
    return stats.reserved_bytes / stats.capacity_bytes
