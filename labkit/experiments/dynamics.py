"""Section 1: memory that is there and cannot be used, because serving is dynamic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.experiments.churn import AllocatorMemory, Churn, ChurnRun, Holding
from labkit.experiments.harms import peak_demand
from labkit.experiments.serve import Served, serve
from labkit.kv import make_kv_cache
from labkit.memory import make_allocator
from labkit.memory.caching import CachingAllocator
from labkit.units import MIB
from labkit.workload.base import RequestSpec

# --- 1.1 the static sum -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumAgainstRun:
    """The static sum says `mean_demand` bytes of `capacity`; the run refused `num_refused` of `num_asked`."""

    mean_demand: float
    capacity: int
    num_asked: int
    num_refused: int
    run: ChurnRun

    def sum_fits_and_run_does_not(self) -> bool:
        return self.mean_demand <= self.capacity and self.num_refused > 0


def mean_demand(holdings: Sequence[Holding]) -> float:
    """Bytes alive on average: what a sheet of paper gets from arrival rate x stay x size (Little's law)."""
    first = holdings[0].arrival_s
    last = max(holding.arrival_s + holding.hold_s for holding in holdings)
    return sum(holding.size * holding.hold_s for holding in holdings) / (last - first)


def sum_against_run(holdings: Sequence[Holding], capacity: int) -> SumAgainstRun:
    """Run `holdings` in one contiguous memory of `capacity` and compare with the static sum."""
    run = Churn(_first_fit(capacity), on_failure="drop").feed(holdings)
    return SumAgainstRun(mean_demand(holdings), capacity, len(holdings), run.num_dropped, run)


def smoothed(holdings: Sequence[Holding]) -> list[Holding]:
    """The control: as many holdings of the mean size and stay, evenly spaced. The static sum is the same."""
    count = len(holdings)
    size = int(np.mean([h.size * h.hold_s for h in holdings]) / np.mean([h.hold_s for h in holdings]))
    stay = float(np.mean([h.hold_s for h in holdings]))
    gap = (max(h.arrival_s + h.hold_s for h in holdings) - holdings[0].arrival_s - stay) / count
    return [Holding(holdings[0].arrival_s + index * gap, stay, size) for index in range(count)]


# --- 1.3 free on paper, out of reach ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutOfReach:
    """After the owner gave `freed` back: how much of it can be handed out again at once. Blocks or bytes."""

    freed: int
    usable: int

    def held_back(self) -> bool:
        return self.usable < self.freed


def freed_with_shared_prefix(*, shared: bool, num_tokens: int = 1600, block_size: int = 16) -> OutOfReach:
    """A request ends; its blocks were (or were not) also used by a second one that still runs."""
    kv = make_kv_cache("paged", capacity_tokens=8 * num_tokens, bytes_per_token=1, block_size=block_size)
    kv.admit("first", num_tokens, max_tokens=num_tokens)
    if shared:
        kv.fork("first", "second")
    else:
        kv.admit("second", num_tokens, max_tokens=num_tokens)
    before = kv.num_free_blocks
    kv.free("first")
    return OutOfReach(-(-num_tokens // block_size), kv.num_free_blocks - before)


def freed_with_pending_event(*, pending: bool, size: int = 64 * MIB) -> OutOfReach:
    """PyTorch's allocator: a tensor that another stream still reads is freed. Can its bytes serve the next tensor, or must
    the allocator reserve more? `pending=False`: the other stream has finished."""
    memory = CachingAllocator(1024 * MIB)
    tensor = memory.malloc(size)
    memory.record_stream(tensor, 1)
    memory.hold_stream(1)
    if not pending:
        memory.finish_stream(1)
    memory.free(tensor)
    before = memory.stats().reserved_bytes
    memory.malloc(size)
    return OutOfReach(size, size - (memory.stats().reserved_bytes - before))


# --- 1.4 ageing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """A stretch of a run: what share of the run it takes, P99 of the wait for memory, share refused."""

    name: str
    share_of_run: float
    p99_wait_s: float
    refused_share: float


@dataclass(frozen=True)
class Ageing:
    """One service over its life, cut where the first request waits and where the first one waits too long; then a
    restart and the load of the last phase again."""

    capacity: int
    phases: list[Phase]
    run: ChurnRun
    after: ChurnRun

    def three_phases_and_a_cure(self) -> bool:
        """At least a quarter of the run is good, then somebody waits, then somebody is refused; after the restart
        nobody is refused and waits are short again."""
        good, jitter, failing, healed = self.phases
        return (
            good.share_of_run > 0.25
            and jitter.share_of_run > 0
            and failing.refused_share > 0.05
            and healed.refused_share == 0
            and healed.p99_wait_s < 0.1 * failing.p99_wait_s
        )


def age_and_restart(
    holdings: Sequence[Holding], *, leave_behind: bool = True, every: int = 40, patience_s: float = 30.0
) -> Ageing:
    """Requests queue first come first served and count as refused when they wait longer than `patience_s`.

    One request in `every` belongs to a client that goes away and leaves its session open: nobody frees it until the
    restart. Memory is sized as somebody would who tests for a third of the time: a quarter more than the peak demand,
    beside what has been left behind by then. In the end the leftovers take 1.65 times what that leaves beyond the mean
    demand.
    """
    peak, mean = peak_demand(holdings), mean_demand(holdings)
    leftovers = 1.65 * (1.25 * peak - 0.9 * mean) if leave_behind else 0.0
    capacity = int(1.25 * peak + leftovers / 3)
    size = int(leftovers / (len(holdings) // every))
    never = 10 * (holdings[-1].arrival_s + holdings[-1].hold_s + 1)
    load = [
        Holding(holding.arrival_s, never, size, "session") if size and index % every == every - 1 else holding
        for index, holding in enumerate(holdings)
    ]
    churn = Churn(_first_fit(capacity))
    churn.feed(load)
    waits = np.array(
        churn.run.waits_s + [np.inf] * (len(load) - len(churn.run.waits_s))
    )  # first come, first served
    first_wait = _first(waits > 0, len(load))
    first_late = _first(waits > patience_s, len(load))
    fresh = Churn(_first_fit(capacity))
    fresh.feed([holding for holding in load[first_late:] if holding.hold_s != never])
    phases = [
        _phase("at first", waits[:first_wait], patience_s, len(load)),
        _phase("later", waits[first_wait:first_late], patience_s, len(load)),
        _phase("at last", waits[first_late:], patience_s, len(load)),
        _phase("after a restart", np.array(fresh.run.waits_s), patience_s, len(load)),
    ]
    return Ageing(capacity, phases, churn.run, fresh.run)


def _first_fit(capacity: int) -> AllocatorMemory:
    return AllocatorMemory(make_allocator("first-fit", capacity))


def _first(mask: np.ndarray, default: int) -> int:
    return int(np.argmax(mask)) if mask.any() else default


def _phase(name: str, waits: np.ndarray, patience_s: float, num_all: int) -> Phase:
    """Whoever has not been placed by the end waits for ever; in the quantile that counts as the patience."""
    if not len(waits):
        return Phase(name, 0.0, 0.0, 0.0)
    p99 = float(np.quantile(np.where(np.isinf(waits), patience_s, waits), 0.99))
    return Phase(name, len(waits) / num_all, p99, float((waits > patience_s).mean()))


# --- 1.5 what makes serving dynamic --------------------------------------------------------------------------------------

SOURCES = (
    "prompt lengths",
    "output lengths",
    "joins and leaves",
    "multi-turn sessions",
    "prefix reuse",
    "scheduler: prefill first",
    "scheduler: preemption",
)


@dataclass(frozen=True)
class Curve:
    """KV bytes held by live requests over time, one value a step, and the run behind it."""

    times_s: np.ndarray
    live_bytes: np.ndarray
    served: Served = field(repr=False)

    def distance(self, other: Curve) -> float:
        """Mean absolute difference over the longer of both runs, over this curve's mean: 0 for equal curves."""
        end = max(self.times_s[-1], other.times_s[-1])
        grid = np.linspace(0, end, 2000)
        return float(np.abs(self.at(grid) - other.at(grid)).mean() / self.at(grid).mean())

    def at(self, grid: np.ndarray) -> np.ndarray:
        index = np.searchsorted(self.times_s, grid, side="right") - 1
        values = np.where(index >= 0, self.live_bytes[np.maximum(index, 0)], 0)
        return np.where(grid > self.times_s[-1], 0, values)


def memory_curve(source: str | None, requests: Sequence[RequestSpec], *, bytes_per_token: int) -> Curve:
    """Serve `requests` with everything static (one length, all there at the start in batches of 16, no reuse) except
    `source`, one of `SOURCES`, or None for the plain baseline. Raises `LabError` for another name."""
    if source is not None and source not in SOURCES:
        raise LabError(f"unknown source {source!r}; choose one of: {', '.join(SOURCES)}")
    mean_prompt = int(np.mean([r.num_prompt_tokens for r in requests]))
    mean_output = int(np.mean([r.num_output_tokens for r in requests]))
    load: list[RequestSpec] = []
    prefix = [int(token) for token in range(mean_prompt // 2)]
    for number, r in enumerate(requests):
        prompt = r.num_prompt_tokens if source == "prompt lengths" else mean_prompt
        output = r.num_output_tokens if source == "output lengths" else mean_output
        arrival = r.arrival_s if source == "joins and leaves" else 0.0
        if source == "multi-turn sessions":  # four turns each: the prompt is the whole talk so far
            prompt = mean_prompt // 4 * (1 + number % 4)
        ids = None
        if source == "prefix reuse":
            ids = prefix + [1_000_000 + number * mean_prompt + i for i in range(mean_prompt - len(prefix))]
        load.append(RequestSpec(r.request_id, arrival, prompt, output, output, ids))
    options: dict[str, Any] = {"batching": "static", "max_num_seqs": 16}
    capacity = 16 * 2 * (mean_prompt + mean_output)
    if source == "joins and leaves":
        options["batching"] = "continuous"
    if source == "scheduler: prefill first":
        options["batching"] = "prefill-first"
    if source == "scheduler: preemption":
        options["batching"] = "chunked"
        capacity = 16 * (mean_prompt + mean_output) * 3 // 4
    run = serve(
        "paged",
        sorted(load, key=lambda spec: spec.arrival_s),
        capacity_tokens=capacity,
        bytes_per_token=bytes_per_token,
        max_model_len=1 << 17,
        kv_options={"prefix": "hash"} if source == "prefix reuse" else None,
        every=1,
        **options,
    )
    frame = run.recorder.series_frame()
    return Curve(frame["end_s"].to_numpy(), frame["kv_live_bytes"].to_numpy(dtype=float), run)
