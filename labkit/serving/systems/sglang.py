"""SGLang 0.5.23 as a scheduler of the lab: the same decisions in every step (`managers/scheduler.py`).

A step is a prefill or a decode, never both (unless `enable_mixed_chunk`): if a prefill batch can be formed it runs alone
and decoding waits. One step of `schedule`:

    settle    checkpoint the cut request, merge the last prefill into the running list, drop what finished
    prefill   sort the queue, admit what fits (`PrefillAdder`), allocate
    decode    otherwise: evict, or retract those with the fewest outputs, then one token for each running request

Decoding requests are not touched one by one (`sglang_request.py`); lists are, only when membership changes.
The server's default loop overlaps this with the GPU, one batch behind; here, as in the recordings, it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.errors import LabError
from labkit.serving.base import (
    Admitted,
    Dropped,
    Preempted,
    Scheduler,
    StepOutcome,
    StepPlan,
    StepResult,
    WaitingReason,
)
from labkit.serving.systems.sglang_adder import PrefillAdder, Verdict
from labkit.serving.systems.sglang_chunks import chunks_of
from labkit.serving.systems.sglang_explain import check_scheduler, refusal, why
from labkit.serving.systems.sglang_memory import RETRACT_DECODE_STEPS, RequestMemory
from labkit.serving.systems.sglang_options import SglangOptions
from labkit.serving.systems.sglang_policy import QueueOrder
from labkit.serving.systems.sglang_ratio import NewTokenRatio
from labkit.serving.systems.sglang_request import Req
from labkit.serving.systems.sglang_tokens import TokenSource
from labkit.workload.base import RequestSpec


class SglangScheduler(Scheduler):
    """`SglangScheduler(max_total_tokens=65536, schedule_policy="lpm")`, or an `SglangOptions`, or a mapping of names.

    `record_chunks`: plans carry what each request computes, with page ids. `as_recorded`: behave like the bare
    scheduler that the recordings drive, which refuses nothing on arrival and has no idle hook.
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
        self.memory = RequestMemory(options, with_ids=record_chunks, split_keeps_age=split_keeps_age)
        self.pool, self.tree = self.memory.pool, self.memory.tree
        self.order = QueueOrder(options, self.tree)
        self.ratio = NewTokenRatio(options.schedule_conservativeness)
        self.source = TokenSource()
        self.requests: dict[str, Req] = {}
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.chunked: Req | None = None
        self.batch_is_full = False
        self.mode: str | None = None
        self.extend_rows: list[Req] = []
        self.decode_rows: Sequence[Req] = ()
        self.retracted: list[Req] = []
        self.clock = 0
        self.num_kv_tokens = 0
        self.num_decoding = 0
        self.num_pages_due = [0] * options.page_size
        self.processed_tokens = 0
        self._last_outputs: dict[int, list[Req]] = {}
        self._step = 0
        self._entries = 0
        self._rank = 0
        self._drop_finished = False
        self._decodes_left = 0
        #: between `schedule` and `update`: pages of this step's tokens are taken, but not yet computed
        self.step_is_open = False
        self.pages_taken_now = 0

    # -- the contract ------------------------------------------------------------------------------------------

    def add(self, spec: RequestSpec) -> str | None:
        if spec.request_id in self.requests:
            raise LabError(f"request {spec.request_id!r} is already queued or running; ids must be unique")
        if spec.num_prompt_tokens < 1 or spec.num_output_tokens < 1:
            raise LabError(
                f"request {spec.request_id!r} has {spec.num_prompt_tokens} prompt and {spec.num_output_tokens} output "
                "tokens; both must be at least 1"
            )
        max_new = spec.num_output_tokens if spec.max_output_tokens is None else spec.max_output_tokens
        if not self.as_recorded and (reason := refusal(self, spec, max_new)):
            return reason
        req = Req(
            spec=spec,
            prompt=self.source.prompt(spec),
            max_new_tokens=max_new,
            target_outputs=min(spec.num_output_tokens, max_new),
            first_output_token=self.source.reserve(spec.num_output_tokens),
            priority=spec.priority if self.options.enable_priority_scheduling or not self.as_recorded else 0,
        )
        self.requests[spec.request_id] = req
        self._queue(req)
        return None

    def has_work(self) -> bool:
        """Asking is what the server's loop does; when the answer is no it runs its idle hook, which resets the ratio."""
        if self.requests:
            return True
        if not self.as_recorded:
            self.ratio.reset()
        return False

    def schedule(self) -> StepPlan:
        plan = StepPlan(self._step)
        self.step_is_open, self.pages_taken_now = True, 0
        self._step += 1
        if self.retracted:
            self.retracted = []
        if self.memory.evictions:
            self.memory.evictions = []
        self._settle()
        self.mode = None
        self.extend_rows, self.decode_rows = [], ()
        if not self._prefill_must_wait():
            self._prefill(plan)
        if self.mode is None and self.running:
            self._decode(plan)
        plan.num_running = len(self.running) + len(self.extend_rows)
        if self.mode == "mixed":
            plan.num_running += len(self.decode_rows)
        if self.decode_rows:
            plan.num_decode_requests = len(self.decode_rows)
            plan.num_scheduled_tokens += len(self.decode_rows)
            plan.num_kv_tokens_read += self.num_kv_tokens
        if self.record_chunks:
            plan.chunks = chunks_of(self)
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> StepOutcome:
        """Results in batch order: prefills, then decodes (`batch_result_processor.py`)."""
        self.step_is_open = False
        started: list[str] = []
        finished: list[Req] = []
        if result.tokens is not None:
            self._keep_sampled(result.tokens)
        if self.decode_rows:
            self.clock += 1
            self.num_kv_tokens += self.num_decoding
        for req in self.extend_rows:
            if req is not self.chunked:
                self._first_token(req, started, finished)
        if self.decode_rows and (done := self._last_outputs.pop(self.clock, None)):
            done = [r for r in done if r.last_at == self.clock]
            done.sort(key=lambda r: r.rank)
            for req in done:
                self._leave_decoding(req)
                self._finish(req)
            finished += done
            self._drop_finished = True
        return self._outcome(started, finished) if started or finished else StepOutcome()

    def why_waiting(self, request_id: str) -> WaitingReason:
        return why(self, request_id)

    def check_integrity(self) -> None:
        check_scheduler(self)

    def _outcome(self, started: list[str], finished: list[Req]) -> StepOutcome:
        cut = {r.id: r.num_outputs for r in finished if r.num_outputs < r.spec.num_output_tokens}
        return StepOutcome(started, [r.id for r in finished], cut or None)

    # -- one step ----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """First part of `get_next_batch_to_run`."""
        chunked = self.chunked
        if chunked is not None and chunked.extend_end > chunked.prefix_len:
            self.memory.checkpoint(chunked, self.clock)
        if self.extend_rows:
            rows = [*self.extend_rows, *self.decode_rows] if self.mode == "mixed" else self.extend_rows
            kept = [r for r in rows if not r.finished and r is not chunked]
            if len(kept) < len(rows):
                self.batch_is_full = False
            if kept and not self.running:
                self.batch_is_full = False
            self.running.extend(kept)
            for req in kept:
                self._rank += 1
                req.rank = self._rank
        if self._drop_finished:
            self._drop_finished = False
            num_before = len(self.running)
            self.running = [r for r in self.running if not r.finished]
            if len(self.running) < num_before:
                self.batch_is_full = False

    def _prefill_must_wait(self) -> bool:
        """`prefill_decode_interval`: so many decode steps between two prefills."""
        if self._decodes_left == 0:
            return False
        if len(self.running) < self.options.prefill_decode_interval_min_bs:
            self._decodes_left = 0
            return False
        self._decodes_left -= 1
        return True

    def _prefill(self, plan: StepPlan) -> None:
        """`_get_new_batch_prefill_raw`: leaves `mode` None when nothing was admitted."""
        options, running = self.options, self.running
        preempts = options.preempts_by_priority
        if preempts or not running:
            self.batch_is_full = False
        if (self.batch_is_full or not self.waiting) and self.chunked is None:
            return
        if len(running) >= options.max_running_requests and self.chunked is None and not preempts:
            self.batch_is_full = True
            return
        self.order.sort(self.waiting, self.processed_tokens)
        adder = PrefillAdder(
            options, self.tree, self.pool, running, self.ratio.current, self.clock, release=self._retract
        )
        if (chunked := self.chunked) is not None:
            limit = self.order.chunk_limit(chunked, self.waiting, adder.rem_chunk or 0, options.page_size)
            self.chunked = adder.add_chunked(chunked, limit)
        num_continued = len(adder.admitted)
        self._admit(adder)
        admitted = adder.admitted
        if not admitted:
            self._requeue(adder.preempted, plan)
            return
        del self.waiting[: len(admitted) - num_continued]
        self._requeue(adder.preempted, plan)
        if adder.new_chunked is not None:
            assert self.chunked is None
            self.chunked = adder.new_chunked
        self.memory.allocate_extend(admitted)
        self._start_extend(plan, admitted, num_continued)
        if options.enable_mixed_chunk and options.chunk_tokens and running:
            self._mix()

    def _admit(self, adder: PrefillAdder) -> None:
        """Walk the queue from its head until somebody does not fit: nobody overtakes."""
        options, preempts = self.options, self.options.preempts_by_priority
        for req in self.waiting:
            if adder.budget_state() is Verdict.OTHER:
                return
            if len(adder.admitted) >= options.max_running_requests - len(self.running):
                self.batch_is_full = True
            if self.batch_is_full and not (preempts and adder.preempt_for(req)):
                return
            self.memory.match(req)
            verdict = adder.add_one(req, self.chunked is not None)
            if verdict is Verdict.NO_TOKEN:
                self.batch_is_full = bool(adder.admitted or self.running)
            if verdict is not Verdict.CONTINUE:
                return

    def _start_extend(self, plan: StepPlan, admitted: list[Req], num_continued: int) -> None:
        self.mode = "extend"
        self.extend_rows = admitted
        self._decodes_left = self.options.prefill_decode_interval
        pairs = 0.0
        for req in admitted:
            length = req.extend_end - req.prefix_len
            plan.num_prefill_tokens += length
            plan.num_kv_tokens_read += req.prefix_len
            pairs += length * (req.prefix_len + (length + 1) / 2)
        plan.num_prefill_pairs = int(pairs)
        plan.admitted = [
            Admitted(r.id, r.prefix_len, r.num_retractions > 0) for r in admitted[num_continued:]
        ]
        plan.num_scheduled_tokens = plan.num_prefill_tokens
        self.processed_tokens += plan.num_prefill_tokens

    def _mix(self) -> None:
        """`enable_mixed_chunk`: decode rows join the prefill if they find room; they are not retracted for it."""
        if not self.memory.make_room(self._pages_due() * self.options.page_size):
            return
        self._take_decode_slots()
        for req in self.running:
            req.fill_len = req.seqlen(self.clock)
        self.decode_rows, self.running = self.running, []
        self.mode = "mixed"

    def _decode(self, plan: StepPlan) -> None:
        """`update_running_batch`."""
        if self.memory.make_room(self._pages_due() * self.options.page_size):
            self.ratio.decay_step()
        else:
            self._retract_decode(plan)
            self.batch_is_full = False
            if not self.running:
                return
        self._take_decode_slots()
        self.mode = "decode"
        self.decode_rows = self.running

    def _take_decode_slots(self) -> None:
        page_size, num_rows = self.options.page_size, len(self.running)
        if page_size > 1:
            self.memory.make_room(num_rows * page_size)
        self.pages_taken_now = self._pages_due()
        if pages := self.pool.take(self.pages_taken_now):
            at = iter(pages)
            for req in self.running:
                if req.committed(self.clock) % page_size == 0:
                    req.pages.append(next(at))

    def _pages_due(self) -> int:
        """Pages that the next decode step needs: one for each request whose computed length is a whole number of pages."""
        if self.options.page_size == 1:
            return self.num_decoding
        return self.num_pages_due[self.clock % self.options.page_size]

    # -- retraction --------------------------------------------------------------------------------------------

    def _retract_decode(self, plan: StepPlan) -> None:
        """Drop those with the fewest outputs, then the longest prompt, until the step fits; one always stays. The running
        list stays in the sorted order."""
        clock, page_size = self.clock, self.options.page_size
        sign = -1 if self.options.schedule_low_priority_values_first else 1
        by_priority = self.options.retraction_policy == "priority"
        kept = sorted(
            self.running,
            key=lambda r: (r.priority * sign if by_priority else 0, r.outputs(clock), -r.num_prompt),
            reverse=True,
        )

        def fits() -> bool:
            return self.memory.make_room(sum(r.committed(clock) % page_size == 0 for r in kept) * page_size)

        dropped: list[Req] = []
        while not dropped or not fits():
            if len(kept) == 1:
                break
            victim = kept.pop()
            self._retract(victim, len(kept))
            dropped.append(victim)
        if len(kept) <= 1 and not fits():
            self._abort(kept.pop(), plan)
        self.running = kept
        self._renumber()
        num_outputs, num_max = sum(r.outputs(clock) for r in kept), sum(r.max_new_tokens for r in kept)
        self.ratio.after_retraction(num_outputs, num_max, len(kept))
        self._requeue(dropped, plan)

    def _retract(self, req: Req, num_left: int) -> None:
        """Release without inserting, then evict down to some steps of room for those that stay, so that its own prompt
        usually goes too."""
        self._leave_decoding(req)
        req.num_blocks_given = self.pool.pages_for(req.extend_end)
        self.memory.release(req, self.clock, insert=False)
        self.memory.make_room(num_left * RETRACT_DECODE_STEPS)

    def _requeue(self, reqs: Sequence[Req], plan: StepPlan) -> None:
        """Retracted and preempted requests go to the end of the queue."""
        if not reqs:
            return
        plan.preempted = [*plan.preempted, *(Preempted(r.id, r.num_blocks_given, r.extend_end) for r in reqs)]
        self.retracted += reqs
        for req in reqs:
            req.reset_for_retract()
            self._queue(req)

    def _abort(self, req: Req, plan: StepPlan) -> None:
        """Even alone it does not fit: the server ends it with an error."""
        self._leave_decoding(req)
        self.memory.release(req, self.clock, insert=False)
        req.finished = True
        del self.requests[req.id]
        reason = "out of memory even after retracting all other requests of the decode batch"
        plan.dropped = [Dropped(req.id, req.num_outputs, reason)]

    # -- a request's life --------------------------------------------------------------------------------------

    def _queue(self, req: Req) -> None:
        self._entries += 1
        req.queue_entry = self._entries
        req.processed_at_entry = self.processed_tokens
        self.waiting.append(req)

    def _first_token(self, req: Req, started: list[str], finished: list[Req]) -> None:
        """A prefill that reached the end of the known tokens samples one."""
        req.num_outputs += 1
        if req.num_outputs == 1:
            started.append(req.id)
        if req.num_outputs >= req.target_outputs:
            self._finish(req)
            finished.append(req)
            return
        self.memory.checkpoint(req, self.clock)
        req.start_decoding(self.clock)
        self._last_outputs.setdefault(req.last_at, []).append(req)
        self.num_decoding += 1
        self.num_kv_tokens += req.extend_end
        self.num_pages_due[(self.clock - req.extend_end) % self.options.page_size] += 1

    def _leave_decoding(self, req: Req) -> None:
        req.stop_decoding(self.clock)
        self.num_decoding -= 1
        self.num_kv_tokens -= req.extend_end
        self.num_pages_due[(self.clock - req.extend_end) % self.options.page_size] -= 1

    def _finish(self, req: Req) -> None:
        req.finished = True
        self.memory.release(req, self.clock, insert=True)
        del self.requests[req.id]

    def _renumber(self) -> None:
        for req in self.running:
            self._rank += 1
            req.rank = self._rank

    def _keep_sampled(self, tokens: Mapping[str, int]) -> None:
        for req in (*(r for r in self.extend_rows if r is not self.chunked), *self.decode_rows):
            if req.sampled is None:
                req.sampled = []
            req.sampled.append(tokens[req.id])
