"""Steps in which a running request may get no token: walk everybody, in order.

Two options allow it. `prefill_schedule_interval` holds prefill back for some steps, in which one-token admissions may fill
the batch; and an adaptive long-prefill threshold shares out `max_num_batched_tokens` where a step schedules fewer. A
decoding request that is not reached is passed over: it leaves the tables of `vllm_decoding` and enters them again, one
step later.
"""

from __future__ import annotations

from labkit.serving.systems.vllm_options import VllmOptions
from labkit.serving.systems.vllm_placing import VllmPlacing
from labkit.serving.systems.vllm_request import DECODE, DRAIN, PREFILL, WAITING, VllmRequest


class VllmWalking(VllmPlacing):
    """Steps decided request by request, where the decoding ones cannot be moved as one."""

    def __init__(self, options: VllmOptions):
        super().__init__(options)
        self.interval = options.prefill_schedule_interval
        adaptive = options.long_prefill_token_threshold and options.long_prefill_token_threshold_adaptive
        self.may_starve = self.interval > 1 or (adaptive and options.budget < options.max_num_batched_tokens)
        self._num_executed = 0
        self._last_prefill = -self.interval
        self._backlog = False

    def decide_by_walking(self, threshold: int) -> None:
        """`prefill_schedule_interval` and an adaptive threshold above the budget: walk everybody; a decoding request that
        is not reached is passed over and goes on one step later."""
        decodes = len(self.running) > len(self.prefilling)
        recent = self._num_executed + 1 - self._last_prefill < self.interval
        hold = decodes and recent and not self._backlog
        budget, prefilled = self.options.budget, False
        self.served = served = set()
        for r in list(self.running):
            if budget <= 0:
                break
            if r not in self.running or r.state == DRAIN or (hold and r.state == PREFILL):
                continue
            want = 1 if r.state == DECODE else self.chunk(r, budget, threshold)
            if want <= 0:
                continue
            room, given_back = self.place(r, want)
            budget += given_back
            if room:
                budget -= want
                if r.state == DECODE:
                    served.add(r)
                else:
                    self.chunks[r] = want
                    prefilled = True
            elif not self.by_priority:
                break
        self.passed_over = [r for r in self.running if r.state == DECODE and r not in served]
        for r in self.passed_over:
            self.decoding.leave(r)
        if not self.preempted:
            if self.waiting and budget > 0:
                prefilled |= self.admit(budget, threshold, hold)
            if not hold:
                self._backlog = len(self.waiting) > 0
        self._num_executed += self.decoding.num + len(self.chunks) > 0
        if prefilled:
            self._last_prefill = self._num_executed

    def after_walking(self, delivered: list[VllmRequest]) -> None:
        """Those passed over decode on from where they were. With the lag, their token of the step before has arrived and
        nothing of theirs is under way, and it may have been their last."""
        if self.lag:
            for r in self.served or ():
                r.delivered = r.state == WAITING  # preempted after it was served: then nothing is under way
        for r in self.passed_over:
            if self.lag:
                r.delivered = True
                self.publish_up_to(r, r.computed)
                if r.computed + 1 == r.end:
                    delivered.append(r)
                    continue
            r.last_step += 1
            self.decoding.enter(r)
        self.passed_over = []
