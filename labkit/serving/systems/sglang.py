"""SGLang 0.5.23 as a scheduler of the lab: the same decisions in every step (`managers/scheduler.py`).

A step is a prefill or a decode, never both (unless `enable_mixed_chunk`): if a prefill batch can be formed it runs alone
and decoding waits. One step of `schedule`:

    settle    checkpoint the cut request, merge the last prefill into the running list, drop what finished
    prefill   sort the queue, admit what fits, allocate                       sglang_prefill.py, sglang_adder.py
    decode    otherwise: evict or retract, then a token for each running one  sglang_decode.py

Decoding requests are not touched one by one (`sglang_decoding.py`); lists are, only when membership changes.
The server's default loop overlaps this with the GPU, one batch behind; here, as in the recordings, it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.errors import LabError
from labkit.serving.base import Scheduler, StepOutcome, StepPlan, StepResult, WaitingReason
from labkit.serving.systems.sglang_chunks import chunks_of
from labkit.serving.systems.sglang_decode import run_decode
from labkit.serving.systems.sglang_explain import refusal, why
from labkit.serving.systems.sglang_integrity import check_state
from labkit.serving.systems.sglang_options import SglangOptions
from labkit.serving.systems.sglang_prefill import prefill_must_wait, run_prefill
from labkit.serving.systems.sglang_request import Req
from labkit.serving.systems.sglang_state import SglangState
from labkit.workload.base import RequestSpec


class SglangScheduler(Scheduler):
    """`SglangScheduler(max_total_tokens=65536, schedule_policy="lpm")`, or with an `SglangOptions`, or a mapping.

    `record_chunks`: plans carry what each request computes, with page ids. `as_recorded`: behave like the bare scheduler
    that the recordings drive, which refuses nothing on arrival and has no idle hook. `split_keeps_age`: see `RadixTree`.
    """

    name = "sglang"

    def __init__(
        self,
        options: SglangOptions | Mapping[str, Any] | None = None,
        *,
        record_chunks: bool = False,
        as_recorded: bool = False,
        split_keeps_age: bool = True,
        **named: Any,
    ):
        if not isinstance(options, SglangOptions):
            options = SglangOptions.from_dict({**(options or {}), **named})
        elif named:
            raise LabError(f"give SglangOptions or single options, not both (got {', '.join(named)})")
        if not as_recorded:
            options.check_combinations()
        self.options = options
        self.record_chunks = record_chunks
        self.as_recorded = as_recorded
        self.state = SglangState(options, with_ids=record_chunks, split_keeps_age=split_keeps_age)
        self._num_steps = 0

    @property
    def waiting(self) -> list[Req]:
        """In queue order."""
        return self.state.waiting

    @property
    def running(self) -> list[Req]:
        """Those that decode; what the last step prefilled joins them in the next one."""
        return self.state.running

    def add(self, spec: RequestSpec) -> str | None:
        """The maximum of outputs is `max_output_tokens`, or what it will generate where the load names no maximum."""
        state = self.state
        _check(spec, state)
        max_new = spec.num_output_tokens if spec.max_output_tokens is None else spec.max_output_tokens
        if not self.as_recorded and (reason := refusal(state, spec, max_new)):
            return reason
        keeps_priority = self.options.enable_priority_scheduling or not self.as_recorded
        req = Req(
            spec=spec,
            prompt=state.source.prompt(spec),
            max_new_tokens=max_new,
            target_outputs=min(spec.num_output_tokens, max_new),
            first_output_token=state.source.reserve(spec.num_output_tokens),
            priority=spec.priority if keeps_priority else 0,
        )
        state.requests[spec.request_id] = req
        state.queue(req)
        return None

    def has_work(self) -> bool:
        """Asking is what the server's loop does; when the answer is no it runs its idle hook, which resets the ratio."""
        if self.state.requests:
            return True
        if not self.as_recorded:
            self.state.ratio.reset()
        return False

    def schedule(self) -> StepPlan:
        state = self.state
        plan = StepPlan(self._num_steps)
        self._num_steps += 1
        if state.retracted:
            state.retracted = []
        if state.memory.evictions:
            state.memory.evictions = []
        _settle(state)
        state.mode, state.extend_rows, state.decode_rows = None, [], ()
        if not prefill_must_wait(state):
            run_prefill(state, plan)
        if state.mode is None and state.running:
            run_decode(state, plan)
        plan.num_running = len(state.running) + len(state.extend_rows)
        if state.decode_rows:
            num_rows = len(state.decode_rows)
            if state.mode == "mixed":
                plan.num_running += num_rows
            plan.num_decode_requests = num_rows
            plan.num_scheduled_tokens += num_rows
            plan.num_kv_tokens_read += state.decoding.num_kv_tokens
        if self.record_chunks:
            plan.chunks = chunks_of(state)
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> StepOutcome:
        """Results in batch order: prefills, then decodes (`batch_result_processor.py`)."""
        state = self.state
        state.num_pages_taken = 0
        if result.tokens:
            _keep_sampled(state, result.tokens)
        done = state.decoding.advance() if state.decode_rows else []
        started: list[str] = []
        finished: list[Req] = []
        for req in state.extend_rows:
            if req is not state.chunked:
                _first_token(state, req, started, finished)
        for req in done:
            state.decoding.leave(req)
            state.finish(req)
            state.has_finished = True
        finished += done
        if not started and not finished:
            return StepOutcome()
        cut = {r.request_id: r.num_outputs for r in finished if r.num_outputs < r.spec.num_output_tokens}
        return StepOutcome(started, [r.request_id for r in finished], cut or None)

    def why_waiting(self, request_id: str) -> WaitingReason:
        return why(self.state, request_id)

    def check_integrity(self) -> None:
        check_state(self.state)


def _check(spec: RequestSpec, state: SglangState) -> None:
    if spec.request_id in state.requests:
        raise LabError(f"request {spec.request_id!r} is already queued or running; ids must be unique")
    max_new = spec.num_output_tokens if spec.max_output_tokens is None else spec.max_output_tokens
    for what, count in (("prompt", spec.num_prompt_tokens), ("output", min(spec.num_output_tokens, max_new))):
        if count < 1:
            raise LabError(f"request {spec.request_id!r} has {count} {what} tokens; at least 1 is needed")


def _settle(state: SglangState) -> None:
    """First part of `get_next_batch_to_run`."""
    chunked = state.chunked
    if chunked is not None and chunked.extend_end > chunked.prefix_len:
        state.memory.checkpoint(chunked, state.clock)
    if state.extend_rows:
        rows = [*state.extend_rows, *state.decode_rows] if state.mode == "mixed" else state.extend_rows
        kept = [r for r in rows if not r.finished and r is not chunked]
        if len(kept) < len(rows) or (kept and not state.running):
            state.batch_is_full = False
        state.running.extend(kept)
        state.rank(kept)
    if state.has_finished:
        state.has_finished = False
        num_before = len(state.running)
        state.running = [r for r in state.running if not r.finished]
        if len(state.running) < num_before:
            state.batch_is_full = False


def _first_token(state: SglangState, req: Req, started: list[str], finished: list[Req]) -> None:
    """A prefill that reached the end of the known tokens samples one."""
    req.num_outputs += 1
    if req.num_outputs == 1:
        started.append(req.request_id)
    if req.num_outputs >= req.target_outputs:
        state.finish(req)
        finished.append(req)
    else:
        state.memory.checkpoint(req, state.clock)
        state.decoding.enter(req)


def _keep_sampled(state: SglangState, tokens: Mapping[str, int]) -> None:
    for req in (*(r for r in state.extend_rows if r is not state.chunked), *state.decode_rows):
        if req.sampled is None:
            req.sampled = []
        req.sampled.append(tokens[req.request_id])
