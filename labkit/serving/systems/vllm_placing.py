"""Giving tokens and blocks to one request: to a running one, preempting others where blocks are short, and to the head of
the waiting queue. `vllm_steps` says in which order (`core/sched/scheduler.py`, `Scheduler.schedule`).
"""

from __future__ import annotations

from labkit.serving.systems.vllm_options import VllmOptions
from labkit.serving.systems.vllm_request import DECODE, PREFILL, VllmRequest
from labkit.serving.systems.vllm_state import Victim, VllmState


class VllmPlacing(VllmState):
    """The public fields describe the step that is being decided, and the result that was taken last."""

    def __init__(self, options: VllmOptions):
        super().__init__(options)
        self.max_running = options.max_num_active_seqs or options.max_num_seqs
        # of the step being decided
        self.chunks: dict[VllmRequest, int] = {}
        self.admitted: list[VllmRequest] = []
        self.preempted: list[Victim] = []
        self.passed_over: list[VllmRequest] = []
        self.num_decodes = 0
        self.num_chunk_tokens = 0
        self.num_kv_tokens = 0
        # of the result that was taken last
        self.started: list[VllmRequest] = []
        self.resumed: list[VllmRequest] = []
        self.finished: list[VllmRequest] = []
        # async: the same of the step whose result is under way
        self._started_next: list[VllmRequest] = []
        self._resumed_next: list[VllmRequest] = []
        # decoding requests that were given their token; None: all are (see `vllm_steps`, fact 1)
        self.served: set[VllmRequest] | None = None

    def threshold(self) -> int:
        """A long prefill may take this many tokens of a step; 0: no limit, there is nobody to starve."""
        threshold = self.options.long_prefill_token_threshold
        if threshold:
            count = len(self.running) + len(self.waiting)
            if count < 2:
                return 0
            if self.options.long_prefill_token_threshold_adaptive:
                return max(threshold, self.options.max_num_batched_tokens // count)
        return threshold

    def chunk(self, r: VllmRequest, budget: int, threshold: int) -> int:
        """Tokens of its prompt for this step: what is left of the step's `budget`, and of the `threshold` (0: none)."""
        want = min(r.num_tokens - r.computed, budget, self.max_len - r.computed - 1)
        return threshold if 0 < threshold < want else want

    def place(self, r: VllmRequest, want: int) -> tuple[bool, int]:
        """Blocks for `want` more tokens of a running request, preempting until there are enough. False when it had to
        give itself up. Also returns the tokens that victims had been given in this step."""
        start = self.computed(r)
        need = self.blocks_for(start + want) - len(r.table)
        given_back = 0
        while need > 0 and need > self.pool.num_free:
            victim = self._choose_victim()
            given_back += self._take_back(victim)
            self.preempted.append(self.preempt(victim))
            if victim is r:
                return False, given_back
        if need > 0:
            r.table += self.pool.take(need)
        known = start + 1 - (not r.delivered) if r.state == DECODE else r.num_tokens
        self.publish_up_to(r, min(start + want, known))
        return True, given_back

    def _take_back(self, victim: VllmRequest) -> int:
        """Tokens of this step's budget that `victim` holds."""
        if victim.state == DECODE:
            return int(self.served is None or victim in self.served)
        return self.chunks.pop(victim, 0)

    def _choose_victim(self) -> VllmRequest:
        if self.by_priority:
            return max(self.running, key=lambda r: (r.priority, r.arrival))
        return next(reversed(self.running))

    def admit(self, budget: int, threshold: int, hold: bool) -> bool:
        """Strictly from the head; the first that does not fit stops all behind it. With `hold` (a step kept free of
        prefill) only one that has a single token left may pass. Returns whether anybody has more than that."""
        waiting, pool, running = self.waiting, self.pool, self.running
        has_prefill = False
        while waiting and budget > 0 and len(running) < self.max_running:
            r = waiting.peek()
            hit = self.cached_prefix(r)
            start = len(hit) * self.block_size
            rest = want = r.num_tokens - start
            if hold and rest > 1:
                break
            if 0 < threshold < want:
                want = threshold
            if want > budget:
                if not self.options.enable_chunked_prefill:
                    break
                want = budget
            need = self.blocks_for(start + want) - len(hit)
            if self.blocks_at_admission(r, hit, need) > pool.num_free:
                break
            waiting.pop()
            if hit:
                pool.touch(hit)
            r.table = hit + pool.take(need) if hit else pool.take(need)
            r.num_cached, r.computed, r.state = len(hit), start, PREFILL
            self.publish_up_to(r, start + want)
            r.seq = self.num_admitted
            self.num_admitted += 1
            running[r] = self.prefilling[r] = None
            self.chunks[r] = want
            self.admitted.append(r)
            has_prefill |= rest > 1
            budget -= want
        return has_prefill

    def cached_prefix(self, r: VllmRequest) -> list[int]:
        """Blocks of the longest cached prefix that leaves at least one token to compute (`get_computed_blocks`)."""
        if not self.caching or r.private:
            return []
        limit = (r.num_tokens - 1) // self.block_size
        self.contents.extend(r, limit)
        return self.pool.lookup(r.keys, limit)

    def blocks_at_admission(self, r: VllmRequest, hit: list[int], need: int) -> int:
        """Free blocks that must be there to admit `r`: by default its whole known sequence must fit, not only the first
        chunk; idle hit blocks stop being free; the watermark is waived while nothing runs."""
        if self.options.scheduler_reserve_full_isl:
            need = max(need, self.blocks_for(r.num_tokens) - len(hit))
        return need + self.pool.num_idle(hit) + (self.options.watermark_blocks if self.running else 0)
