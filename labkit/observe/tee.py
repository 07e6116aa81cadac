"""Several observers of one run."""

from __future__ import annotations

from labkit.serving.base import Recorder, Scheduler, StepOutcome, StepPlan
from labkit.workload.base import RequestSpec


class Tee(Recorder):
    """Tells each of `recorders`, in order."""

    def __init__(self, *recorders: Recorder):
        self.recorders = recorders

    def on_arrival(self, spec: RequestSpec, now_s: float, refused: str | None) -> None:
        for recorder in self.recorders:
            recorder.on_arrival(spec, now_s, refused)

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        for recorder in self.recorders:
            recorder.on_step(scheduler, plan, outcome, start_s, end_s)

    def on_end(self, scheduler: Scheduler, now_s: float) -> None:
        for recorder in self.recorders:
            recorder.on_end(scheduler, now_s)
