"""A replay in real time, or faster: waits so that the load's clock keeps pace with the wall's, and publishes as it goes.

recorder = PacedRecorder(RunExporter("vllm"), speed=10)
with recorder.exporter.serve(9400):
    simulate(scheduler, executor, load, recorder)
"""

from __future__ import annotations

import time
from collections.abc import Callable

from labkit.errors import LabError
from labkit.observe.exposition import RunExporter
from labkit.observe.recorder import RunRecorder
from labkit.observe.series import Series
from labkit.serving.base import Scheduler, StepOutcome, StepPlan

#: wall seconds between two states that are published
PUBLISH_EVERY_S = 0.5


class PacedRecorder(RunRecorder):
    """`speed` seconds of the load pass in one of the wall; 0 means as fast as it goes. The last state is published at the end.
    `usage` says which share of the pool live requests hold (default: `scheduler.usage`, where there is one)."""

    def __init__(
        self,
        exporter: RunExporter,
        speed: float = 1.0,
        *,
        series: Series | None = None,
        usage: Callable[[Scheduler], float | None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not speed >= 0:
            raise LabError(f"speed is {speed}; it must be 0 (as fast as it goes) or above")
        super().__init__(series)
        self.exporter, self.speed = exporter, speed
        self._sleep, self._clock, self._usage = sleep, clock, usage or usage_of
        self._began_s: float | None = None
        self._first_s = self._published_s = 0.0

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        now = self._clock()
        if self._began_s is None:
            self._began_s, self._first_s, self._published_s = now, start_s, now - PUBLISH_EVERY_S
        if self.speed:
            ahead = self._began_s + (end_s - self._first_s) / self.speed - now
            if ahead > 0:
                self._sleep(ahead)
                now = self._clock()
        if now - self._published_s >= PUBLISH_EVERY_S:
            self._published_s = now
            self.exporter.update(
                self, usage=self._usage(scheduler), num_running=plan.num_running - len(outcome.finished)
            )

    def on_end(self, scheduler: Scheduler, now_s: float) -> None:
        super().on_end(scheduler, now_s)
        self.exporter.update(self, usage=self._usage(scheduler), num_running=0)


def usage_of(scheduler: Scheduler) -> float | None:
    """Share of the pool that live requests hold, where the scheduler says it."""
    usage = getattr(scheduler, "usage", None)
    return float(usage) if isinstance(usage, int | float) else None
