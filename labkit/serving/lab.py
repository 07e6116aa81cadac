"""The lab's scheduler: four parts and the order in which they are asked.

    scheduler = LabScheduler(
        kv,
        order=FirstComeFirstServed(),
        admission=BlockAdmission(headroom=0.05),
        batching=Chunked(max_num_batched_tokens=2048),
        pressure=PreemptRecompute(),
    )

A step fills the phases of its batch composition in order, then all decoding requests advance together (`DecodeTable`).
Slots are asked for when they are needed: a decoding request meets the cache manager again only when its last block is
full, so a step costs what is decided in it, not what runs in it.
"""

from __future__ import annotations

from typing import Any

from labkit.errors import LabError
from labkit.kv.base import KVCacheManager
from labkit.serving.admission import Admission, BlockAdmission
from labkit.serving.base import Admitted, Chunk, Scheduler, StepOutcome, StepPlan, StepResult, WaitingReason
from labkit.serving.batching import BatchComposition, Chunked
from labkit.serving.decoding import by_seq
from labkit.serving.order import FirstComeFirstServed, QueueOrder
from labkit.serving.pressure import PreemptRecompute, PressureResponse
from labkit.serving.request import Request
from labkit.serving.running import RunningSet
from labkit.serving.waiting import explain, limit_of
from labkit.workload.base import RequestSpec


class LabScheduler(RunningSet, Scheduler):
    """`max_num_seqs` bounds the running set, `max_model_len` prompt and output together (None: a request that does not
    say its maximum may fill the cache)."""

    name = "lab"

    def __init__(
        self,
        kv: KVCacheManager,
        *,
        order: QueueOrder | None = None,
        admission: Admission | None = None,
        batching: BatchComposition | None = None,
        pressure: PressureResponse | None = None,
        max_num_seqs: int = 256,
        max_model_len: int | None = None,
        record_chunks: bool = False,
    ):
        if max_num_seqs < 1:
            raise LabError(f"max_num_seqs={max_num_seqs} admits nobody; start at 1")
        super().__init__(
            kv,
            order or FirstComeFirstServed(),
            admission or BlockAdmission(),
            batching or Chunked(),
            pressure or PreemptRecompute(),
        )
        self.max_num_seqs, self.max_model_len, self.record_chunks = max_num_seqs, max_model_len, record_chunks
        self.step = self._num_arrivals = 0
        self._decodes = False  # does the step that is being decided decode?

    # --- contract ----------------------------------------------------------------------------------------------------

    def add(self, spec: RequestSpec) -> str | None:
        if spec.request_id in self.live:
            raise LabError(f"request {spec.request_id!r} is already here; ids are unique among live requests")
        if self.max_model_len is None:
            room = spec.max_output_tokens or max(1, self.kv.capacity_tokens - spec.num_prompt_tokens)
        else:
            room = self.max_model_len - spec.num_prompt_tokens
        if room < 1:
            return (
                f"request {spec.request_id} has a prompt of {spec.num_prompt_tokens} tokens; the model's maximum of "
                f"{self.max_model_len} leaves no room for an answer"
            )
        allowed = room if spec.max_output_tokens is None else min(room, spec.max_output_tokens)
        target = min(allowed, spec.num_output_tokens)
        request = Request(spec, self._num_arrivals, self.step, allowed, target)
        self._num_arrivals += 1
        never = self.admission.never_fits(request, self.space) or self.pressure.never_fits(
            request, self.space
        )
        if never is None:
            self.live[spec.request_id] = request
            self.waiting.push(request)
        return never

    def schedule(self) -> StepPlan:
        plan = StepPlan(self.step)
        self.step += 1
        self._decodes = False
        batching = self.batching
        batching.start(self)
        for phase in batching.phases:
            if not batching.mixes and (self.chunks if phase == "decode" else self._decodes):
                break  # the step already holds the other kind
            if phase == "decode":
                self._decode(plan)
            elif phase == "prefill":
                if self.prefilling:
                    self._prefill(plan)
            elif len(self.waiting) and not plan.preempted:
                self._admit(plan)
        self._count(plan)
        if self.record_chunks:
            plan.chunks = self._list_chunks()
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> StepOutcome:
        outcome = StepOutcome()
        finished: list[Request] = []
        if result.tokens:
            for request_id, token in result.tokens.items():
                self.live[request_id].output_token_ids.append(token)
        if self._decodes:
            finished = self.table.advance()
        if self.chunks:
            finished = finished + self._advance_chunks(outcome)
        for request in finished:
            self.release(request)
        if self.ending:
            finished, self.ending = self.ending + finished, []
        if finished:
            self._finish(finished, outcome)
        return outcome

    def has_work(self) -> bool:
        return bool(self.live)

    def why_waiting(self, request_id: str) -> WaitingReason:
        request = self.live.get(request_id)
        if request is None or request.status not in ("waiting", "swapped"):
            waiting = ", ".join([r.request_id for r in self.waiting][:5]) or "nobody"
            raise LabError(f"request {request_id!r} is not waiting; waiting: {waiting}")
        return explain(self, request)

    # --- the three phases --------------------------------------------------------------------------------------------

    def _decode(self, plan: StepPlan) -> None:
        table, space = self.table, self.space
        rows = table.due()
        if self.stalled:
            rows = sorted(rows + self.stalled, key=by_seq)
        for request in rows:  # one of them may have been preempted for another meanwhile
            if request.status == "decoding":
                if self.grow(plan, request, table.computed(request) + 1):
                    table.set_due(request, request.num_placed_tokens + space.room(request))
            elif request.status == "stalled" and self.grow(plan, request, request.num_computed_tokens + 1):
                self.start_decode(request)
        self._decodes = table.num_decoding > 0

    def _prefill(self, plan: StepPlan) -> None:
        for request in self.prefilling.copy():
            if request.status != "prefilling":
                continue  # preempted earlier in this step
            chunk = self.batching.chunk(request, request.num_known_tokens - request.num_computed_tokens)
            if chunk and self.grow(plan, request, request.num_computed_tokens + chunk):
                self._schedule_chunk(request, chunk)

    def _admit(self, plan: StepPlan) -> None:
        for request in self.waiting:
            joined = limit_of(self, request) is None and self._join(plan, request)
            if not joined and not self.order.passes_over(request):
                break

    def _join(self, plan: StepPlan, request: Request) -> bool:
        """Place it and schedule its first chunk. False when its memory, or its share of the step, is not there."""
        known, hit, first = self.first_chunk(request)
        if first == hit or self.admission.refusal(
            request, first - hit, hit, self.space, len(self.running), self.num_tokens_after_step
        ):
            return False
        admission = self.kv.admit(
            request.request_id,
            first,
            max_tokens=request.max_tokens if self.admission.can_ever_fit else first,
            final_tokens=request.num_prompt_tokens + request.target_output_tokens,
            priority=request.spec.priority,
            **known,
        )
        if not admission.admitted:
            return False
        self.waiting.remove(request)
        self.waiting.touch()
        request.num_told_ids = len(request.output_token_ids) if "token_ids" in known else -1
        self.enter(request, first)
        plan.admitted = [
            *plan.admitted,
            Admitted(request.request_id, admission.num_hit_tokens, request.num_preemptions > 0),
        ]
        if admission.moves:
            plan.moves = [*plan.moves, *admission.moves]
        if request.status == "swapped":  # it decodes at once, where decodes and admissions share a step
            plan.swapped_bytes += request.num_computed_tokens * self.kv.bytes_per_token
            self.start_decode(request)
            self.batching.take(request, 1)
            self._decodes = self.batching.mixes
        else:
            self.start_prefill(request, admission.num_hit_tokens)
            self._schedule_chunk(request, first - admission.num_hit_tokens)
        return True

    def first_chunk(self, request: Request) -> tuple[dict[str, Any], int, int]:
        """What it would join with now: its content as a cache knows it, how many tokens of it are cached, and where the
        tokens end that its first step places (the number cached when the step has no token left for it)."""
        if request.status == "swapped":
            return {}, 0, request.num_computed_tokens + 1
        known = self.space.known(request)
        hit = self.space.lookup(known)
        return known, hit, hit + self.batching.chunk(request, request.num_known_tokens - hit)

    def _schedule_chunk(self, request: Request, num_tokens: int) -> None:
        self.chunks[request] = num_tokens
        self.batching.take(request, num_tokens)

    # --- after the step, and what is said about it -------------------------------------------------------------------

    def _advance_chunks(self, outcome: StepOutcome) -> list[Request]:
        """Chunks are computed; one that reaches the last known token samples. Returns requests that are done with it."""
        done = []
        for request, num_tokens in self.chunks.items():
            self.computed(request, num_tokens)
            if request.num_computed_tokens < request.num_known_tokens:
                continue
            if request.num_output_tokens == 0:
                outcome.started = [*outcome.started, request.request_id]
            request.num_output_tokens += 1
            if request.num_output_tokens >= request.target_output_tokens:
                done.append(request)
            else:
                self.start_decode(request)
        self.chunks = {}
        return done

    def _finish(self, finished: list[Request], outcome: StepOutcome) -> None:
        """They have left the running set already."""
        short = {}
        for request in finished:
            request.status = "finished"
            del self.live[request.request_id]
            if request.num_output_tokens < request.spec.num_output_tokens:
                short[request.request_id] = request.num_output_tokens
        outcome.finished = [r.request_id for r in finished]
        outcome.truncated = short or None

    def _count(self, plan: StepPlan) -> None:
        if self._decodes:
            plan.num_decode_requests = plan.num_scheduled_tokens = self.table.num_decoding
            plan.num_kv_tokens_read = self.table.num_kv_tokens
        for request, num_tokens in self.chunks.items():
            start = request.num_computed_tokens
            plan.num_prefill_tokens += num_tokens
            plan.num_kv_tokens_read += start
            plan.num_prefill_pairs += num_tokens * start + num_tokens * (num_tokens + 1) // 2
        plan.num_scheduled_tokens += plan.num_prefill_tokens
        plan.num_running = len(self.running)

    def _list_chunks(self) -> list[Chunk]:
        """What each request computes, in admission order; tables as they are after the last append of the step."""
        rows = []
        for request_id, request in self.running.items():
            if request in self.chunks:
                start, num_tokens = request.num_computed_tokens, self.chunks[request]
                samples = start + num_tokens == request.num_known_tokens
            elif request.status == "decoding" and self._decodes:
                start, num_tokens, samples = self.table.computed(request), 1, True
            else:
                continue
            table = tuple(self.kv.block_table(request_id))
            rows.append(Chunk(request_id, start, num_tokens, samples, table, self.kv.base_slot(request_id)))
        return rows
