"""Stage 1 of a step: which active requests may hold KV (`scheduler.py`, `PyCapacityScheduler`, @002f3cc3).

| policy | rule |
| --- | --- |
| GUARANTEED_NO_EVICT | all that generate; then contexts in order, while what they need *to completion* is left; the first misfit stops |
| STATIC_BATCH | the same, but contexts only while nobody generates, and nobody is deferred |
| MAX_UTILIZATION | in order, what each needs for *one step*; at a misfit the last started request at or behind it is paused and the list ends there |
| MaxRequests (no KV manager) | the first `max_num_requests` |

Deferral ("beneficial to skip"): a request whose first block that is not in the tree will be contributed by one before it
waits, to reuse that block later.
"""

from __future__ import annotations

from labkit.serving.systems.tensorrt_llm_request import CONTEXT, GENERATION, TensorRtLlmRequest
from labkit.serving.systems.tensorrt_llm_state import TensorRtLlmState


class Capacity(TensorRtLlmState):
    """The capacity stage: which requests may run in this step, by policy."""

    def fitting_contexts(self) -> list[TensorRtLlmRequest]:
        """GUARANTEED_NO_EVICT, STATIC_BATCH and MaxRequests: every generating request fits (they were admitted so);
        returns the contexts that do."""
        static = self.options.capacity_scheduler_policy == "STATIC_BATCH"
        num_generating = self.decoding.num
        if not self.contexts or (self.has_kv and static and num_generating):
            return []
        if not self.has_kv:
            return self._first_requests()
        room = self.options.request_limit - num_generating
        available = self.pool.num_free - self.reserved_blocks
        contributed = set() if static else self._contributed()
        chosen: list[TensorRtLlmRequest] = []
        for r in self.contexts:
            if not static and self._deferred(r, contributed):
                continue
            if len(chosen) >= room:
                break
            need = self.blocks_to_completion(r) - self._credit(r)
            if need > available:
                break
            available -= need
            chosen.append(r)
        return chosen

    def _first_requests(self) -> list[TensorRtLlmRequest]:
        """Without KV, in list order: contexts that stand among the first `max_num_requests` of the list."""
        first = self.active[: self.options.request_limit]
        return [r for r in first if r.state == CONTEXT]

    def fitting_by_utilization(self) -> tuple[list[TensorRtLlmRequest], list[TensorRtLlmRequest]]:
        """MAX_UTILIZATION: (fitting in list order, to be paused)."""
        contributed = self._contributed()
        fitting: list[TensorRtLlmRequest] = []
        victims: list[TensorRtLlmRequest] = []
        free, taken, limit = self.pool.num_free, 0, self.options.request_limit
        may_defer = self.reuse and self.options.enable_prefix_aware_scheduling
        refs_lowered: dict[int, int] = {}
        i, end = 0, len(self.active)
        while i < end:
            r = self.active[i]
            if may_defer and r.state == CONTEXT and self._deferred(r, contributed):
                i += 1
                continue
            need = self._blocks_for_one_step(r)
            if len(fitting) < limit and taken + need <= free:
                fitting.append(r)
                taken += need
                i += 1
                continue
            started = (j for j in range(end - 1, i - 1, -1) if self._is_started(self.active[j]))
            last = next(started, None)
            if last is None:
                break
            victim = self.active[last]
            victims.append(victim)
            end = last
            for block in victim.table:  # a shared block comes free with its last holder
                refs_lowered[block] = refs_lowered.get(block, 0) + 1
                free += refs_lowered[block] == self.pool.ref[block]
        return fitting, victims

    def _is_started(self, r: TensorRtLlmRequest) -> bool:
        return r.state == GENERATION or r.computed > 0

    def _blocks_for_one_step(self, r: TensorRtLlmRequest) -> int:
        """`getNeededBlocksOneStep`. A first context chunk takes the blocks of the whole prompt, later ones none."""
        if r.state == CONTEXT:
            return self.blocks_for(r.prompt) - self._credit(r) if r.is_first_chunk else 0
        kv = self.decoding.step + r.offset
        if kv % self.block_size and not self.options.two_step_lookahead:
            return 0
        ahead = min(2 if self.options.two_step_lookahead else 1, r.total - kv)
        return self.blocks_for(kv + ahead) - self.blocks_for(kv)

    def _credit(self, r: TensorRtLlmRequest) -> int:
        """Blocks a first chunk need not take: cached ones that somebody holds now (idle ones are counted as free). Also notes
        the estimate of reusable tokens for stage 2: all cached full blocks."""
        if not self.reuse or not r.is_first_chunk:
            return 0
        if not self.options.enable_prefix_aware_scheduling or r.private:
            r.reusable = 0
            return 0
        hit = self._cached_prompt(r)
        r.reusable = len(hit) * self.block_size
        ref = self.pool.ref
        return sum(1 for block in hit if ref[block])

    def _cached_prompt(self, r: TensorRtLlmRequest) -> list[int]:
        """Walks the whole prompt, as the upstream test does; no recording tells it from a walk of `prompt - 1`."""
        full = r.prompt // self.block_size
        self.contents.extend(r, full)
        return self.pool.cached_prefix(r.keys, full)

    def _first_new_block(self, r: TensorRtLlmRequest) -> int | None:
        full, cached = r.prompt // self.block_size, len(self._cached_prompt(r))
        return r.keys[cached] if cached < full else None

    def _contributed(self) -> set[int]:
        """First missing blocks of contexts that are already running."""
        if not self.reuse or not self.options.enable_prefix_aware_scheduling:
            return set()
        running = (r for r in self.contexts if not r.is_first_chunk and not r.private)
        return {key for key in map(self._first_new_block, running) if key is not None}

    def _deferred(self, r: TensorRtLlmRequest, contributed: set[int]) -> bool:
        if not self.reuse or not self.options.enable_prefix_aware_scheduling:
            return False
        if r.private or r.state != CONTEXT or not r.is_first_chunk:
            return False
        key = self._first_new_block(r)
        if key in contributed:
            return True
        if key is not None:
            contributed.add(key)
        return False
