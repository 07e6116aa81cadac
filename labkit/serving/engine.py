"""The engine loop: arrivals, decide, execute, update, until the load is served.

    clock "time"   a request arrives when the load's clock has passed its `arrival_s`; a step advances the clock by what
                   the executor says it took
    clock "step"   `arrival_s` is a step number: requests with `arrival_s <= s` are there before step s is decided.
                   Decisions then do not depend on any executor's idea of time.

Request ids are unique. A load that is there as a whole (a list) is checked before it starts; a generator may have millions
of them, and remembering every id would cost more memory than the loop itself, so there a scheduler only refuses an id that
is still in the system.

The loop holds no request: a load may be a generator of millions, and observers keep what they need (`Recorder`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from labkit.errors import InputError, LabError
from labkit.kv.base import KVCacheManager
from labkit.serving.base import Executor, Recorder, Scheduler
from labkit.serving.progress import ProgressGuard
from labkit.workload.base import RequestSpec

#: arrivals between two calls of `on_progress`
PROGRESS_EVERY = 100


@dataclass(slots=True)
class SimulationResult:
    """Totals of one run. `num_admitted` counts first admissions, `num_resumed` those after a preemption."""

    num_requests: int = 0
    num_refused: int = 0
    num_admitted: int = 0
    num_resumed: int = 0
    num_preempted: int = 0
    num_dropped: int = 0
    num_finished: int = 0
    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_hit_tokens: int = 0
    swapped_bytes: int = 0
    end_s: float = 0.0


def simulate(
    scheduler: Scheduler,
    executor: Executor,
    requests: Iterable[RequestSpec],
    recorder: Recorder | None = None,
    *,
    clock: Literal["time", "step"] = "time",
    guard: ProgressGuard | None = None,
    max_steps: int | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> SimulationResult:
    """Serve `requests` (in arrival order). Stops when nothing is left, or after `max_steps`.

    Raises `InputError` for an arrival out of order or an id that comes twice in a list, `NoProgress` when the scheduler spins. `on_progress` gets the
    number of requests that arrived since it was last called.
    """
    if clock not in ("time", "step"):
        raise LabError(f"clock={clock!r} is not known; choose one of: time, step")
    check_ids(requests)
    guard = guard or ProgressGuard()
    totals = SimulationResult()
    schedule, execute, update, watch = scheduler.schedule, executor.execute, scheduler.update, guard.watch
    set_time = _expiring(scheduler)
    arrivals = iter(requests)
    coming = next(arrivals, None)
    now, reported = 0.0, 0
    while max_steps is None or totals.num_steps < max_steps:
        while coming is not None and coming.arrival_s <= now:
            refused = scheduler.add(coming)
            totals.num_requests += 1
            if refused is not None:
                totals.num_refused += 1
            if recorder is not None:
                recorder.on_arrival(coming, now, refused)
            coming = _after(coming, next(arrivals, None))
            if on_progress is not None and totals.num_requests - reported >= PROGRESS_EVERY:
                on_progress(totals.num_requests - reported)
                reported = totals.num_requests
        if not scheduler.has_work():
            if coming is None:
                break
            now = coming.arrival_s
            continue
        if set_time is not None:
            set_time(now)
        plan = schedule()
        result = execute(plan)
        start, now = now, now + (result.duration_s if clock == "time" else 1)
        outcome = update(plan, result)
        totals.num_steps += 1
        totals.num_scheduled_tokens += plan.num_scheduled_tokens
        if plan.admitted:
            for row in plan.admitted:
                totals.num_hit_tokens += row.num_hit_tokens
                if row.resumed:
                    totals.num_resumed += 1
                else:
                    totals.num_admitted += 1
        if plan.preempted:
            totals.num_preempted += len(plan.preempted)
            if not plan.swapped_bytes:
                totals.num_recomputed_tokens += sum(row.num_computed_tokens for row in plan.preempted)
        if plan.swapped_bytes:
            totals.swapped_bytes += plan.swapped_bytes
        totals.num_dropped += len(plan.dropped)
        totals.num_finished += len(outcome.finished)
        if recorder is not None:
            recorder.on_step(scheduler, plan, outcome, start, now)
        if not plan.num_decode_requests:
            watch(scheduler, plan, outcome)
    totals.end_s = now
    if on_progress is not None:
        on_progress(totals.num_requests - reported)
    if recorder is not None:
        recorder.on_end(scheduler, now)
    return totals


def check_ids(requests: Iterable[RequestSpec]) -> None:
    """Raise `InputError` for an id that comes twice in a list of requests; a generator is left alone."""
    if not isinstance(requests, Sequence) or len({r.request_id for r in requests}) == len(requests):
        return
    seen: set[str] = set()
    for row, request in enumerate(requests, start=1):
        if request.request_id in seen:
            raise InputError(
                "requests", f"{request.request_id!r} is there twice", row=row, field="request_id"
            )
        seen.add(request.request_id)


def _after(previous: RequestSpec, coming: RequestSpec | None) -> RequestSpec | None:
    if coming is not None and coming.arrival_s < previous.arrival_s:
        raise InputError(
            f"request {coming.request_id}",
            f"arrives at {coming.arrival_s:g}, before request {previous.request_id} at {previous.arrival_s:g}; "
            "requests are given in order of arrival",
            field="arrival_s",
        )
    return coming


def _expiring(scheduler: Scheduler) -> Callable[[float], None] | None:
    """`set_time` of a cache that looks at the clock."""
    kv = getattr(scheduler, "kv", None)
    if not isinstance(kv, KVCacheManager) or getattr(kv, "prefix", None) is None:
        return None
    return kv.set_time
