"""Contiguous KV caches: one request, one run of token slots, handed out by any allocator of `labkit.memory`.

What differs is how long the run is on arrival, because nobody knows the output length then:

    reserve-max     the model's maximum for everyone                       Orca (Max)
    reserve-pow2    prompt + real output rounded up to a power of two      Orca (Pow2)
    reserve-oracle  prompt + real output, as only an oracle could          Orca (Oracle)
    grow            what is needed now; later the run is lengthened in place or copied to a longer one

The first three are the baselines of Kwon et al., SOSP'23, section 6.1; `grow` is what a KV cache that is concatenated
in every framework does.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from labkit.errors import LabError, require
from labkit.kv.base import NO_MOVES, Admission, Grown, KVCacheManager, KVStats, Move, NoSpace, positive
from labkit.memory import Allocation, Allocator, OutOfMemory, Span


@dataclass(slots=True)
class Run:
    """One live request: `allocation` is its reservation in slots, `num_tokens` what it has placed there."""

    allocation: Allocation
    num_tokens: int


class ContiguousKVCache(KVCacheManager):
    """Reservation on arrival; a request that outgrows it is out of luck (`NoSpace`) unless the variant grows.

    `allocator` counts in token slots, not in bytes, so that every run begins at a whole slot.
    """

    block_size = 1

    def __init__(self, allocator: Allocator, bytes_per_token: int):
        self.allocator = allocator
        self.bytes_per_token = positive(bytes_per_token, "bytes_per_token")
        self.capacity_tokens = allocator.capacity_bytes
        self.num_slots = allocator.address_space_bytes
        self._runs: dict[str, Run] = {}
        self._num_tokens = 0
        self._num_moved_tokens = 0

    def reservation(self, num_tokens: int, max_tokens: int, final_tokens: int | None) -> int:
        """Slots to reserve for a request of `num_tokens` now. At least `num_tokens`."""
        raise NotImplementedError

    # --- joining -----------------------------------------------------------------------------------------------------

    def admit(
        self,
        request_id: str,
        num_tokens: int,
        *,
        max_tokens: int,
        token_ids: Sequence[int] | None = None,
        block_keys: Sequence[Hashable] | None = None,
        final_tokens: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
    ) -> Admission:
        if request_id in self._runs:
            raise LabError(f"request {request_id!r} is already in the KV cache")
        positive(num_tokens, "num_tokens")
        asked = self.reservation(num_tokens, max_tokens, final_tokens)
        free = self.num_free_blocks
        ever = max(asked, self.most_blocks(num_tokens, max_tokens))
        if ever > self.capacity_tokens:
            reason = (
                f"request {request_id} can need {ever} slots and the cache has {self.capacity_tokens} in all"
            )
            return Admission(False, reason, asked, free, can_ever_fit=False)
        try:
            allocation, moves = self._place(request_id, asked)
        except OutOfMemory as error:
            reason = (
                f"request {request_id} needs {asked} slots in one run; {free} are free, "
                f"the longest run has {error.largest_free}"
            )
            return Admission(False, reason, asked, free)
        self._runs[request_id] = Run(allocation, num_tokens)
        self._num_tokens += num_tokens
        return Admission(True, "", asked, free, moves=moves)

    def fork(self, parent_id: str, child_id: str) -> Grown:
        """Nothing can be shared: the child gets a run of its own and a copy of every token."""
        parent = self._run(parent_id)
        if child_id in self._runs:
            raise LabError(f"request {child_id!r} is already in the KV cache")
        try:
            allocation, moves = self._place(child_id, parent.allocation.requested)
        except OutOfMemory as error:
            raise NoSpace(
                f"a fork of request {parent_id} needs {error.asked} slots in one run: {error}"
            ) from None
        copy = Move(parent.allocation.offset, allocation.offset, parent.num_tokens)
        self._runs[child_id] = Run(allocation, parent.num_tokens)
        self._num_tokens += parent.num_tokens
        self._num_moved_tokens += parent.num_tokens
        return Grown((*moves, copy))

    # --- growing and leaving -----------------------------------------------------------------------------------------

    def append(self, request_id: str, num_tokens: int = 1, token_ids: Sequence[int] = ()) -> Grown:
        run = self._run(request_id)
        if num_tokens < 1:
            positive(num_tokens, "num_tokens")
        new = run.num_tokens + num_tokens
        grown = NO_MOVES if new <= run.allocation.requested else self._lengthen(request_id, run, new)
        run.num_tokens = new
        self._num_tokens += num_tokens
        return grown

    def free(self, request_id: str, *, num_computed_tokens: int | None = None) -> None:
        run = self._run(request_id)
        self.allocator.free(run.allocation)
        self._num_tokens -= run.num_tokens
        del self._runs[request_id]

    # --- what a growing variant changes ------------------------------------------------------------------------------

    def _place(self, request_id: str, num_slots: int) -> tuple[Allocation, Sequence[Move]]:
        """A new run; raises `OutOfMemory`."""
        return self.allocator.malloc(num_slots, tag=request_id, lifetime="private"), ()

    def _lengthen(self, request_id: str, run: Run, num_tokens: int) -> Grown:
        raise NoSpace(
            f"request {request_id} needs {num_tokens} slots and reserved {run.allocation.requested} on arrival"
        )

    # --- questions ---------------------------------------------------------------------------------------------------

    def num_tokens(self, request_id: str) -> int:
        return self._run(request_id).num_tokens

    def room(self, request_id: str) -> int:
        run = self._run(request_id)
        return run.allocation.requested - run.num_tokens

    def base_slot(self, request_id: str) -> int:
        return self._run(request_id).allocation.offset

    def slot_mapping(self, request_id: str, start: int, stop: int) -> Sequence[int]:
        run = self._run(request_id)
        if not 0 <= start <= stop <= run.num_tokens:
            raise LabError(
                f"request {request_id}: positions [{start}, {stop}) are not inside [0, {run.num_tokens})"
            )
        return range(run.allocation.offset + start, run.allocation.offset + stop)

    @property
    def num_free_blocks(self) -> int:
        """Free slots, wherever they lie: whether they form a run long enough, only `admit` knows."""
        return self.capacity_tokens - self.allocator.stats().allocated_bytes

    def stats(self) -> KVStats:
        """`largest_free_bytes` is the longest run."""
        inner, per_token = self.allocator.stats(), self.bytes_per_token
        return KVStats(
            capacity_bytes=self.capacity_tokens * per_token,
            reserved_bytes=inner.allocated_bytes * per_token,
            token_bytes=self._num_tokens * per_token,
            cached_bytes=0,
            free_bytes=(self.capacity_tokens - inner.allocated_bytes) * per_token,
            largest_free_bytes=inner.largest_free_bytes * per_token,
            num_requests=len(self._runs),
            num_moved_bytes=self._num_moved_tokens * per_token,
        )

    def layout(self) -> list[Span]:
        """The allocator's spans in bytes; `requested` is what holds tokens."""
        filled = {run.allocation.offset: run.num_tokens for run in self._runs.values()}
        per_token = self.bytes_per_token
        return [
            Span(
                span.offset * per_token,
                span.size * per_token,
                span.state,
                filled.get(span.offset, 0) * per_token if span.state == "allocated" else 0,
                span.tag,
                span.lifetime,
                span.segment,
            )
            for span in self.allocator.layout()
        ]

    def check_integrity(self) -> None:
        self.allocator.check_integrity()
        live = {(span.offset, span.size) for span in self.allocator.layout() if span.state == "allocated"}
        held = {(run.allocation.offset, run.allocation.size) for run in self._runs.values()}
        require(
            live == held,
            "the allocator's runs are those of live requests",
            extra=live - held,
            lost=held - live,
        )
        for request_id, run in self._runs.items():
            require(
                0 < run.num_tokens <= run.allocation.requested,
                "tokens placed <= slots reserved",
                request=request_id,
                tokens=run.num_tokens,
                reserved=run.allocation.requested,
            )
        held_tokens = sum(run.num_tokens for run in self._runs.values())
        require(
            held_tokens == self._num_tokens,
            "tokens counted = tokens held",
            counted=self._num_tokens,
            held=held_tokens,
        )
        stats = self.stats()
        require(
            stats.reserved_bytes + stats.free_bytes == stats.capacity_bytes
            and stats.token_bytes <= stats.reserved_bytes,
            "token <= reserved, and reserved + free = capacity",
            stats=stats,
        )

    def _run(self, request_id: str) -> Run:
        try:
            return self._runs[request_id]
        except KeyError:
            raise LabError(f"request {request_id!r} is not in the KV cache") from None
