"""A load through a scheduler with nothing kept but its summary: sweeps and loads of millions.

`engine.simulate` tells recorders everything, at the price of a `StepPlan`, a `StepResult` and a `StepOutcome` a step. A
scheduler that shows the counters of the decided step itself (`StepCounters`; `VllmScheduler` does) is run here without
them; any other goes through `engine.simulate`. Same decisions and times, one summary.

A decoding request gets one token a step, so its gap is the duration of the step: inter-token latencies are the multiset
(duration, number of decoding requests) over the steps, plus one gap for each preempted request that comes back. No
request is touched for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from labkit.errors import InputError, LabError
from labkit.serving.base import Executor, Recorder, Scheduler, StepOutcome, StepPlan, StepResult
from labkit.serving.engine import check_ids, simulate
from labkit.workload.base import RequestSpec

#: steps between two foldings of the per-step arrays
FOLD_EVERY = 1 << 16
#: steps in a row without a scheduled token after which the load is given up
MAX_IDLE_STEPS = 1000


@dataclass(frozen=True, slots=True)
class LinearStepTime(Executor):
    """A step takes `base_s + per_token_s * scheduled tokens + per_kv_token_s * KV tokens read`."""

    base_s: float = 8e-3
    per_token_s: float = 0.03e-3
    per_kv_token_s: float = 2e-9

    def execute(self, plan: StepPlan) -> StepResult:
        tokens, kv = plan.num_scheduled_tokens, plan.num_kv_tokens_read
        return StepResult(self.base_s + self.per_token_s * tokens + self.per_kv_token_s * kv)


class Gaps:
    """Inter-token latencies as a histogram with bins 0.1 % wide, so that memory does not grow with the load."""

    BINS_PER_E = 1000
    FLOOR_S = 1e-7

    def __init__(self) -> None:
        self.counts = np.zeros(25 * self.BINS_PER_E, dtype=np.int64)

    def add(self, seconds: Sequence[float], weights: Sequence[int] | None = None) -> None:
        """Count times in seconds, each `weights[i]` times (None: once)."""
        if len(seconds):
            values = np.maximum(np.asarray(seconds, dtype=np.float64), self.FLOOR_S)
            bins = (np.log(values / self.FLOOR_S) * self.BINS_PER_E).astype(np.int64)
            np.add.at(
                self.counts,
                np.minimum(bins, len(self.counts) - 1),
                1 if weights is None else np.asarray(weights),
            )

    def quantile(self, q: float) -> float:
        """Seconds, 0.05 % exact; NaN when there are no gaps."""
        total = int(self.counts.sum())
        if not total:
            return float("nan")
        at = int(np.searchsorted(np.cumsum(self.counts), max(1, int(np.ceil(q * total)))))
        return float(self.FLOOR_S * np.exp((at + 0.5) / self.BINS_PER_E))


@dataclass(slots=True)
class LoadSummary:
    """What is left of a load. `ttft`, `tpot` and `e2e` hold one value a finished request, in seconds; `tpot` only of those
    with more than one output. `gaps_complete` is False where a scheduler does not say when a preempted request came back."""

    num_requests: int = 0
    num_refused: int = 0
    num_finished: int = 0
    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_preempted: int = 0
    num_request_steps: int = 0
    end_s: float = 0.0
    ttft: array[float] = field(default_factory=lambda: array("d"))
    tpot: array[float] = field(default_factory=lambda: array("d"))
    e2e: array[float] = field(default_factory=lambda: array("d"))
    gaps: Gaps = field(default_factory=Gaps)
    gaps_complete: bool = True

    def quantile(self, what: str, q: float) -> float:
        """`quantile("ttft", 0.99)` in seconds; also tpot, e2e and itl. NaN when nothing was measured."""
        if what == "itl":
            return self.gaps.quantile(q)
        if what not in ("ttft", "tpot", "e2e"):
            raise LabError(f"latency {what!r} is not known; choose one of: e2e, itl, tpot, ttft")
        values = getattr(self, what)
        return float(np.quantile(np.frombuffer(values), q)) if values else float("nan")


@runtime_checkable
class StepCounters(Protocol):
    """A scheduler that can be run without plans: `decide()`, read the counters, `advance()`, read the lists. Requests in
    those lists have `arrival_s`, `num_prompt`, `end` (tokens when finished) and the fields `first_s` and `gap_from_s`."""

    lag: int
    requests: dict[str, Any]
    num_decodes: int
    num_chunk_tokens: int
    num_kv_tokens: int
    preempted: Sequence[Any]
    started: Sequence[Any]
    resumed: Sequence[Any]
    finished: Sequence[Any]

    def decide(self) -> None: ...
    def advance(self) -> None: ...


def summarize_load(
    scheduler: Scheduler, requests: Iterable[RequestSpec], step_time: LinearStepTime | None = None
) -> LoadSummary:
    """Serve `requests`, in order of arrival. Raises `InputError` for an arrival out of order and `LabError` when the
    scheduler stops making progress."""
    step_time = step_time or LinearStepTime()
    check_ids(requests)
    if isinstance(scheduler, StepCounters):
        return _run_counters(scheduler, scheduler.add, requests, step_time)
    recorder = SummaryRecorder()
    simulate(scheduler, step_time, requests, recorder)
    return recorder.summary


def _run_counters(
    scheduler: StepCounters, add: Any, requests: Iterable[RequestSpec], step_time: LinearStepTime
) -> LoadSummary:
    summary = LoadSummary()
    base, per_token, per_kv = step_time.base_s, step_time.per_token_s, step_time.per_kv_token_s
    decide, advance, in_system, lag = scheduler.decide, scheduler.advance, scheduler.requests, scheduler.lag
    durations, weights, resume_gaps = array("d"), array("l"), array("d")
    arrivals = iter(requests)
    coming = next(arrivals, None)
    now, num_tokens, num_delivered, num_idle, fold_at = 0.0, 0, 0, 0, FOLD_EVERY
    while True:
        while coming is not None and coming.arrival_s <= now:
            summary.num_requests += 1
            if add(coming) is not None:
                summary.num_refused += 1
            coming = _in_order(coming, next(arrivals, None))
        if not in_system:
            if coming is None:
                break
            now = coming.arrival_s
            continue
        decide()
        num_decodes = scheduler.num_decodes
        tokens = num_decodes + scheduler.num_chunk_tokens
        duration = base + per_token * tokens + per_kv * scheduler.num_kv_tokens
        if scheduler.preempted:
            summary.num_preempted += len(scheduler.preempted)
            for victim in (
                scheduler.preempted
            ):  # its newest token came with the step before; with the lag, with this one
                victim.request.gap_from_s = now + lag * duration
        now += duration
        num_tokens += tokens
        durations.append(duration)
        weights.append(num_delivered if lag else num_decodes)
        num_delivered = num_decodes
        advance()
        if scheduler.started:
            for r in scheduler.started:
                r.first_s = now
                summary.ttft.append(now - r.arrival_s)
        if scheduler.resumed:
            for r in scheduler.resumed:
                resume_gaps.append(now - r.gap_from_s)
        if scheduler.finished:
            for r in scheduler.finished:
                summary.e2e.append(now - r.arrival_s)
                num_outputs = r.end - r.num_prompt
                if num_outputs > 1:
                    summary.tpot.append((now - r.first_s) / (num_outputs - 1))
        if not tokens:
            num_idle += 1
            if num_idle > MAX_IDLE_STEPS:
                raise LabError(
                    f"no progress: nothing was scheduled in {num_idle} steps while {len(in_system)} requests wait"
                )
        elif num_idle:
            num_idle = 0
        if len(durations) >= fold_at:
            _fold(summary, durations, weights)
    _fold(summary, durations, weights)
    summary.gaps.add(resume_gaps)
    summary.num_finished, summary.num_scheduled_tokens, summary.end_s = len(summary.e2e), num_tokens, now
    return summary


def _fold(summary: LoadSummary, durations: array[float], weights: array[int]) -> None:
    summary.gaps.add(durations, weights)
    summary.num_steps += len(durations)
    summary.num_request_steps += sum(weights)
    del durations[:], weights[:]


def _in_order(previous: RequestSpec, coming: RequestSpec | None) -> RequestSpec | None:
    if coming is not None and coming.arrival_s < previous.arrival_s:
        raise InputError(
            f"request {coming.request_id}",
            f"arrives at {coming.arrival_s:g}, before {previous.request_id} at {previous.arrival_s:g}; "
            "requests are given in order of arrival",
            field="arrival_s",
        )
    return coming


class SummaryRecorder(Recorder):
    """The same summary from `engine.simulate`, for any scheduler; without the gaps of those that were preempted."""

    def __init__(self) -> None:
        self.summary = LoadSummary(gaps_complete=False)
        self._live: dict[str, list[float]] = {}  # arrival, outputs, first token
        self._durations, self._weights = array("d"), array("l")

    def on_arrival(self, spec: RequestSpec, now_s: float, refused: str | None) -> None:
        self.summary.num_requests += 1
        if refused is not None:
            self.summary.num_refused += 1
        else:
            self._live[spec.request_id] = [spec.arrival_s, spec.num_output_tokens, now_s]

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        summary = self.summary
        summary.num_scheduled_tokens += plan.num_scheduled_tokens
        if plan.preempted:
            summary.num_preempted += len(plan.preempted)
        self._durations.append(end_s - start_s)
        self._weights.append(plan.num_decode_requests)
        for name in outcome.started:
            row = self._live[name]
            row[2] = end_s
            summary.ttft.append(end_s - row[0])
        for name in outcome.finished:
            arrival, num_outputs, first = self._live.pop(name)
            num_outputs = (outcome.truncated or {}).get(name, num_outputs)
            summary.e2e.append(end_s - arrival)
            if num_outputs > 1:
                summary.tpot.append((end_s - first) / (num_outputs - 1))
        if len(self._durations) >= FOLD_EVERY:
            _fold(summary, self._durations, self._weights)

    def on_end(self, scheduler: Scheduler, now_s: float) -> None:
        _fold(self.summary, self._durations, self._weights)
        self.summary.num_finished, self.summary.end_s = len(self.summary.e2e), now_s
