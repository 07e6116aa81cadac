"""One simulated server: the lab's engine on a load, with faults, watched by a scrape every few seconds.

What comes out is what a server would show: gauges and counters at each scrape, a line in the log when the head of the queue
waits. What the simulation knows beyond that stays inside.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.experiments.incidents.faults import Fault
from labkit.experiments.incidents.load import BASE_MS, Load
from labkit.experiments.incidents.seen import (
    BYTES_PER_TOKEN,
    EDGES,
    SCRAPE_S,
    TAIL_S,
    Histogram,
    Row,
    Wait,
    Watched,
)
from labkit.kv import make_kv_cache
from labkit.serving.base import Executor, Recorder, Scheduler, StepOutcome, StepPlan, StepResult
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


class Pausing(Executor):
    """A straight-line step cost; prefill steps pause with a probability (an allocator that gives segments back and asks
    the driver again). The probability grows over the first twelve seconds of prefill, as the memory that is kept aside does."""

    def __init__(self, per_token_ms: float, pauses: tuple[float, float] | None, rng: np.random.Generator):
        self.per_token_s, self.pauses, self.rng = per_token_ms * 1e-3, pauses, rng
        self.worked_s = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        seconds = BASE_MS * 1e-3 + self.per_token_s * plan.num_scheduled_tokens
        if self.pauses and plan.num_prefill_tokens:
            self.worked_s += seconds
            if self.rng.random() < self.pauses[0] * min(1.0, self.worked_s / 12.0):
                seconds += self.pauses[1]
        return StepResult(seconds)


class Watch(Recorder):
    """Scrapes on the load's clock. `first` are requests by id; ends of requests are told to the faults."""

    def __init__(self, scheduler: Any, faults: Sequence[Fault], requests: Sequence[RequestSpec]):
        self.scheduler, self.faults = scheduler, faults
        self.specs = {r.request_id: r for r in requests}
        self.rows: list[Row] = []
        self.waits: list[Wait] = []
        self.next_s = self.next_note_s = 0.0
        self.arrived: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.ttft: list[float] = []
        self.prefills: list[tuple[float, int]] = []
        self.counters = dict.fromkeys(
            ("num_preemptions", "num_prompt_tokens", "num_output_tokens", "num_finished", "num_rejected",
             "num_prefix_hits", "num_prefix_queries", "num_evicted_tokens"), 0.0
        )  # fmt: skip
        self.hist = {name: Histogram() for name in ("ttft", "itl", "e2e", "queue")}
        self.num_running = self.num_live = 0
        self.peak = 0
        prefix = getattr(scheduler.kv, "prefix", None)
        if prefix is not None:
            self._evict, prefix.evict = prefix.evict, self._count_evicted

    def _count_evicted(self, num_blocks: int) -> list[int]:
        blocks: list[int] = self._evict(num_blocks)
        self.counters["num_evicted_tokens"] += len(blocks) * self.scheduler.kv.block_size
        return blocks

    def on_arrival(self, spec: RequestSpec, now_s: float, refused: str | None) -> None:
        self.advance(now_s)
        if refused is not None:
            self.counters["num_rejected"] += 1
            return
        self.arrived[spec.request_id] = spec.arrival_s
        self.num_live += 1

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        counters, specs = self.counters, self.specs
        for admitted in plan.admitted:
            if not admitted.resumed:
                spec = specs[admitted.request_id]
                counters["num_prefix_queries"] += spec.num_prompt_tokens
                counters["num_prefix_hits"] += admitted.num_hit_tokens
                counters["num_prompt_tokens"] += spec.num_prompt_tokens
                self.hist["queue"].add(max(0.0, start_s - spec.arrival_s))
        counters["num_preemptions"] += len(plan.preempted)
        decoded = plan.num_decode_requests
        if decoded:
            lasted, itl = end_s - start_s, self.hist["itl"]
            itl.counts[bisect_left(EDGES, lasted)] += decoded
            itl.total += lasted * decoded
            counters["num_output_tokens"] += decoded
        if plan.num_prefill_tokens:
            self.prefills.append((start_s, plan.num_prefill_tokens))
        for name in outcome.started:
            if name not in self.started:
                self.started[name] = end_s
                self.ttft.append(end_s - self.arrived[name])
                self.hist["ttft"].add(self.ttft[-1])
                counters["num_output_tokens"] += 1
        for name in outcome.finished:
            self.num_live -= 1
            counters["num_finished"] += 1
            self.hist["e2e"].add(end_s - self.arrived[name])
            for fault in self.faults:
                fault.finished(specs[name], end_s)
        pool = getattr(self.scheduler.kv, "pool", None)
        if pool is not None and not self.faults:
            self.peak = max(self.peak, pool.num_pinned * self.scheduler.kv.block_size)
        self.num_running = plan.num_running - len(outcome.finished)
        if self.num_live > self.num_running:
            self._note_wait(end_s)
        self.advance(end_s)

    def advance(self, now_s: float) -> None:
        """Let everything that is due until `now_s` happen, with a scrape at each of its instants."""
        while self.next_s <= now_s:
            for fault in self.faults:
                fault.advance(self.next_s)
            self._scrape(self.next_s)
            self.next_s += SCRAPE_S
        for fault in self.faults:
            fault.advance(now_s)

    def _scrape(self, now_s: float) -> None:
        kv, capacity = self.scheduler.kv, self.scheduler.kv.capacity_tokens
        stats = kv.stats()
        shown_as_cache = self._shown_as_cache()
        live = stats.reserved_bytes // kv.bytes_per_token - shown_as_cache
        self.peak = max(self.peak, live)
        evictable = stats.cached_bytes // kv.bytes_per_token
        waiting = max(0, self.num_live - self.num_running)
        values = {
            **self.counters,
            "num_running": self.num_running + sum(fault.idle_running for fault in self.faults),
            "num_waiting": waiting,
            "kv_usage": live / capacity,
            "kv_live_tokens": live,
            "kv_cached_tokens": evictable + shown_as_cache,
            "kv_free_tokens": stats.free_bytes // kv.bytes_per_token,
            "kv_total_tokens": capacity,
        }
        self.rows.append(Row(now_s, values, {name: h.snapshot() for name, h in self.hist.items()}))

    def _shown_as_cache(self) -> int:
        return sum(fault.cached_tokens(self.scheduler.running) for fault in self.faults)

    def _note_wait(self, now_s: float) -> None:
        """At most once a second: why the head of the queue waits, when it has waited for half a second."""
        if now_s < self.next_note_s or not self.scheduler.waiting:
            return
        head, kv = next(iter(self.scheduler.waiting)), self.scheduler.kv
        name = head.spec.request_id
        if now_s - self.arrived.get(name, now_s) < 0.5:
            return
        self.next_note_s = now_s + 1.0
        stats, reason = kv.stats(), self.scheduler.why_waiting(name)
        free, largest = stats.free_bytes // kv.bytes_per_token, stats.largest_free_bytes // kv.bytes_per_token
        own = (kv.num_evictable_blocks - reason.num_evictable_blocks) * kv.block_size  # its own prefix
        evictable = stats.cached_bytes // kv.bytes_per_token - own + self._shown_as_cache()
        needed, limit = reason.num_needed_blocks * kv.block_size, reason.limit
        if kv.block_size == 1 and limit in (
            "none",
            "contiguous_room",
            "blocks",
        ):  # it asks for its final length
            needed = head.spec.num_prompt_tokens + head.spec.num_output_tokens
            limit = "none" if largest >= needed else "contiguous_room" if free >= needed else "blocks"
        elif limit == "blocks" and "headroom" in reason.sentence:
            limit = "headroom"
        limit = "token_budget" if limit == "none" else limit
        self.waits.append(Wait(now_s, name, limit, needed, free, evictable, largest))


def watch(
    load: Load,
    capacity_tokens: int,
    rng: np.random.Generator,
    *,
    kv_name: str = "paged",
    block_size: int = 16,
    prefix: bool = False,
    faults: Sequence[tuple[Fault, float]] = (),
    extra: Sequence[RequestSpec] = (),
    refused: frozenset[str] = frozenset(),
    pauses: tuple[float, float] | None = None,
    **options: Any,
) -> Watched:
    """Serve `load` and `extra`; each fault comes with the largest share of the pool it may hold. Requests in `refused` are
    turned away on arrival (their allocation failed)."""
    kv_options: dict[str, Any] = {"block_size": block_size} if kv_name == "paged" else {}
    if prefix and kv_name == "paged":
        kv_options["prefix"] = "hash"
    kv = make_kv_cache(
        kv_name, capacity_tokens=capacity_tokens, bytes_per_token=BYTES_PER_TOKEN, **kv_options
    )
    options = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, **options}
    scheduler = make_scheduler("lab", kv, **options)
    for fault, share in faults:
        fault.attach(kv, share)
    requests = sorted(
        (r for r in [*load.requests, *extra] if r.request_id not in refused), key=lambda r: r.arrival_s
    )
    watching = Watch(scheduler, [fault for fault, _ in faults], [*load.requests, *extra])
    turned_away = sorted(r.arrival_s for r in load.requests if r.request_id in refused)
    executor = Pausing(load.per_token_ms, pauses, rng)
    totals = simulate(scheduler, executor, requests, watching)
    watching.advance(totals.end_s + TAIL_S)
    rows = [
        Row(r.time_s, r.values | {"num_rejected": r.values["num_rejected"] + bisect_left(turned_away, r.time_s)},
            r.histograms)
        for r in watching.rows
    ] if turned_away else watching.rows  # fmt: skip
    return Watched(
        rows, watching.waits, watching.ttft, len(load.requests), totals.num_refused + len(turned_away),
        totals.num_preempted, capacity_tokens, watching.peak, watching.prefills,
    )  # fmt: skip
