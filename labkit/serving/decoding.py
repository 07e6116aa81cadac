"""Decoding requests without touching each of them in each step.

All decoding requests advance together, one token a decode step. So while one decodes, `computed - clock` is constant
(`offset`), and only two things can happen to it, both at a clock value known beforehand:

    due     the step at that clock needs a slot that its cache manager has not handed out yet
    last    the step that brings the clock there samples its last token

Between those, a step costs the same for one decoding request as for a thousand. Leaving rebuilds `num_computed_tokens`
from the offset. Entries of requests that left are not searched for: an entry counts only while the request still
carries the same clock value.
"""

from __future__ import annotations

from operator import attrgetter

from labkit.errors import require
from labkit.serving.request import Request

by_seq = attrgetter("seq")


class DecodeTable:
    """`num_kv_tokens` is the sum of computed tokens over the decoding requests: what a decode step reads."""

    def __init__(self) -> None:
        self.clock = 0
        self.num_decoding = 0
        self.num_kv_tokens = 0
        self._due: dict[int, list[Request]] = {}
        self._last: dict[int, list[Request]] = {}

    def computed(self, request: Request) -> int:
        """Tokens of a decoding request that have KV."""
        return self.clock + request.offset

    def outputs(self, request: Request) -> int:
        """computed = known - 1 while decoding."""
        return self.clock + request.offset - request.spec.num_prompt_tokens + 1

    def enter(self, request: Request, num_slots: int) -> None:
        """Start to decode; `num_slots` positions can be written before the cache must be asked again.

        The request has at least one token left to sample.
        """
        request.status = "decoding"
        request.offset = request.num_computed_tokens - self.clock
        self.num_decoding += 1
        self.num_kv_tokens += request.num_computed_tokens
        self.set_due(request, num_slots)
        self.set_last(request)

    def leave(self, request: Request) -> None:
        """Stop to decode (finished, preempted, stalled): its own counts are valid again."""
        request.num_output_tokens = self.outputs(request)
        request.num_computed_tokens = self.computed(request)
        self.num_decoding -= 1
        self.num_kv_tokens -= request.num_computed_tokens
        request.due_at = request.last_at = -1

    def set_due(self, request: Request, num_slots: int) -> None:
        """It has `num_slots` token slots, and must be asked about again when they are used up."""
        request.due_at = num_slots - request.offset
        self._due.setdefault(request.due_at, []).append(request)

    def set_last(self, request: Request) -> None:
        """Also called when its target changes."""
        last_at = self.clock + request.target_output_tokens - self.outputs(request)
        require(last_at > self.clock, "a decoding request has a token left", request=request.request_id)
        request.last_at = last_at
        self._last.setdefault(last_at, []).append(request)

    def due(self) -> list[Request]:
        """Requests that need a slot in the step at this clock, in admission order (the list may be out of order where
        one stalled, or where a contiguous cache gave one more room than another)."""
        rows = self._due.pop(self.clock, None)
        if not rows:
            return []
        if len(rows) > 1:
            rows = sorted({id(r): r for r in rows}.values(), key=by_seq)
        return [r for r in rows if r.due_at == self.clock]

    def advance(self) -> list[Request]:
        """The decode step ran: every request computed one token. Returns those that sampled their last one, in
        admission order; they still have to `leave`."""
        self.clock += 1
        self.num_kv_tokens += self.num_decoding
        rows = self._last.pop(self.clock, None)
        if not rows:
            return []
        if len(rows) > 1:
            rows = sorted({id(r): r for r in rows}.values(), key=by_seq)
        return [r for r in rows if r.last_at == self.clock]

    def check_integrity(self, decoding: list[Request]) -> None:
        """The counters equal what walking every request gives."""
        require(
            len(decoding) == self.num_decoding, "num_decoding", counted=len(decoding), kept=self.num_decoding
        )
        walked = sum(self.computed(r) for r in decoding)
        require(walked == self.num_kv_tokens, "num_kv_tokens", counted=walked, kept=self.num_kv_tokens)
        for r in decoding:
            require(
                r.due_at >= self.clock, "due lies ahead", request=r.request_id, due=r.due_at, clock=self.clock
            )
            require(
                r.last_at > self.clock,
                "last lies ahead",
                request=r.request_id,
                last=r.last_at,
                clock=self.clock,
            )
            require(r in self._due[r.due_at], "due is registered", request=r.request_id)
            require(r in self._last[r.last_at], "last is registered", request=r.request_id)
