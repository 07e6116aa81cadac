"""Contiguous caches that reserve little and grow: in place when there is room behind them, else by copying."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.errors import LabError, require
from labkit.kv.base import Grown, Move, NoSpace, positive
from labkit.kv.contiguous import ContiguousKVCache, Run
from labkit.memory import Allocation, Allocator, OutOfMemory


class GrowKVCache(ContiguousKVCache):
    """A run is lengthened in steps of `grow_tokens` (or by `growth` times its length, if that is more).

    When the slots behind it are taken, a longer run is allocated, the tokens are copied and the old run is freed: for
    a moment both exist (peak = old + new), and the request fails although enough slots are free in total if no run is
    long enough.
    """

    name = "grow"

    def __init__(
        self, allocator: Allocator, bytes_per_token: int, *, grow_tokens: int = 64, growth: float = 1.0
    ):
        super().__init__(allocator, bytes_per_token)
        self.grow_tokens = positive(grow_tokens, "grow_tokens")
        if growth < 1:
            raise LabError(f"growth={growth} would shrink a run; write a factor of at least 1")
        self.growth = growth
        #: the most slots that old and new run held together during a copy
        self.peak_copy_slots = 0

    def reservation(self, num_tokens: int, max_tokens: int, final_tokens: int | None) -> int:
        """Rounded up to whole steps, but not beyond what the request may ever use or the cache holds."""
        rounded = -(-num_tokens // self.grow_tokens) * self.grow_tokens
        return max(num_tokens, min(rounded, max(max_tokens, num_tokens), self.capacity_tokens))

    def _lengthen(self, request_id: str, run: Run, num_tokens: int) -> Grown:
        old = run.allocation
        wanted = max(num_tokens, old.requested + self.grow_tokens, int(old.requested * self.growth))
        wanted = max(num_tokens, min(wanted, self.capacity_tokens))
        for slots in dict.fromkeys((wanted, num_tokens)):
            if self.allocator.try_grow(old, slots):
                return Grown()
        for slots in dict.fromkeys((wanted, num_tokens)):
            try:
                new, moves = self._place(request_id, slots)
            except OutOfMemory as error:
                last = error
                continue
            old = run.allocation  # compaction may have moved it
            self.peak_copy_slots = max(self.peak_copy_slots, old.size + new.size)
            self.allocator.free(old)
            run.allocation = new
            num_written = min(num_tokens, old.requested)  # `room` let it write beyond what it has appended
            self._num_moved_tokens += num_written
            return Grown((*moves, Move(old.offset, new.offset, num_written)))
        raise NoSpace(
            f"request {request_id} needs a run of {num_tokens} slots beside its {old.size}; {last.free} are free, "
            f"the longest run has {last.largest_free}"
        ) from None


class GrowCompactKVCache(GrowKVCache):
    """As `grow`, but when enough slots are free and no run is long enough, all live runs slide together to the low end
    first. Every slot that moves is counted: all that are reserved, since `room` lets a request write there unseen."""

    name = "grow-compact"

    def __init__(
        self, allocator: Allocator, bytes_per_token: int, *, grow_tokens: int = 64, growth: float = 1.0
    ):
        super().__init__(allocator, bytes_per_token, grow_tokens=grow_tokens, growth=growth)
        self.num_compactions = 0

    def _place(self, request_id: str, num_slots: int) -> tuple[Allocation, Sequence[Move]]:
        try:
            return super()._place(request_id, num_slots)
        except OutOfMemory as error:
            if error.kind != "fragmentation":
                raise
            moves = self.compact()
            allocation, _ = super()._place(request_id, num_slots)
            return allocation, moves

    def compact(self) -> list[Move]:
        """Slide every run to the lowest free slot, in address order. A run only ever moves down, so that executing the
        moves in order overwrites nothing that is still needed."""
        runs = sorted(self._runs.values(), key=lambda run: run.allocation.offset)
        moves = []
        for run in runs:
            self.allocator.free(run.allocation)
        for run in runs:
            old = run.allocation
            run.allocation = self.allocator.malloc(old.requested, tag=old.tag, lifetime=old.lifetime)
            source, target = old.offset, run.allocation.offset
            require(target <= source, "compaction only moves runs down", source=source, target=target)
            if target < source:
                moves.append(Move(source, target, old.requested))
                self._num_moved_tokens += old.requested
        self.num_compactions += 1
        return moves
