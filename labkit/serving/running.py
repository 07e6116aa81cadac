"""What runs: the admitted requests, the slots they hold, and the ways in which one leaves.

Pressure responses call the verbs of this class (`preempt`, `swap_out`, `stall`, `drop`, `end_early`, `shorten`); what a
step consists of is decided in `LabScheduler`, which builds on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.errors import require
from labkit.kv.base import KVCacheManager, KVStats, Move, NoSpace
from labkit.serving.admission import Admission
from labkit.serving.base import Dropped, Preempted, StepPlan
from labkit.serving.batching import BatchComposition
from labkit.serving.decoding import DecodeTable, by_seq
from labkit.serving.order import QueueOrder, WaitingQueue
from labkit.serving.pressure import PressureResponse
from labkit.serving.request import Request
from labkit.serving.space import Space


class RunningSet:
    """`running` is in admission order; of it, `prefilling` and `stalled` are listed apart and the rest decodes.

    `chunks` are the prefill chunks of the step that is being decided. `ending` are requests that were ended early in
    it: they have left, and count as finished in its outcome.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        order: QueueOrder,
        admission: Admission,
        batching: BatchComposition,
        pressure: PressureResponse,
    ):
        self.kv, self.space = kv, Space(kv)
        self.order, self.admission, self.batching, self.pressure = order, admission, batching, pressure
        self.waiting = WaitingQueue(order, self.space)
        self.table = DecodeTable()
        self.running: dict[str, Request] = {}
        self.prefilling: list[Request] = []
        self.stalled: list[Request] = []
        self.chunks: dict[Request, int] = {}
        self.ending: list[Request] = []
        self.live: dict[str, Request] = {}
        self._num_admissions = 0
        self._num_placed_tokens = 0  # of all running
        self._num_idle_tokens = 0  # computed tokens of those that do not decode

    # --- questions ---------------------------------------------------------------------------------------------------

    @property
    def num_kv_tokens(self) -> int:
        """Computed tokens of running requests; shared ones count once for each."""
        return self.table.num_kv_tokens + self._num_idle_tokens

    @property
    def num_tokens_after_step(self) -> int:
        """What the cache will hold when the step that is being decided has run, its decodes not counted."""
        return self.num_kv_tokens + sum(self.chunks.values())

    @property
    def usage(self) -> float:
        """Share of the blocks that live requests hold; cached ones that nobody holds are not in it."""
        return 1 - self.space.num_free_blocks / self.space.num_blocks

    def kv_stats(self) -> KVStats:
        """Bytes now, the token states that the cache manager has not been told about included."""
        return self.space.stats(self.num_kv_tokens - self._num_placed_tokens)

    # --- coming and growing ------------------------------------------------------------------------------------------

    def enter(self, request: Request, num_placed_tokens: int) -> None:
        """The cache has admitted it. The caller says next whether it prefills or decodes."""
        request.seq, self._num_admissions = self._num_admissions, self._num_admissions + 1
        request.num_placed_tokens = num_placed_tokens
        self._num_placed_tokens += num_placed_tokens
        self.running[request.request_id] = request
        self.admission.joined(request, self.space)
        self.pressure.joins(self, request)

    def start_prefill(self, request: Request, num_hit_tokens: int) -> None:
        """It has `num_hit_tokens` from the prefix cache and computes the rest of what is known."""
        request.num_computed_tokens = num_hit_tokens
        self._num_idle_tokens += num_hit_tokens
        request.status = "prefilling"
        self.prefilling.append(request)

    def start_decode(self, request: Request) -> None:
        """From any list of the running set, or straight from host memory."""
        if request.status == "prefilling":
            self.prefilling.remove(request)
            self._num_idle_tokens -= request.num_computed_tokens
        elif request.status == "stalled":
            self.stalled.remove(request)
            self._num_idle_tokens -= request.num_computed_tokens
        self.table.enter(request, request.num_placed_tokens + self.space.room(request))

    def grow(self, plan: StepPlan, request: Request, num_tokens: int) -> bool:
        """Slots for `[0, num_tokens)`, under pressure if need be. False when it does not run in this step."""
        while True:
            more = num_tokens - request.num_placed_tokens
            if more <= 0:
                return True
            try:
                if not self.pressure.may_grow(self, request, num_tokens):
                    raise NoSpace(f"request {request.request_id} has its share of the pool")
                moves = self._append(request, more)
            except NoSpace:
                if not self.pressure.relieve(self, plan, request):
                    return False
            else:
                if moves:
                    plan.moves = [*plan.moves, *moves]
                return True

    def computed(self, request: Request, num_tokens: int) -> None:
        """A prefill chunk has run."""
        request.num_computed_tokens += num_tokens
        self._num_idle_tokens += num_tokens

    # --- leaving -----------------------------------------------------------------------------------------------------

    def preempt(self, plan: StepPlan, victim: Request) -> None:
        """Give everything back; prompt and outputs so far are computed again later."""
        self._note_preempted(plan, victim)
        self.release(victim)
        victim.num_computed_tokens = 0
        victim.status = "waiting"
        self.waiting.push(victim)

    def swap_out(self, plan: StepPlan, victim: Request) -> None:
        """Give the blocks back and keep the computed tokens in host memory."""
        self._note_preempted(plan, victim)
        self.release(victim)
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
        self.release(request)
        plan.dropped = [*plan.dropped, Dropped(request.request_id, request.num_output_tokens, reason)]
        request.status = "finished"
        del self.live[request.request_id]

    def end_early(self, plan: StepPlan, request: Request) -> None:
        """A decoding request ends with the tokens it has. One that prefills has nothing to show yet: it is preempted."""
        if request.status == "prefilling":
            self.preempt(plan, request)
        else:
            self.release(request)
            self.ending.append(request)

    def shorten(self, request: Request, max_output_tokens: int) -> None:
        """Lower the maximum of a request that does not decode yet."""
        request.max_output_tokens = min(request.max_output_tokens, max_output_tokens)
        request.target_output_tokens = min(request.target_output_tokens, request.max_output_tokens)

    def release(self, request: Request) -> None:
        """Leave the running set and the cache; its own counts are valid afterwards."""
        if request.status == "decoding":
            self.table.leave(request)
        else:
            self._num_idle_tokens -= request.num_computed_tokens
            (self.prefilling if request.status == "prefilling" else self.stalled).remove(request)
            chunk = self.chunks.pop(request, 0)
            if chunk:
                self.batching.take(request, -chunk)
        unplaced = request.num_computed_tokens - request.num_placed_tokens
        if unplaced > 0:
            self._append(request, unplaced)
        self.kv.free(request.request_id, num_computed_tokens=request.num_computed_tokens)
        self._num_placed_tokens -= request.num_placed_tokens
        request.num_placed_tokens = 0
        self.admission.left(request, self.space)
        self.waiting.touch()
        del self.running[request.request_id]

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _append(self, request: Request, num_tokens: int) -> Sequence[Move]:
        """Place `num_tokens` more; tells the cache what the new ones are, where the load or an executor says so."""
        moves = self.kv.append(request.request_id, num_tokens, request.untold_token_ids()).moves
        request.num_placed_tokens += num_tokens
        self._num_placed_tokens += num_tokens
        return moves

    def _note_preempted(self, plan: StepPlan, victim: Request) -> None:
        computed = self.table.computed(victim) if victim.status == "decoding" else victim.num_computed_tokens
        num_blocks = self.space.blocks_for(victim.num_placed_tokens)
        plan.preempted = [*plan.preempted, Preempted(victim.request_id, num_blocks, computed)]
        victim.num_preemptions += 1

    def check_integrity(self) -> None:
        """Every counter equals what walking the requests gives."""
        self.kv.check_integrity()
        running = self.running.values()
        decoding = [r for r in running if r.status == "decoding"]
        self.table.check_integrity(decoding)
        counts = {"waiting": len(self.waiting), "running": len(running), "ending": len(self.ending)}
        require(
            sum(counts.values()) == len(self.live),
            "waiting + running + ending = live",
            **counts,
            live=len(self.live),
        )
        counts = {"decoding": len(decoding), "prefilling": len(self.prefilling), "stalled": len(self.stalled)}
        require(sum(counts.values()) == len(running), "decoding + prefilling + stalled = running", **counts)
        require(sorted(running, key=by_seq) == list(running), "running is in admission order")
        for r in running:
            cache = self.kv.num_tokens(r.request_id)
            require(
                cache == r.num_placed_tokens,
                "the cache's tokens are the placed ones",
                request=r.request_id,
                cache=cache,
            )
        placed = sum(r.num_placed_tokens for r in running)
        require(
            placed == self._num_placed_tokens, "placed tokens", counted=placed, kept=self._num_placed_tokens
        )
        idle = sum(r.num_computed_tokens for r in running if r.status != "decoding")
        require(
            idle == self._num_idle_tokens,
            "tokens that do not decode",
            counted=idle,
            kept=self._num_idle_tokens,
        )
        committed = sum(
            self.admission.units(r.committed_tokens, self.space) for r in running if r.committed_tokens
        )
        require(
            committed == self.admission.committed,
            "committed",
            counted=committed,
            kept=self.admission.committed,
        )
