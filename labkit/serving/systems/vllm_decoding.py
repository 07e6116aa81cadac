"""A decoding request is two table entries: nothing about it is touched in the steps where nothing about it is decided.

While it decodes, its computed tokens grow by one a step, so `computed - step` is constant (`offset`). Two things happen
to it, and both are known from the offset:

    due     in steps with (step + offset) % block_size == 0 its next token needs a new block
    last    in step `last_step` it samples the last token it will sample

So `due` is one row of requests per residue, sorted by admission number (the order of the running list), and `last` maps a
step to its requests. In step s, `due[s % B]` take a block; a synchronous scheduler also fills one for `due[(s+1) % B]`
(their token in s is the last of a block), and an asynchronous one for `due[s % B]` (the token that filled it has been
delivered meanwhile). Counters give the tokens and the KV reads of all of them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from labkit.errors import require
from labkit.serving.systems.vllm_request import DECODE

by_seq = attrgetter("seq")


class Decodes(Protocol):
    """What a request must have to be kept here."""

    seq: int
    state: int
    computed: int
    offset: int
    last_step: int


R = TypeVar("R", bound=Decodes)


class Decoding(Generic[R]):
    """`step` is the step being decided; `num` requests decode in it and read `num_kv_tokens` cached tokens."""

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.step = 0
        self.num = 0
        self.num_kv_tokens = 0
        self.due: list[list[R]] = [[] for _ in range(block_size)]
        self.last: dict[int, list[R]] = {}

    def enter(self, r: R) -> None:
        """From this step on `r` decodes: `r.computed` tokens are in its blocks, `r.last_step` is set."""
        r.state = DECODE
        r.offset = r.computed - self.step
        row = self.due[-r.offset % self.block_size]
        if row and row[-1].seq > r.seq:
            insort(row, r, key=by_seq)
        else:
            row.append(r)
        self.last.setdefault(r.last_step, []).append(r)
        self.num += 1
        self.num_kv_tokens += r.computed

    def leave(self, r: R) -> None:
        """Stop before its last step (preempted, or passed over): `r.computed` is valid again."""
        row = self.last[r.last_step]
        row.remove(r)
        if not row:
            del self.last[r.last_step]
        self.end(r)

    def end(self, r: R) -> None:
        """Stop because `pop_last` has returned it."""
        r.computed = self.step + r.offset
        self.due[-r.offset % self.block_size].remove(r)
        self.num -= 1
        self.num_kv_tokens -= r.computed

    def advance(self) -> list[R] | None:
        """The step ran. Returns those that computed their last token in it, in no order; they still have to `end`."""
        ended = self.last.pop(self.step, None)
        self.step += 1
        self.num_kv_tokens += self.num
        return ended

    def check_integrity(self, running: Iterable[R]) -> None:
        """The rows and counters are what walking every running request gives."""
        walked = [r for r in running if r.state == DECODE]
        computed = sum(self.step + r.offset for r in walked)
        require(len(walked) == self.num, "number of decoding requests", counted=len(walked), kept=self.num)
        require(
            computed == self.num_kv_tokens,
            "KV tokens of a decode step",
            counted=computed,
            kept=self.num_kv_tokens,
        )
        for residue, row in enumerate(self.due):
            expected = sorted((r for r in walked if -r.offset % self.block_size == residue), key=by_seq)
            require(
                row == expected, "a due row holds its residue in admission order", residue=residue, row=row
            )
        for r in walked:
            require(
                r.last_step >= self.step,
                "the last step lies ahead",
                request=r,
                last=r.last_step,
                step=self.step,
            )
            require(r in self.last.get(r.last_step, ()), "the last step is registered", request=r)
        require(
            sum(map(len, self.last.values())) == self.num,
            "no other last steps are registered",
            last=self.last,
        )
