"""Everything the SGLang model knows between two steps, and the small moves of one request: queue, finish, retract."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.serving.base import Dropped, Preempted, StepPlan
from labkit.serving.systems.sglang_decoding import DecodeCounts
from labkit.serving.systems.sglang_memory import RETRACT_DECODE_STEPS, RequestMemory
from labkit.serving.systems.sglang_options import SglangOptions
from labkit.serving.systems.sglang_policy import QueueOrder
from labkit.serving.systems.sglang_ratio import NewTokenRatio
from labkit.serving.systems.sglang_request import Req
from labkit.serving.systems.sglang_tokens import TokenSource


class SglangState:
    """Lists are the server's: `waiting` in queue order; `running` as of its last filter and merge.

    Of the step decided last: `mode` (None, "extend", "decode" or "mixed"), `extend_rows`, `decode_rows`, and `chunked`,
    the one request that was cut and goes on in the next prefill. `batch_is_full` stops admission until somebody leaves.
    """

    def __init__(self, options: SglangOptions, *, with_ids: bool, split_keeps_age: bool):
        self.options = options
        self.memory = RequestMemory(options, with_ids=with_ids, split_keeps_age=split_keeps_age)
        self.pool, self.tree = self.memory.pool, self.memory.tree
        self.order = QueueOrder(options, self.tree)
        self.ratio = NewTokenRatio(options.schedule_conservativeness)
        self.source = TokenSource()
        self.decoding = DecodeCounts(options.page_size)
        self.requests: dict[str, Req] = {}
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.batch_is_full = False
        self.mode: str | None = None
        self.extend_rows: list[Req] = []
        self.decode_rows: Sequence[Req] = ()
        self.chunked: Req | None = None
        #: sent back in this step, in order
        self.retracted: list[Req] = []
        #: prefill tokens so far: the clock by which "hrrn" ages
        self.processed_tokens = 0
        #: decode steps that must pass before the next prefill (`prefill_decode_interval`)
        self.num_decodes_left = 0
        #: somebody of the running list finished since it was last filtered
        self.has_finished = False
        #: pages taken by `schedule` for tokens that are only counted in `update`
        self.num_pages_taken = 0
        self._num_entries = 0
        self._num_ranks = 0

    @property
    def clock(self) -> int:
        return self.decoding.clock

    def queue(self, req: Req) -> None:
        """`_add_request_to_queue`: at the end, with a new queue time."""
        self._num_entries += 1
        req.queue_entry = self._num_entries
        req.processed_at_entry = self.processed_tokens
        self.waiting.append(req)

    def rank(self, reqs: Sequence[Req]) -> None:
        """Number the requests that were appended to the running list, or the whole list after it was sorted."""
        for req in reqs:
            self._num_ranks += 1
            req.rank = self._num_ranks

    def finish(self, req: Req) -> None:
        """It is done; what it computed becomes findable."""
        req.finished = True
        self.memory.release(req, self.clock, insert=True)
        del self.requests[req.request_id]

    def retract(self, req: Req, num_left: int) -> None:
        """`release_req`: give everything back without inserting it, then evict down to some steps of room for those that
        stay, so that its own prompt usually goes too."""
        self.decoding.leave(req)
        req.num_blocks_given = self.pool.pages_for(req.extend_end)
        self.memory.release(req, self.clock, insert=False)
        self.memory.make_room(num_left * RETRACT_DECODE_STEPS)

    def requeue(self, reqs: Sequence[Req], plan: StepPlan) -> None:
        """Retracted and preempted requests go to the end of the queue; what they generated is kept."""
        if not reqs:
            return
        plan.preempted = [
            *plan.preempted,
            *(Preempted(r.request_id, r.num_blocks_given, r.extend_end) for r in reqs),
        ]
        self.retracted += reqs
        for req in reqs:
            req.reset_for_retract()
            self.queue(req)

    def abort(self, req: Req, plan: StepPlan) -> None:
        """Even alone it does not fit: the server ends it with an error."""
        self.decoding.leave(req)
        self.memory.release(req, self.clock, insert=False)
        req.finished = True
        del self.requests[req.request_id]
        reason = "out of memory even after retracting all other requests of the decode batch"
        plan.dropped = [Dropped(req.request_id, req.num_outputs, reason)]
