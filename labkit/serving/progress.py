"""A simulator that spins is worse than one that stops: no progress for many steps is an error that names the cycle.

Progress is a new token or a finished request. A scheduler can miss it in two ways, and the guard counts both since the
last progress: steps in which nothing was scheduled, and preemptions (a request that is admitted, recomputed, preempted
and admitted again computes a lot and gets nowhere).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from labkit.errors import LabError
from labkit.serving.base import Scheduler, StepOutcome, StepPlan


class NoProgress(LabError):
    """The load cannot be served by this scheduler on this cache."""


class ProgressGuard:
    """Raises `NoProgress` after `max_steps` idle steps or `max_preemptions` preemptions without progress."""

    def __init__(self, max_steps: int = 1000, max_preemptions: int = 100):
        self.max_steps, self.max_preemptions = max_steps, max_preemptions
        self.num_idle_steps = 0
        self._preempted: Counter[str] = Counter()

    def watch(self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome) -> None:
        """Count one step. Raises `NoProgress` when it was one too many."""
        if plan.num_decode_requests or outcome.started or outcome.finished:
            self.num_idle_steps = 0
            if self._preempted:
                self._preempted.clear()
            return
        for row in plan.preempted:
            self._preempted[row.request_id] += 1
        if plan.num_scheduled_tokens or plan.swapped_bytes:
            self.num_idle_steps = 0
            if self._preempted.total() < self.max_preemptions:
                return
        else:
            self.num_idle_steps += 1
            if self.num_idle_steps < self.max_steps:
                return
        raise NoProgress(self._sentence(scheduler, plan))

    def _sentence(self, scheduler: Scheduler, plan: StepPlan) -> str:
        if self._preempted.total() >= self.max_preemptions:
            names = ", ".join(f"{name} ({count} times)" for name, count in self._preempted.most_common(5))
            return (
                f"no new token in step {plan.step} after {self._preempted.total()} preemptions: the cycle is admit, "
                f"recompute, run out of room, preempt, for {names}"
            )
        waiting = waiting_ids(scheduler)
        why = scheduler.why_waiting(waiting[0]).sentence if waiting else "nobody waits"
        return (
            f"no progress for {self.num_idle_steps} steps at step {plan.step}: {plan.num_running} running and none of "
            f"them can go on, {len(waiting)} waiting; {why}"
        )


def waiting_ids(scheduler: Scheduler) -> list[str]:
    """Ids of waiting requests: in the order of its queue `waiting`, or, where it has none, those of its `requests` that
    it says are waiting."""
    if hasattr(scheduler, "waiting"):
        return [_id(row) for row in scheduler.waiting]
    return [request_id for request_id in getattr(scheduler, "requests", ()) if _waits(scheduler, request_id)]


def _waits(scheduler: Scheduler, request_id: str) -> bool:
    try:
        scheduler.why_waiting(request_id)
    except LabError:
        return False
    return True


def _id(row: Any) -> str:
    for name in ("request_id", "id"):
        if hasattr(row, name):
            return str(getattr(row, name))
    return str(row.spec.request_id)
