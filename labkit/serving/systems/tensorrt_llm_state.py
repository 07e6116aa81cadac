"""What the TensorRT-LLM model holds between steps, and the moves of a single request."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass

from labkit.errors import require
from labkit.serving.systems.tensorrt_llm_blocks import ReusePool
from labkit.serving.systems.tensorrt_llm_options import TensorRtLlmOptions
from labkit.serving.systems.tensorrt_llm_request import CONTEXT, DONE, GENERATION, QUEUED, TensorRtLlmRequest
from labkit.serving.systems.vllm_content import Contents
from labkit.serving.systems.vllm_decoding import Decoding, by_seq


@dataclass(frozen=True, slots=True)
class Pause:
    """`num_generated` since the last (re)start; `position` in the context."""

    request: TensorRtLlmRequest
    num_blocks: int
    num_generated: int
    position: int
    num_computed: int


class TensorRtLlmState:
    """`active` is the executor's list, in order of arrival; a paused request keeps its place. `contexts` are those of it
    that have prompt left to compute, in the same order. `reserved_blocks` is what all generating requests may still take
    until they end."""

    def __init__(self, options: TensorRtLlmOptions):
        self.options = options
        self.block_size = options.tokens_per_block
        self.has_kv = options.kv_cache_manager
        self.reuse = options.kv_cache_manager and options.enable_block_reuse
        self.pool = ReusePool(options.pool_blocks if self.has_kv else 0)
        self.contents = Contents(self.block_size)
        self.decoding: Decoding[TensorRtLlmRequest] = Decoding(self.block_size)
        self.requests: dict[str, TensorRtLlmRequest] = {}
        self.queued: deque[TensorRtLlmRequest] = deque()
        self.active: list[TensorRtLlmRequest] = []
        self.contexts: list[TensorRtLlmRequest] = []
        self.reserved_blocks = 0
        self.num_arrived = 0

    def computed(self, r: TensorRtLlmRequest) -> int:
        """Tokens that have KV."""
        return self.decoding.step + r.offset if r.state == GENERATION else r.computed

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def blocks_to_completion(self, r: TensorRtLlmRequest) -> int:
        """`getRemainingBlocksToCompletion`; it counts the last token, which never gets KV."""
        return self.blocks_for(r.total) - len(r.table)

    def activate(self) -> None:
        """Fill the active list from the queue outside."""
        limit = self.options.max_num_active_requests
        while self.queued and (limit is None or len(self.active) < limit):
            r = self.queued.popleft()
            r.state = CONTEXT
            self.active.append(r)
            self.contexts.append(r)

    def start_generation(self, r: TensorRtLlmRequest) -> None:
        """Its context is done; what it may still need is promised to it."""
        self.decoding.enter(r)
        self.reserved_blocks += self.blocks_to_completion(r)

    def pause(self, r: TensorRtLlmRequest) -> Pause:
        """All blocks go; generated tokens join the prompt and the context starts over (`LlmRequest::pause`). Only tokens that
        were really computed can be reused by the restart."""
        if r.state == GENERATION:
            self.reserved_blocks -= self.blocks_to_completion(r)
            self.decoding.leave(r)
            r.num_tokens = r.computed + 1
            insort(self.contexts, r, key=by_seq)
        generated = r.num_tokens - r.prompt
        pause = Pause(r, len(r.table), generated, min(r.computed, r.prompt), r.computed)
        r.private = False
        self.let_go(r)
        r.state, r.computed, r.prompt = CONTEXT, 0, r.num_tokens
        r.num_pauses += 1
        return pause

    def finish(self, r: TensorRtLlmRequest) -> None:
        """It is done: its blocks go back."""
        self.active.remove(r)
        self.let_go(r)
        r.state = DONE
        del self.requests[r.id]

    def let_go(self, r: TensorRtLlmRequest) -> None:
        """Full blocks of computed tokens are stored before they are released (`releaseBlocks`)."""
        self.store(r, r.computed)
        self.pool.release(r.table)
        r.table = []

    def store(self, r: TensorRtLlmRequest, num_tokens: int) -> None:
        """The full blocks of its first `num_tokens` become findable."""
        if self.reuse and not r.private:
            full = num_tokens // self.block_size
            self.contents.extend(r, full)
            self.pool.store(r.table, r.keys, full)

    def check_integrity(self) -> None:
        """Conservation of blocks, and every shortcut equal to what walking all requests gives. For use between steps."""
        if self.has_kv:
            self.pool.check_integrity(r.table for r in self.requests.values())
        self.decoding.check_integrity(self.active)
        order = [r.seq for r in self.active]
        require(order == sorted(order), "the active list is in order of arrival", order=order)
        contexts = [r for r in self.active if r.state == CONTEXT]
        require(
            self.contexts == contexts, "contexts in order of arrival", kept=self.contexts, walked=contexts
        )
        generating = [r for r in self.active if r.state == GENERATION]
        require(len(contexts) + len(generating) == len(self.active), "active is context or generation")
        reserved = sum(self.blocks_to_completion(r) for r in generating)
        require(
            reserved == self.reserved_blocks, "reserved blocks", walked=reserved, kept=self.reserved_blocks
        )
        require(all(r.state == QUEUED for r in self.queued), "queued outside the active list")
        require(
            len(self.requests) == len(self.active) + len(self.queued), "active or queued", all=self.requests
        )
        for r in self.active if self.has_kv else ():
            require(
                self.computed(r) <= len(r.table) * self.block_size, "computed tokens have slots", request=r
            )
