"""One vLLM step (`core/sched/scheduler.py`, `Scheduler.schedule` and `update_from_output`): first everybody who runs, in
admission order, then admissions from the head of the waiting queue, until the token budget is spent.

Three facts make it fast without changing a decision:

1. No running request starves of budget. Each admission needs a token to be left, and afterwards nobody before the last
   one wants more than it got; so only the last running request can be cut, and the decoding ones can be subtracted first.
   (Two options break this; then every running request is walked, `vllm_walking`.)
2. Nothing is decided about a decoding request except in steps where it takes or fills a block (`vllm_decoding`).
3. If all of those get their block and nobody or only the last runner is mid-prompt, nothing can fail before it, and the
   order inside the step does not matter: blocks are taken in one slice. Otherwise the same is done one by one, in order.
"""

from __future__ import annotations

from collections.abc import Iterable

from labkit.serving.systems.vllm_decoding import by_seq
from labkit.serving.systems.vllm_request import DECODE, DRAIN, PREFILL, VllmRequest
from labkit.serving.systems.vllm_walking import VllmWalking


class VllmSteps(VllmWalking):
    """`decide()` fixes a step, `advance()` takes its result. In between the public fields below describe it.

    Async scheduling is a lag of one: `advance()` of step s delivers what step s-1 sampled. A request stops being
    scheduled when its token count says so, and is released one step later.
    """

    def decide(self) -> None:
        if self.preempted:
            self.preempted = []
        if self.admitted:
            self.admitted = []
        decoding, pool, prefilling = self.decoding, self.pool, self.prefilling
        due = decoding.due[decoding.step % self.block_size]
        filled = due if self.lag else decoding.due[(decoding.step + 1) % self.block_size]
        threshold = self.threshold()
        if self.may_starve:
            self.decide_by_walking(threshold)
        else:
            budget = self.options.budget - decoding.num
            if len(due) <= pool.num_free and self._only_last_is_mid_prompt():
                if due:
                    for r, block in zip(due, pool.take(len(due))):
                        r.table.append(block)
                if filled and self.caching:
                    self._fill(filled)
                if prefilling:
                    budget = self._visit(list(prefilling), budget, threshold)
            else:
                budget = self._visit(sorted({*due, *filled, *prefilling}, key=by_seq), budget, threshold)
            if self.waiting and budget > 0 and not self.preempted:
                self.admit(budget, threshold, hold=False)
        self.num_decodes = decoding.num
        self.num_kv_tokens = decoding.num_kv_tokens
        if self.chunks:
            self.num_chunk_tokens = sum(self.chunks.values())
            for r in self.chunks:
                self.num_kv_tokens += r.computed
        else:
            self.num_chunk_tokens = 0

    def advance(self) -> None:
        """The decided step has run."""
        if self.started:
            self.started = []
        if self.resumed:
            self.resumed = []
        if self.finished:
            self.finished = []
        delivered: list[VllmRequest] = []
        if self.lag:
            delivered, self.draining = self.draining, delivered
            self.started, self._started_next = self._started_next, self.started
            self.resumed, self._resumed_next = self._resumed_next, self.resumed
        ended = self.decoding.advance()
        if ended:
            for r in ended:
                self.decoding.end(r)
                self._sampled_last(r, delivered)
        if self.chunks:
            for r, num_tokens in self.chunks.items():
                r.computed += num_tokens
                if r.computed == r.num_tokens:
                    self._prompt_done(r, delivered)
            self.chunks = {}
        if self.may_starve:
            self.after_walking(delivered)
        if delivered or self.done_preempted:
            self._finish(delivered)

    # ---- deciding

    def _only_last_is_mid_prompt(self) -> bool:
        prefilling = self.prefilling
        return not prefilling or (len(prefilling) == 1 and next(reversed(self.running)) in prefilling)

    def _fill(self, filled: list[VllmRequest]) -> None:
        """The newest full block of each becomes findable. With the lag, one that began to decode on a block boundary has
        no block to fill in its first due step."""
        for r in filled:
            if self.lag and r.num_cached + 1 >= len(r.table):
                continue
            if not r.private:
                self.contents.extend(r, r.num_cached + 1)
                self.pool.publish(r.table, r.keys, r.num_cached, r.num_cached + 1)
            r.num_cached += 1

    def _visit(self, visit: Iterable[VllmRequest], budget: int, threshold: int) -> int:
        """Go through running requests in order. `budget` has the decoding ones subtracted; returns what is left."""
        for r in visit:
            if r not in self.running:
                continue  # preempted a moment ago
            if r.state == DECODE:
                want, taken_before = 1, 1
            else:
                want, taken_before = self.chunk(r, budget, threshold), 0
                if want <= 0:
                    continue
            room, given_back = self.place(r, want)
            budget += given_back
            if room:
                budget += taken_before - want
                if r.state == PREFILL:
                    self.chunks[r] = want
            elif not self.by_priority:
                break
        return budget

    # ---- taking a result

    def _prompt_done(self, r: VllmRequest, delivered: list[VllmRequest]) -> None:
        """The step that computes the last known token samples one."""
        del self.prefilling[r]
        r.delivered = not self.lag
        if r.num_tokens == r.num_prompt:
            (self._started_next if self.lag else self.started).append(r)
        else:
            (self._resumed_next if self.lag else self.resumed).append(r)
        left = r.end - r.num_tokens  # tokens it will sample, this one included
        unforeseen = self.lag and r.end < r.cap  # it is scheduled once more before the end is known
        r.last_step = self.decoding.step - 2 + left + unforeseen
        if r.last_step < self.decoding.step:
            self._sampled_last(r, delivered)
        else:
            self.decoding.enter(r)

    def _sampled_last(self, r: VllmRequest, delivered: list[VllmRequest]) -> None:
        r.num_tokens = r.end
        if self.lag and r.end == r.cap:
            r.state = DRAIN
            self.draining.append(r)
        else:
            delivered.append(r)

    def _finish(self, delivered: list[VllmRequest]) -> None:
        """Blocks are released in the order in which the step scheduled its requests, never in that of their decode start."""
        delivered += self.done_preempted
        self.done_preempted = []
        if len(delivered) > 1:
            delivered.sort(key=by_seq)
        for r in delivered:
            if r.state == DRAIN:
                self.publish_up_to(r, r.computed)
            self.finish(r)
        self.finished = delivered
