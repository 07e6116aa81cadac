"""What the vLLM model holds between steps, and the moves of a single request: place, preempt, finish.

No policy lives here; `vllm_steps` decides, `vllm` speaks to the outside.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.errors import require
from labkit.serving.systems.vllm_blocks import BlockPool
from labkit.serving.systems.vllm_content import Contents
from labkit.serving.systems.vllm_decoding import Decoding
from labkit.serving.systems.vllm_options import VllmOptions
from labkit.serving.systems.vllm_request import (
    DECODE,
    DONE,
    DRAIN,
    PREFILL,
    WAITING,
    FcfsQueue,
    PriorityQueue,
    VllmRequest,
    WaitingQueue,
)


@dataclass(frozen=True, slots=True)
class Victim:
    """A preemption, with the counts from before this step; `num_blocks` includes blocks taken earlier in the step."""

    request: VllmRequest
    num_blocks: int
    num_computed_tokens: int
    num_tokens: int


class VllmState:
    """`running` is a dict used as an ordered set, in admission order: removal is O(1), the last is `next(reversed(...))`.
    `prefilling` are those of them with prompt left to compute; `draining`, async only, those whose last token is sampled
    and comes back after the next step has been decided.
    """

    def __init__(self, options: VllmOptions):
        self.options = options
        self.block_size = options.block_size
        self.caching = options.enable_prefix_caching
        self.lag = int(options.async_scheduling)
        self.max_len = options.model_len
        self.by_priority = options.policy == "priority"
        self.pool = BlockPool(options.num_gpu_blocks)
        self.contents = Contents(options.block_size)
        self.decoding: Decoding[VllmRequest] = Decoding(options.block_size)
        self.requests: dict[str, VllmRequest] = {}
        self.running: dict[VllmRequest, None] = {}
        self.prefilling: dict[VllmRequest, None] = {}
        self.waiting: WaitingQueue = PriorityQueue() if self.by_priority else FcfsQueue()
        self.draining: list[VllmRequest] = []
        #: preempted while their last token was under way: they finish in this step's update, out of the waiting queue
        self.done_preempted: list[VllmRequest] = []
        self.num_arrived = self.num_admitted = 0

    def computed(self, r: VllmRequest) -> int:
        """Tokens that have KV, or will have at the end of the step that is being decided."""
        return self.decoding.step + r.offset if r.state == DECODE else r.computed

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens`; nothing past the model's maximum gets a slot (`allocate_slots`)."""
        return -(-min(num_tokens, self.max_len) // self.block_size)

    def publish_up_to(self, r: VllmRequest, num_tokens: int) -> None:
        """Full blocks among the first `num_tokens` become findable, before the step that fills them has run."""
        full = min(num_tokens // self.block_size, len(r.table))
        if self.caching and full > r.num_cached:
            if not r.private:
                self.contents.extend(r, full)
                self.pool.publish(r.table, r.keys, r.num_cached, full)
            r.num_cached = full

    def preempt(self, r: VllmRequest) -> Victim:
        """Recompute later: all blocks go, outputs stay (`Scheduler._preempt_request`). An output that is under way is
        still delivered at the end of this step."""
        was, under_way = r.state, not r.delivered
        del self.running[r]
        if was == DECODE:
            self.decoding.leave(r)
            r.num_tokens = r.computed + 1
            if under_way and r.num_tokens == r.end:
                self.done_preempted.append(r)
        elif was == PREFILL:
            del self.prefilling[r]
        elif was == DRAIN:
            self.draining.remove(r)
            self.done_preempted.append(r)
        victim = Victim(r, len(r.table), r.computed, r.num_tokens - under_way)
        if r.private:
            self.pool.publish(r.table, r.keys, 0, r.num_cached)
            r.private = False
        self.let_go(r)
        r.computed, r.state, r.delivered = 0, WAITING, True
        r.num_preemptions += 1
        self.waiting.put_back(r)
        return victim

    def finish(self, r: VllmRequest) -> None:
        """It is gone, whatever it was doing."""
        if r.state == WAITING:
            self.waiting.remove(r)
        else:
            del self.running[r]
            self.let_go(r)
        r.state = DONE
        del self.requests[r.id]

    def let_go(self, r: VllmRequest) -> None:
        """Its blocks go back to the pool."""
        self.pool.release(r.table, r.num_cached, r.private)
        r.table = []
        r.num_cached = 0

    def check_integrity(self) -> None:
        """Conservation of blocks, and every shortcut equal to what walking all requests gives. For use between steps."""
        self.pool.check_integrity((r.table, r.num_cached, r.private) for r in self.requests.values())
        self.decoding.check_integrity(self.running)
        seqs = [r.seq for r in self.running]
        require(seqs == sorted(seqs), "running is in admission order", seqs=seqs)
        for state, group in ((PREFILL, self.prefilling), (DRAIN, self.draining), (WAITING, self.waiting)):
            walked = [r for r in self.requests.values() if r.state == state]
            require(set(walked) == set(group) and len(walked) == len(group), "requests by state", state=state)
        require(
            len(self.requests) == len(self.running) + len(self.waiting),
            "running or waiting",
            all=self.requests,
        )
        for r in self.running:
            computed = self.computed(r)
            require(computed <= len(r.table) * self.block_size, "computed tokens have slots", request=r)
            full = computed // self.block_size - (self.lag if r.state != PREFILL else 0)
            require(
                not self.caching or full <= r.num_cached,
                "full blocks are findable",
                request=r,
                cached=r.num_cached,
            )
            require(self.caching or not r.num_cached, "nothing is findable with caching off", request=r)
        require(
            len(self.running) <= (self.options.max_num_active_seqs or self.options.max_num_seqs),
            "max_num_seqs",
            running=len(self.running),
        )
