"""A fixed number of clients, each sending its next request when it has its answer (a closed loop)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from labkit.serving.base import Executor, Recorder, Scheduler, StepOutcome, StepPlan
from labkit.serving.engine import SimulationResult, simulate
from labkit.workload.base import RequestSpec


def simulate_closed(
    scheduler: Scheduler,
    executor: Executor,
    requests: Iterable[RequestSpec],
    num_clients: int,
    recorder: Recorder | None = None,
) -> SimulationResult:
    """Serve `requests` with at most `num_clients` of them in the system. Their own arrival times do not count: a request
    arrives at the end of the step that finished (or gave up) another."""
    loop = _Clients(scheduler, requests, recorder or Recorder())
    totals = simulate(scheduler, executor, loop.first(num_clients), loop)
    totals.num_requests += loop.num_sent
    totals.num_refused += loop.num_refused
    return totals


class _Clients(Recorder):
    def __init__(self, scheduler: Scheduler, requests: Iterable[RequestSpec], recorder: Recorder):
        self.scheduler, self.recorder = scheduler, recorder
        self.requests = iter(requests)
        self.num_sent = self.num_refused = 0
        self.now_s = 0.0

    def first(self, num_clients: int) -> list[RequestSpec]:
        return [replace(r, arrival_s=0.0) for r in islice(self.requests, num_clients)]

    def on_arrival(self, spec: RequestSpec, now_s: float, refused: str | None) -> None:
        self.recorder.on_arrival(spec, now_s, refused)
        if refused is not None:
            self._send()

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        self.recorder.on_step(scheduler, plan, outcome, start_s, end_s)
        self.now_s = end_s
        for _ in range(len(outcome.finished) + len(plan.dropped)):
            self._send()

    def on_end(self, scheduler: Scheduler, now_s: float) -> None:
        self.recorder.on_end(scheduler, now_s)

    def _send(self) -> None:
        coming = next(self.requests, None)
        if coming is None:
            return
        spec = replace(coming, arrival_s=self.now_s)
        self.num_sent += 1
        refused = self.scheduler.add(spec)
        self.num_refused += refused is not None
        self.on_arrival(spec, self.now_s, refused)
