"""The recorder: listens to the engine loop and keeps what a run has to say.

    recorder = make_recorder("full")
    run_engine(scheduler, executor, load, recorder=recorder)
    recorder.summary()["ttft_s"]["p95"]

Levels: "off" keeps nothing, "summary" the requests and the counters, "full" also one row a step (`Series`) and the lives
of blocks (`BlockWatch`, on a paged cache of the lab).
"""

from __future__ import annotations

from typing import Any, Literal

from labkit.errors import LabError
from labkit.memory.base import Allocator
from labkit.observe.block_watch import BlockWatch
from labkit.observe.percentiles import percentiles, weighted_percentiles
from labkit.observe.records import RequestRecord
from labkit.observe.series import Series
from labkit.observe.token_gaps import TokenGaps
from labkit.serving.base import Recorder, Scheduler, StepOutcome, StepPlan
from labkit.workload.base import RequestSpec

Level = Literal["off", "summary", "full"]


def make_recorder(level: Level = "summary", *, every: int = 1, device: Allocator | None = None) -> Recorder:
    """`every=10` keeps a row of the series for every tenth step; `device` is an allocator to read beside the KV cache.
    Raises `LabError` for an unknown level."""
    if level == "off":
        return Recorder()
    if level not in ("summary", "full"):
        raise LabError(f"unknown recorder level {level!r}; choose one of: off, summary, full")
    return RunRecorder(Series(every, device=device) if level == "full" else None)


class RunRecorder(Recorder):
    """Requests by id in `requests`; one row a step in `series` (None at level summary)."""

    def __init__(self, series: Series | None = None):
        self.series = series
        self.requests: dict[str, RequestRecord] = {}
        self.gaps = TokenGaps()
        self._decode_ends = self.gaps.ends
        self.num_steps = self.num_preemptions = self.num_lost_tokens = 0
        self.num_refused = self.num_dropped = self.num_finished = 0
        self.num_scheduled_tokens = self.num_hit_tokens = 0
        self.busy_s = self.end_s = 0.0
        self.peak_running = 0
        self.blocks: BlockWatch | None = None
        self._watching = False

    # -- called by the engine loop ----------------------------------------------------------------------------

    def on_arrival(self, spec: RequestSpec, now_s: float, refused: str | None) -> None:
        self.requests[spec.request_id] = RequestRecord(
            spec.request_id,
            spec.arrival_s,
            spec.num_prompt_tokens,
            spec.num_output_tokens,
            spec.kind,
            spec.session_id,
            refused=refused,
        )
        if refused is not None:
            self.num_refused += 1

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        requests = self.requests
        if plan.preempted:
            self._preempted(plan)
        if plan.admitted:
            for admitted in plan.admitted:
                record = requests[admitted.request_id]
                if record.admission_s is None:
                    record.admission_s = start_s
                    record.num_hit_tokens = admitted.num_hit_tokens
                    self.num_hit_tokens += admitted.num_hit_tokens
        if plan.dropped:
            self._dropped(plan)
        if plan.num_decode_requests:
            self._decode_ends.append(end_s)
        if outcome.started:
            for request_id in outcome.started:
                record = requests[request_id]
                if record.first_token_s is None:
                    record.first_token_s = end_s
                    self.gaps.first_token(request_id, end_s)
        if outcome.finished:
            self._finished(outcome, end_s)
        self.num_steps += 1
        self.num_scheduled_tokens += plan.num_scheduled_tokens
        self.busy_s += end_s - start_s
        self.end_s = end_s
        if plan.num_running > self.peak_running:
            self.peak_running = plan.num_running
        if self.series is not None:
            self._full(self.series, scheduler, plan, outcome, start_s, end_s)

    def on_end(self, scheduler: Scheduler, now_s: float) -> None:
        self.end_s = max(self.end_s, now_s)
        if self.blocks is not None:
            self.blocks.detach()

    def _finished(self, outcome: StepOutcome, end_s: float) -> None:
        for request_id in outcome.finished:
            record = self.requests[request_id]
            record.finish_s = end_s
            if outcome.truncated and request_id in outcome.truncated:
                record.num_output_tokens = outcome.truncated[request_id]
            self.gaps.finished(request_id, record.num_output_tokens)
        self.num_finished += len(outcome.finished)

    def _dropped(self, plan: StepPlan) -> None:
        for dropped in plan.dropped:
            record = self.requests[dropped.request_id]
            record.dropped, record.num_output_tokens = dropped.reason, dropped.num_output_tokens
            self.gaps.interrupted(dropped.request_id, dropped.num_output_tokens)
        self.num_dropped += len(plan.dropped)

    def _full(
        self,
        series: Series,
        scheduler: Scheduler,
        plan: StepPlan,
        outcome: StepOutcome,
        start_s: float,
        end_s: float,
    ) -> None:
        """What level full adds to a step. The watch is attached after the first one, with its blocks born at its start."""
        if not self._watching:
            self._watching = True
            self.blocks = BlockWatch.of(scheduler, start_s)
        elif self.blocks is not None:
            self.blocks.on_step(len(outcome.finished), start_s, end_s)
        series.step(self, scheduler, plan, outcome, start_s, end_s)

    def _preempted(self, plan: StepPlan) -> None:
        for preempted in plan.preempted:
            record = self.requests[preempted.request_id]
            record.num_preemptions += 1
            if not plan.swapped_bytes:
                record.num_lost_tokens += preempted.num_computed_tokens
                self.num_lost_tokens += preempted.num_computed_tokens
            self.num_preemptions += 1
            if record.first_token_s is not None:
                produced = preempted.num_computed_tokens + 1 - record.num_prompt_tokens
                self.gaps.interrupted(preempted.request_id, max(1, produced))

    # -- asked afterwards -------------------------------------------------------------------------------------

    @property
    def num_live(self) -> int:
        """Requests inside the engine: arrived, not refused, not finished, not dropped."""
        return len(self.requests) - self.num_refused - self.num_finished - self.num_dropped

    def summary(self) -> dict[str, Any]:
        """Counts, rates and percentiles of the run, ready for JSON. Seconds; latencies of finished requests."""
        done = [r for r in self.requests.values() if r.finish_s is not None]
        num_output = sum(r.num_output_tokens for r in done)
        num_prompt = sum(r.num_prompt_tokens for r in self.requests.values() if r.admission_s is not None)
        first = min((r.arrival_s for r in self.requests.values()), default=0.0)
        elapsed = self.end_s - first
        return {
            "num_requests": len(self.requests),
            "num_admitted": sum(r.admission_s is not None for r in self.requests.values()),
            "num_finished": self.num_finished,
            "num_refused": self.num_refused,
            "num_dropped": self.num_dropped,
            "num_preemptions": self.num_preemptions,
            "num_preempted_requests": sum(r.num_preemptions > 0 for r in self.requests.values()),
            "num_lost_tokens": self.num_lost_tokens,
            "num_steps": self.num_steps,
            "peak_running": self.peak_running,
            "elapsed_s": elapsed,
            "busy_s": self.busy_s,
            "output_tokens_per_s": num_output / elapsed if elapsed > 0 else 0.0,
            "prefix_hit_ratio": self.num_hit_tokens / num_prompt if num_prompt else 0.0,
            "queue_s": percentiles(r.queue_s for r in done),
            "ttft_s": percentiles(r.ttft_s for r in done),
            "tpot_s": percentiles(r.tpot_s for r in done),
            "itl_s": weighted_percentiles(*self.gaps.weighted()),
            "e2e_s": percentiles(r.e2e_s for r in done),
        }

    def requests_frame(self) -> Any:
        """One row a request, as a pandas DataFrame; latencies beside the instants."""
        import pandas as pd

        names = list(RequestRecord.__slots__)
        rows = [[getattr(r, n) for n in names] for r in self.requests.values()]
        frame = pd.DataFrame(rows, columns=names)
        for name in ("queue_s", "ttft_s", "tpot_s", "e2e_s"):
            frame[name] = [getattr(r, name) for r in self.requests.values()]
        return frame

    def series_frame(self) -> Any:
        """One row a recorded step, as a pandas DataFrame. Raises `LabError` at level summary."""
        if self.series is None:
            raise LabError("this run was recorded at level summary; series need level full")
        return self.series.frame()
