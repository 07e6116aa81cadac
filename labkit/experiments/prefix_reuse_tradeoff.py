"""Section 9.5: hit share, memory held and reclaim as one curve, by eviction policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from labkit.experiments.prefix_reuse import hit_share, run_cached
from labkit.kv.paged import PagedKVCache
from labkit.observe.recorder import RunRecorder
from labkit.workload.base import RequestSpec

#: what the eviction policies of claim 9.5 are called in the figures -> name, seconds that a short prompt stays dear
POLICIES: dict[str, tuple[str, float | None]] = {
    "LRU": ("lru", None),
    "LFU": ("lfu", None),
    "FIFO": ("fifo", None),
    "priority, 120 s": ("priority", 120.0),
}


class HeldRecorder(RunRecorder):
    """Mean over time of the memory that is not free (live and cached), and of the live part alone. Bytes."""

    def __init__(self, every: int = 4):
        super().__init__()
        self.every, self._since_s, self._held, self._live, self._time_s = every, 0.0, 0.0, 0.0, 0.0

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        if self.num_steps % self.every:
            return
        stats = scheduler.kv.stats()
        lasted, self._since_s = end_s - self._since_s, end_s
        self._time_s += lasted
        self._live += lasted * stats.reserved_bytes
        self._held += lasted * (stats.reserved_bytes + stats.cached_bytes)

    @property
    def held_bytes(self) -> float:
        return self._held / self._time_s if self._time_s else 0.0

    @property
    def live_bytes(self) -> float:
        return self._live / self._time_s if self._time_s else 0.0


@dataclass(frozen=True)
class TradePoint:
    """One pool size under one policy. `reclaimed_blocks` were evicted, a thousand prompt tokens; bytes are means over time."""

    policy: str
    capacity_tokens: int
    hit_share: float
    held_bytes: float
    live_bytes: float
    reclaimed_blocks: float
    num_preempted: int


def trade_off(
    requests: Sequence[RequestSpec],
    *,
    capacities: Sequence[int],
    policies: Sequence[str] = tuple(POLICIES),
    block_size: int = 128,
) -> dict[str, list[TradePoint]]:
    """Hit share, memory held and reclaim at every pool size in `capacities` (tokens), under each policy."""
    return {
        policy: [trade_point(requests, policy, capacity, block_size=block_size) for capacity in capacities]
        for policy in policies
    }


def trade_point(
    requests: Sequence[RequestSpec], policy: str, capacity_tokens: int, *, block_size: int = 128
) -> TradePoint:
    """One point of the curve."""
    eviction, ttl_s = POLICIES[policy]
    recorder = HeldRecorder()
    run = run_cached(
        requests, capacity_tokens=capacity_tokens, block_size=block_size, prefix_options={"eviction": eviction},
        ttl_s=ttl_s, recorder=recorder,
    )  # fmt: skip
    assert isinstance(run.kv, PagedKVCache)
    assert run.kv.prefix is not None
    num_prompt = sum(r.num_prompt_tokens for r in requests)
    return TradePoint(
        policy=policy,
        capacity_tokens=capacity_tokens,
        hit_share=hit_share(run),
        held_bytes=recorder.held_bytes,
        live_bytes=recorder.live_bytes,
        reclaimed_blocks=1000 * run.kv.prefix.num_evicted / num_prompt,
        num_preempted=run.totals.num_preempted,
    )


def trades(curves: Mapping[str, Sequence[TradePoint]]) -> bool:
    """Under every policy more memory buys a higher hit share and less reclaim, from one pool size to the next; and for the
    same hit share the worst policy needs a tenth more memory than the best: the predicate of claim 9.5."""
    return all(_rises(points) for points in curves.values()) and price_of_the_worst(curves) > 1.1


def price_of_the_worst(curves: Mapping[str, Sequence[TradePoint]]) -> float:
    """Memory held under the worst policy over memory held under the best, both for the hit share that the best reaches in
    the middle of its curve (straight lines between the points; 1.0 where no hits are bought). A policy that never reaches
    it is counted with all the memory that it was given."""
    middle = max(points[len(points) // 2].hit_share for points in curves.values())
    needed = []
    for points in curves.values():
        hits = [p.hit_share for p in points]
        if hits[0] >= hits[-1]:
            return 1.0
        needed.append(float(np.interp(middle, hits, [p.held_bytes for p in points])))
    return max(needed) / min(needed)


def _rises(points: Sequence[TradePoint]) -> bool:
    return all(
        b.held_bytes > a.held_bytes and b.hit_share > a.hit_share and b.reclaimed_blocks < a.reclaimed_blocks
        for a, b in pairwise(points)
    )
