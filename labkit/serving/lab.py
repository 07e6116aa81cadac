"""The lab's scheduler: four parts and the bookkeeping between them.

    scheduler = LabScheduler(
        kv,
        order=FirstComeFirstServed(),
        admission=BlockAdmission(headroom=0.05),
        batching=Chunked(max_num_batched_tokens=2048),
        pressure=PreemptRecompute(),
    )

A step fills the phases of its batch composition in order, then decoding requests advance together (`DecodeTable`).
Slots are asked for when they are needed: a decoding request meets the cache manager again only when its last block is
full, so a step costs what is decided in it, not what runs in it.
"""

from __future__ import annotations

from labkit.errors import LabError, require
from labkit.kv.base import KVCacheManager, KVStats, NoSpace
from labkit.serving.admission import Admission, BlockAdmission
from labkit.serving.base import (
    Admitted,
    Chunk,
    Dropped,
    Preempted,
    Scheduler,
    StepOutcome,
    StepPlan,
    StepResult,
    WaitingReason,
)
from labkit.serving.batching import BatchComposition, Chunked
from labkit.serving.decoding import DecodeTable
from labkit.serving.order import FirstComeFirstServed, QueueOrder, WaitingQueue
from labkit.serving.pressure import PreemptRecompute, PressureResponse
from labkit.serving.request import Request
from labkit.serving.space import Space
from labkit.serving.waiting import explain, limit_of
from labkit.workload.base import RequestSpec


class LabScheduler(Scheduler):
    """`running` holds the admitted requests in admission order; of these, `prefilling` and `stalled` are listed apart
    and the rest decodes. `max_num_seqs` bounds the running set."""

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
        max_model_len: int = 1 << 30,
        record_chunks: bool = False,
    ):
        if max_num_seqs < 1:
            raise LabError(f"max_num_seqs={max_num_seqs} admits nobody; start at 1")
        self.kv, self.space = kv, Space(kv)
        self.order = order or FirstComeFirstServed()
        self.admission = admission or BlockAdmission()
        self.batching = batching or Chunked()
        self.pressure = pressure or PreemptRecompute()
        self.max_num_seqs, self.max_model_len, self.record_chunks = max_num_seqs, max_model_len, record_chunks
        self.table = DecodeTable()
        self.waiting = WaitingQueue(self.order, self.space)
        self.running: dict[str, Request] = {}
        self.prefilling: list[Request] = []
        self.stalled: list[Request] = []
        self.step = 0
        self._live: dict[str, Request] = {}
        self._num_arrivals = self._num_admissions = 0
        self._num_placed_tokens = self._num_idle_tokens = (
            0  # of all running; computed ones of those that do not decode
        )
        self._chunks: dict[Request, int] = {}  # prefill chunks of this step
        self._decodes = False  # does this step decode?
        self._ending: list[Request] = []  # ended early in this step: they count as finished in its outcome

    # --- contract ----------------------------------------------------------------------------------------------------

    def add(self, spec: RequestSpec) -> str | None:
        if spec.request_id in self._live:
            raise LabError(f"request {spec.request_id!r} is already here; ids are unique among live requests")
        if spec.num_prompt_tokens >= self.max_model_len:
            return (
                f"request {spec.request_id} has a prompt of {spec.num_prompt_tokens} tokens; the model's maximum of "
                f"{self.max_model_len} leaves no room for an answer"
            )
        room = self.max_model_len - spec.num_prompt_tokens
        allowed = room if spec.max_output_tokens is None else min(room, spec.max_output_tokens)
        target = min(allowed, spec.num_output_tokens)
        request = Request(spec, self._num_arrivals, self.step, allowed, target)
        self._num_arrivals += 1
        never = self.admission.never_fits(request, self.space)
        if never is None:
            self._live[spec.request_id] = request
            self.waiting.push(request)
        return never

    def schedule(self) -> StepPlan:
        plan = StepPlan(self.step)
        self.step += 1
        self._decodes = False
        batching = self.batching
        batching.start(self)
        for phase in batching.phases:
            if not batching.mixes and (self._chunks if phase == "decode" else self._decodes):
                break
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
            self._keep_tokens(result)
        if self._decodes:
            finished = self.table.advance()
        if self._chunks:
            finished = finished + self._advance_chunks(outcome)
        for request in finished:
            self._release(request)
        if self._ending:
            finished, self._ending = self._ending + finished, []
        if finished:
            self._finish(finished, outcome)
        return outcome

    def has_work(self) -> bool:
        return bool(self._live)

    def why_waiting(self, request_id: str) -> WaitingReason:
        request = self._live.get(request_id)
        if request is None or request.status not in ("waiting", "swapped"):
            raise LabError(f"request {request_id!r} is not waiting; waiting: {self._some_waiting()}")
        return explain(self, request)

    def check_integrity(self) -> None:
        self.kv.check_integrity()
        decoding = [r for r in self.running.values() if r.status == "decoding"]
        self.table.check_integrity(decoding)
        queued = list(self.waiting)
        require(
            len(queued) + len(self.running) + len(self._ending) == len(self._live),
            "waiting + running = live",
            waiting=len(queued),
            running=len(self.running),
            live=len(self._live),
        )
        require(
            len(decoding) + len(self.prefilling) + len(self.stalled) == len(self.running),
            "decoding + prefilling + stalled = running",
            decoding=len(decoding),
            prefilling=len(self.prefilling),
            stalled=len(self.stalled),
            running=len(self.running),
        )
        for request_id, request in self.running.items():
            require(
                self.kv.num_tokens(request_id) == request.num_placed_tokens,
                "placed tokens are the cache's tokens",
                request=request_id,
                placed=request.num_placed_tokens,
                cache=self.kv.num_tokens(request_id),
            )
        placed = sum(r.num_placed_tokens for r in self.running.values())
        require(
            placed == self._num_placed_tokens, "placed tokens", counted=placed, kept=self._num_placed_tokens
        )
        idle = sum(r.num_computed_tokens for r in self.running.values() if r.status != "decoding")
        require(
            idle == self._num_idle_tokens,
            "tokens that do not decode",
            counted=idle,
            kept=self._num_idle_tokens,
        )

    # --- state for parts and observers -------------------------------------------------------------------------------

    @property
    def num_kv_tokens(self) -> int:
        """Computed tokens of running requests; shared ones count once for each."""
        return self.table.num_kv_tokens + self._num_idle_tokens

    @property
    def usage(self) -> float:
        """Share of the blocks that live requests hold; cached ones that nobody holds are not in it."""
        return 1 - self.space.num_free_blocks / self.space.num_blocks

    def kv_stats(self) -> KVStats:
        """Bytes now, the token states that the cache manager has not been told about included."""
        return self.space.stats(self.num_kv_tokens - self._num_placed_tokens)

    def request(self, request_id: str) -> Request:
        return self._live[request_id]

    # --- the three phases --------------------------------------------------------------------------------------------

    def _decode(self, plan: StepPlan) -> None:
        table = self.table
        due = table.due()
        if self.stalled:
            due = sorted(due + self.stalled, key=lambda r: r.seq)
        for request in due:
            if request.status == "decoding":
                if request.due_at == table.clock and self._grow(plan, request, table.computed(request) + 1):
                    table.set_due(request, request.num_placed_tokens + self.space.room(request))
            elif request.status == "stalled" and self._grow(plan, request, request.num_computed_tokens + 1):
                self.stalled.remove(request)
                self._num_idle_tokens -= request.num_computed_tokens
                table.enter(request, request.num_placed_tokens + self.space.room(request))
        self._decodes = table.num_decoding > 0

    def _prefill(self, plan: StepPlan) -> None:
        for request in self.prefilling.copy():
            if request.status != "prefilling":
                continue  # preempted earlier in this step
            chunk = self.batching.chunk(request, request.num_known_tokens - request.num_computed_tokens)
            if chunk and self._grow(plan, request, request.num_computed_tokens + chunk):
                self._schedule_chunk(request, chunk)

    def _admit(self, plan: StepPlan) -> None:
        for request in self.waiting:
            joined = limit_of(self, request) is None and self._join(plan, request)
            if not joined and not self.order.passes_over(request):
                break

    def _join(self, plan: StepPlan, request: Request) -> bool:
        """Place it and schedule its first chunk. False when its memory or its share of the step is not there."""
        swapped = request.status == "swapped"
        known = {} if swapped else self.space.known(request)
        num_hit_tokens = self.space.lookup(known)
        if swapped:  # it decodes at once
            first = request.num_computed_tokens + 1
        else:
            chunk = self.batching.chunk(request, request.num_known_tokens - num_hit_tokens)
            first = num_hit_tokens + chunk
            if chunk == 0:
                return False
        refusal = self.admission.refusal(
            request, first - num_hit_tokens, num_hit_tokens, self.space, len(self.running), self.num_kv_tokens
        )
        if refusal is not None:
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
        resumed = request.num_preemptions > 0
        hit = 0 if swapped else admission.num_hit_tokens
        plan.admitted = [*plan.admitted, Admitted(request.request_id, hit, resumed)]
        if admission.moves:
            plan.moves = [*plan.moves, *admission.moves]
        request.seq, self._num_admissions = self._num_admissions, self._num_admissions + 1
        request.num_placed_tokens = first
        self._num_placed_tokens += first
        self.running[request.request_id] = request
        self.admission.joined(request, self.space)
        self.pressure.joins(self, request)
        if swapped:
            plan.swapped_bytes += request.num_computed_tokens * self.kv.bytes_per_token
            self.table.enter(request, first + self.space.room(request))
            self.batching.take(request, 1)
            self._decodes = self.batching.mixes
        else:
            request.num_computed_tokens = hit
            self._num_idle_tokens += hit
            request.status = "prefilling"
            self.prefilling.append(request)
            self._schedule_chunk(request, first - hit)
        return True

    def _schedule_chunk(self, request: Request, num_tokens: int) -> None:
        self._chunks[request] = num_tokens
        self.batching.take(request, num_tokens)

    def _grow(self, plan: StepPlan, request: Request, num_tokens: int) -> bool:
        """Slots for `[0, num_tokens)`, under pressure if need be. False when it does not run in this step."""
        while True:
            more = num_tokens - request.num_placed_tokens
            try:
                moves = self.kv.append(request.request_id, more).moves if more > 0 else ()
            except NoSpace:
                if not self.pressure.relieve(self, plan, request):
                    return False
                continue
            if moves:
                plan.moves = [*plan.moves, *moves]
            if more > 0:
                request.num_placed_tokens = num_tokens
                self._num_placed_tokens += more
            return True

    # --- what pressure responses may do ------------------------------------------------------------------------------

    def preempt(self, plan: StepPlan, victim: Request) -> None:
        """Give everything back; prompt and outputs so far are computed again later."""
        self._note_preempted(plan, victim)
        self._release(victim)
        victim.num_computed_tokens = 0
        victim.status = "waiting"
        self.waiting.push(victim)

    def swap_out(self, plan: StepPlan, victim: Request) -> None:
        """Give the blocks back and keep the computed tokens in host memory."""
        self._note_preempted(plan, victim)
        self._release(victim)
        plan.swapped_bytes += victim.num_computed_tokens * self.kv.bytes_per_token
        victim.status = "swapped"
        self.waiting.push(victim)

    def stall(self, request: Request) -> None:
        """It keeps its blocks and asks again in the next step."""
        if request.status == "decoding":
            self.table.leave(request)
            self._num_idle_tokens += request.num_computed_tokens
            request.status = "stalled"
            self.stalled.append(request)

    def drop(self, plan: StepPlan, request: Request, reason: str) -> None:
        """Give the request up."""
        self._release(request)
        plan.dropped = [*plan.dropped, Dropped(request.request_id, request.num_output_tokens, reason)]
        request.status = "finished"
        del self._live[request.request_id]

    def end_early(self, plan: StepPlan, request: Request) -> None:
        """A decoding request ends with the tokens it has. One that prefills has nothing to show yet: it is preempted."""
        if request.status == "prefilling":
            self.preempt(plan, request)
        else:
            self._release(request)
            self._ending.append(request)

    def shorten(self, request: Request, max_output_tokens: int) -> None:
        """Lower the maximum of a request that does not decode yet."""
        request.max_output_tokens = min(request.max_output_tokens, max_output_tokens)
        request.target_output_tokens = min(request.target_output_tokens, request.max_output_tokens)

    # --- bookkeeping -------------------------------------------------------------------------------------------------

    def _note_preempted(self, plan: StepPlan, victim: Request) -> None:
        computed = self.table.computed(victim) if victim.status == "decoding" else victim.num_computed_tokens
        num_blocks = self.space.blocks_for(victim.num_placed_tokens)
        plan.preempted = [*plan.preempted, Preempted(victim.request_id, num_blocks, computed)]
        victim.num_preemptions += 1

    def _release(self, request: Request) -> None:
        """Leave the running set; its own counts are valid afterwards."""
        if request.status == "decoding":
            self.table.leave(request)
        else:
            self._num_idle_tokens -= request.num_computed_tokens
            (self.prefilling if request.status == "prefilling" else self.stalled).remove(request)
            chunk = self._chunks.pop(request, 0)
            if chunk:
                self.batching.take(request, -chunk)
        if request.num_computed_tokens > request.num_placed_tokens:
            self.kv.append(request.request_id, request.num_computed_tokens - request.num_placed_tokens)
            self._num_placed_tokens += request.num_computed_tokens - request.num_placed_tokens
        self.kv.free(request.request_id, num_computed_tokens=request.num_computed_tokens)
        self._num_placed_tokens -= max(request.num_placed_tokens, request.num_computed_tokens)
        request.num_placed_tokens = 0
        self.admission.left(request, self.space)
        self.waiting.touch()
        del self.running[request.request_id]

    def _advance_chunks(self, outcome: StepOutcome) -> list[Request]:
        """Chunks are computed; those that reach the last known token sample one. Returns those that are done with it."""
        done = []
        for request, num_tokens in self._chunks.items():
            request.num_computed_tokens += num_tokens
            self._num_idle_tokens += num_tokens
            if request.num_computed_tokens < request.num_known_tokens:
                continue
            if request.num_output_tokens == 0:
                outcome.started = [*outcome.started, request.request_id]
            request.num_output_tokens += 1
            if request.num_output_tokens >= request.target_output_tokens:
                done.append(request)
            else:
                self.prefilling.remove(request)
                self._num_idle_tokens -= request.num_computed_tokens
                self.table.enter(request, request.num_placed_tokens + self.space.room(request))
        self._chunks = {}
        return done

    def _finish(self, finished: list[Request], outcome: StepOutcome) -> None:
        """They have left the running set already."""
        for request in finished:
            request.status = "finished"
            del self._live[request.request_id]
        outcome.finished = [r.request_id for r in finished]
        short = {
            r.request_id: r.num_output_tokens
            for r in finished
            if r.num_output_tokens < r.spec.num_output_tokens
        }
        outcome.truncated = short or None

    def _count(self, plan: StepPlan) -> None:
        if self._decodes:
            plan.num_decode_requests = plan.num_scheduled_tokens = self.table.num_decoding
            plan.num_kv_tokens_read = self.table.num_kv_tokens
        for request, num_tokens in self._chunks.items():
            start = request.num_computed_tokens
            plan.num_prefill_tokens += num_tokens
            plan.num_kv_tokens_read += start
            plan.num_prefill_pairs += num_tokens * start + num_tokens * (num_tokens + 1) // 2
        plan.num_scheduled_tokens += plan.num_prefill_tokens
        plan.num_running = len(self.running)

    def _list_chunks(self) -> list[Chunk]:
        """What each request computes, in admission order; tables as they are after the last append of the step."""
        chunks = []
        for request_id, request in self.running.items():
            if request in self._chunks:
                start, num_tokens = request.num_computed_tokens, self._chunks[request]
                samples = start + num_tokens == request.num_known_tokens
            elif request.status == "decoding" and self._decodes:
                start, num_tokens, samples = self.table.computed(request), 1, True
            else:
                continue
            table = tuple(self.kv.block_table(request_id))
            chunks.append(Chunk(request_id, start, num_tokens, samples, table, self.kv.base_slot(request_id)))
        return chunks

    def _keep_tokens(self, result: StepResult) -> None:
        for request_id, token in (result.tokens or {}).items():
            self._live[request_id].output_token_ids.append(token)

    def _some_waiting(self) -> str:
        ids = [r.request_id for r in self.waiting][:5]
        return ", ".join(ids) or "nobody"
