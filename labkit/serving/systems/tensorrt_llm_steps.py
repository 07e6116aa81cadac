"""One executor step, not overlapped: schedule, release what is paused, give blocks, run, finish, store.

Generating requests are not walked (`vllm_decoding` explains how): under the default policy all of them fit and run unless
`max_batch_size` or `max_num_tokens` binds, and what they may still take is one number. MAX_UTILIZATION walks the active list.
"""

from __future__ import annotations

from labkit.serving.systems.tensorrt_llm_capacity import Capacity
from labkit.serving.systems.tensorrt_llm_microbatch import compose
from labkit.serving.systems.tensorrt_llm_options import TensorRtLlmOptions
from labkit.serving.systems.tensorrt_llm_request import GENERATION, TensorRtLlmRequest
from labkit.serving.systems.tensorrt_llm_state import Pause
from labkit.serving.systems.vllm_decoding import by_seq

Requests = list[TensorRtLlmRequest]


class Steps(Capacity):
    """`decide()` fixes a step, `advance()` takes its result; the public fields describe them in between."""

    lag = 0

    def __init__(self, options: TensorRtLlmOptions):
        super().__init__(options)
        self.max_utilization = self.has_kv and options.capacity_scheduler_policy == "MAX_UTILIZATION"
        # of the step being decided
        self.fitting: Requests | None = None  # None: all that generate, then `fitting_rest`
        self.fitting_rest: Requests = []
        self.decided: dict[TensorRtLlmRequest, int] = {}  # contexts that run -> chunk before reuse
        self.chunks: dict[TensorRtLlmRequest, int] = {}  # -> tokens they compute
        self.admitted: Requests = []
        self.passed_over: Requests = []
        self.preempted: list[Pause] = []
        self.num_decodes = self.num_chunk_tokens = self.num_kv_tokens = 0
        self.free_after_pause = 0
        # of the result that was taken last
        self.started: Requests = []
        self.resumed: Requests = []
        self.finished: Requests = []

    def decide(self) -> None:
        self.preempted, self.admitted, self.passed_over = [], [], []
        if self.queued:
            self.activate()
        if self.max_utilization and not self._all_go_on():
            contexts = self._decide_by_utilization()
        else:
            contexts = self._decide_in_two_groups()
        self.free_after_pause = self.pool.num_free
        if contexts:
            self.decided = {r: r.chunk for r in contexts}
            self.chunks = {r: self._start_chunk(r) for r in contexts}
        self._give_decode_blocks()
        decoding = self.decoding
        self.num_decodes, self.num_kv_tokens = decoding.num, decoding.num_kv_tokens
        self.num_chunk_tokens = 0
        for r, n in self.chunks.items():
            self.num_chunk_tokens += n
            self.num_kv_tokens += r.computed

    def _decide_in_two_groups(self) -> Requests:
        """Generating requests before all contexts."""
        options, num = self.options, self.decoding.num
        self.fitting = None
        self.fitting_rest = rest = self.fitting_contexts()
        if self.has_kv and num <= options.max_batch_size and num <= options.max_num_tokens:
            return compose(options, rest, num, num)[0] if rest else []
        chosen = set(rest)
        if self.has_kv:
            self.fitting = [r for r in self.active if r.state == GENERATION] + rest
        else:  # one list in order of arrival
            first = self.active[: options.request_limit]
            self.fitting = [r for r in first if r.state == GENERATION or r in chosen]
        contexts, generating = compose(options, self.fitting, 0, 0)
        self._pass_over(generating)
        return contexts

    def _all_go_on(self) -> bool:
        """MAX_UTILIZATION with nothing to decide: everybody generates, and blocks are there for all who may need one."""
        decoding, step = self.decoding, self.decoding.step
        if self.contexts or decoding.num > self.options.request_limit:
            return False
        needed = len(decoding.due[step % self.block_size])
        if self.options.two_step_lookahead:
            needed += len(decoding.due[(step + 1) % self.block_size])
        return needed <= self.pool.num_free

    def _decide_by_utilization(self) -> Requests:
        self.fitting, victims = self.fitting_by_utilization()
        contexts, generating = compose(self.options, self.fitting, 0, 0)
        self.preempted = [self.pause(r) for r in victims]
        self._pass_over(generating)
        return contexts

    def _pass_over(self, generating: Requests) -> None:
        """Those that generate and do not run in this step."""
        if len(generating) < self.decoding.num:
            runs = set(generating)
            self.passed_over = [r for r in self.active if r.state == GENERATION and r not in runs]
            for r in self.passed_over:
                self.reserved_blocks -= self.blocks_to_completion(r)
                self.decoding.leave(r)

    def _start_chunk(self, r: TensorRtLlmRequest) -> int:
        """Tokens that the chunk computes. The first one takes the blocks of the whole prompt (`addSequence`); what is reused
        moves its start, and an end inside the prompt is floored to a block (`setPrepopulatedPromptLen`; no recording shows
        the floor acting, and a chunk is not floored to nothing here)."""
        if not r.is_first_chunk:
            return r.chunk
        self.admitted.append(r)
        if not self.has_kv:
            return r.chunk
        hit = []
        if self.reuse and not r.private:
            full = (r.prompt - 1) // self.block_size
            self.contents.extend(r, full)
            hit = self.pool.cached_prefix(r.keys, full)
            self.pool.claim(hit)
        r.table = hit + self.pool.take(self.blocks_for(r.prompt) - len(hit))
        r.computed = len(hit) * self.block_size
        if not hit:
            return r.chunk
        stop = r.computed + r.chunk
        if stop >= r.prompt:
            return r.prompt - r.computed
        floored = stop - stop % self.block_size
        return floored - r.computed if floored > r.computed else r.chunk

    def _give_decode_blocks(self) -> None:
        if self.has_kv:
            due = self.decoding.due[self.decoding.step % self.block_size]
            if due:
                for r, block in zip(due, self.pool.take(len(due))):
                    r.table.append(block)
                self.reserved_blocks -= len(due)

    def advance(self) -> None:
        self.started, self.resumed, self.finished = [], [], []
        done: Requests = []
        ended = self.decoding.advance()
        for r in ended or ():
            self.reserved_blocks -= self.blocks_to_completion(r)
            self.decoding.end(r)
            done.append(r)
        complete: Requests = []
        for r, num_tokens in self.chunks.items():
            r.computed += num_tokens
            if r.computed == r.prompt:
                complete.append(r)
                self._context_done(r, done)
        self.chunks, self.decided = {}, {}
        for r in self.passed_over:
            r.last_step += 1
            self.start_generation(r)
        if done:
            done.sort(key=by_seq)
            for r in done:
                self.finish(r)
            self.finished = done
        for r in complete:  # `storeContextBlocks`, after the finished ones were released
            if r.state == GENERATION:
                self.store(r, r.prompt)

    def _context_done(self, r: TensorRtLlmRequest, done: Requests) -> None:
        """The step that runs the last prompt token also samples one."""
        self.contexts.remove(r)
        (self.resumed if r.prompt > r.num_prompt else self.started).append(r)
        left = r.end - r.num_tokens
        r.last_step = self.decoding.step - 2 + left
        if left == 1:
            done.append(r)
        else:
            self.start_generation(r)
