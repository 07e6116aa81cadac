"""Counters that say what a decode step needs and ends, without a look at the requests that decode."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.errors import require
from labkit.serving.systems.sglang_request import Req


class DecodeCounts:
    """`clock` counts decode steps; `num_kv_tokens` is what one reads, `num_pages_due` how many pages it must take.

    A request whose computed length at `clock` is `n` takes a page in the steps where `(clock - n) mod page_size` comes
    round again, so one small array of counts answers for all of them.
    """

    def __init__(self, page_size: int):
        self.page_size = page_size
        self.clock = 0
        self.num_decoding = 0
        self.num_kv_tokens = 0
        self._due = [0] * page_size
        self._last: dict[int, list[Req]] = {}

    @property
    def num_pages_due(self) -> int:
        """One for each request whose computed length is a whole number of pages."""
        return self._due[self.clock % self.page_size]

    def enter(self, req: Req) -> None:
        """Its prefill reached the end of its known tokens and gave it one more."""
        req.start_decoding(self.clock)
        self._last.setdefault(req.last_at, []).append(req)
        self._count(req.extend_end, 1)

    def leave(self, req: Req) -> None:
        """Finished, retracted or preempted: its own counts are valid again."""
        req.stop_decoding(self.clock)
        self._count(req.extend_end, -1)

    def advance(self) -> list[Req]:
        """Every decoding request got a token. Returns those whose last one it was, in the order of the running list."""
        self.clock += 1
        self.num_kv_tokens += self.num_decoding
        done = self._last.pop(self.clock, None)
        if done is None:
            return []
        # a request that was sent back and resumed may be listed twice, or no longer end here
        done = [req for req in dict.fromkeys(done) if req.last_at == self.clock]
        done.sort(key=lambda req: req.rank)
        return done

    def _count(self, num_computed: int, sign: int) -> None:
        self.num_decoding += sign
        self.num_kv_tokens += sign * num_computed
        self._due[(self.clock - num_computed) % self.page_size] += sign

    def check_integrity(self, decoding: Iterable[Req]) -> None:
        """The counters equal what walking every decoding request gives."""
        clock, reqs = self.clock, list(decoding)
        require(len(reqs) == self.num_decoding, "decoding requests", walked=len(reqs), kept=self.num_decoding)
        walked = sum(r.committed(clock) for r in reqs)
        require(
            walked == self.num_kv_tokens, "tokens a decode step reads", walked=walked, kept=self.num_kv_tokens
        )
        due = sum(r.committed(clock) % self.page_size == 0 for r in reqs)
        require(due == self.num_pages_due, "pages due in the next step", walked=due, kept=self.num_pages_due)
        for req in reqs:
            require(
                req.last_at > clock,
                "its last token lies ahead",
                request=req.request_id,
                last_at=req.last_at,
                clock=clock,
            )
            require(req in self._last[req.last_at], "its last step is registered", request=req.request_id)
