"""Objects that come, stay and go in one memory: the smallest service that can fragment.

A `Holding` is a piece of memory with a lifetime; a `Memory` places it or says no. Nothing is scheduled and nothing is
computed, so what a run shows is the effect of sizes, lifetimes and placement alone.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from labkit.kv.block_pool import BlockPool
from labkit.memory import Allocator, OutOfMemory, Span
from labkit.workload.base import RequestSpec


@dataclass(frozen=True, slots=True)
class Holding:
    """`size` bytes that are wanted at `arrival_s` and kept for `hold_s` seconds once they are given."""

    arrival_s: float
    hold_s: float
    size: int
    lifetime: str = "request"
    tag: str = ""


class Memory(Protocol):
    """Where holdings live. `place` returns a handle, or None when it has no room."""

    capacity: int

    def place(self, holding: Holding) -> Any: ...

    def release(self, handle: Any) -> None: ...

    def free_bytes(self) -> int: ...

    def largest_free_bytes(self) -> int: ...

    def layout(self) -> list[Span]: ...


class AllocatorMemory:
    """Each holding is one contiguous allocation."""

    def __init__(self, allocator: Allocator):
        self.allocator = allocator
        self.capacity = allocator.stats().capacity_bytes

    def place(self, holding: Holding) -> Any:
        try:
            return self.allocator.malloc(holding.size, tag=holding.tag, lifetime=holding.lifetime)
        except OutOfMemory:
            return None

    def release(self, handle: Any) -> None:
        self.allocator.free(handle)

    def free_bytes(self) -> int:
        return self.allocator.stats().free_bytes

    def largest_free_bytes(self) -> int:
        return self.allocator.stats().largest_free_bytes

    def layout(self) -> list[Span]:
        return self.allocator.layout()


class BlockMemory:
    """Each holding is as many blocks of `block_bytes` as cover it, wherever they are free."""

    def __init__(self, capacity: int, block_bytes: int):
        self.block_bytes = block_bytes
        self.pool = BlockPool(capacity // block_bytes)
        self.capacity = self.pool.num_blocks * block_bytes
        self._owner: dict[int, Holding] = {}

    def place(self, holding: Holding) -> Any:
        num_blocks = -(-holding.size // self.block_bytes)
        if num_blocks > self.pool.num_free:
            return None
        blocks = self.pool.take(num_blocks)
        self._owner.update(dict.fromkeys(blocks, holding))
        return blocks

    def release(self, handle: Any) -> None:
        self.pool.release(handle)
        for block in handle:
            del self._owner[block]

    def free_bytes(self) -> int:
        return self.pool.num_free * self.block_bytes

    def largest_free_bytes(self) -> int:
        return self.free_bytes()  # any free block serves any request: all of it is one pool

    def layout(self) -> list[Span]:
        size = self.block_bytes
        return [
            Span(block * size, size, "allocated", size, self._owner[block].tag, self._owner[block].lifetime)
            if block in self._owner
            else Span(block * size, size, "free")
            for block in range(self.pool.num_blocks)
        ]


@dataclass(frozen=True, slots=True)
class Failure:
    """A placement that did not work at first: bytes asked and what was free then."""

    time_s: float
    asked: int
    free: int
    largest_free: int

    @property
    def with_room_to_spare(self) -> bool:
        """Enough bytes were free, in pieces: fragmentation, not capacity."""
        return self.free >= self.asked


@dataclass
class ChurnRun:
    """What happened; bytes and seconds."""

    capacity: int
    times_s: list[float] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    largest_free: list[int] = field(default_factory=list)
    num_live: list[int] = field(default_factory=list)
    num_waiting: list[int] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    num_placed: int = 0
    num_dropped: int = 0
    placed_bytes: int = 0
    #: (bytes asked, bytes evicted for it) of each placement that had to evict
    evictions: list[tuple[int, int]] = field(default_factory=list)
    snapshots: list[tuple[float, list[Span]]] = field(default_factory=list)

    @property
    def contiguity_loss(self) -> list[float]:
        """1 - largest free / free at each sample."""
        return [1 - largest / free if free else 0.0 for free, largest in zip(self.free, self.largest_free)]

    @property
    def mean_contiguity_loss(self) -> float:
        """Averaged over time: a state that lasts no time does not count."""
        lasts = [later - now for now, later in zip(self.times_s, self.times_s[1:])]
        total = sum(lasts)
        return sum(loss * last for loss, last in zip(self.contiguity_loss, lasts)) / total if total else 0.0

    @property
    def num_fragmentation_failures(self) -> int:
        return sum(failure.with_room_to_spare for failure in self.failures)


class Churn:
    """One run. `on_failure`: "wait" queues first come first served, "drop" turns the holding away.

    With `keep_finished` what has ended stays in memory as a cache and is evicted, oldest first, only when a placement
    needs the room. Samples are taken after every arrival, with `sample_ends` also after every end.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        on_failure: Literal["wait", "drop"] = "wait",
        keep_finished: bool = False,
        sample_ends: bool = False,
    ):
        self.memory, self.on_failure, self.keep_finished = memory, on_failure, keep_finished
        self.sample_ends = sample_ends
        self.run = ChurnRun(memory.capacity)
        self._ends: list[tuple[float, int]] = []
        self._live: dict[int, tuple[Holding, Any]] = {}
        self._cached: OrderedDict[int, tuple[Holding, Any]] = OrderedDict()
        self._waiting: deque[tuple[int, Holding]] = deque()
        self._num = 0

    def feed(self, holdings: Iterable[Holding], *, snapshot_times_s: Sequence[float] = ()) -> ChurnRun:
        """Run `holdings` (in order of arrival) and return the run so far; may be called again to go on."""
        wanted = deque(snapshot_times_s)
        for holding in holdings:
            self._advance(holding.arrival_s)
            while wanted and wanted[0] <= holding.arrival_s:
                self.run.snapshots.append((wanted.popleft(), self.memory.layout()))
            self._arrive(holding)
            self._sample(holding.arrival_s)
        return self.run

    def drain(self) -> ChurnRun:
        """Let everything that is alive or waits end."""
        while self._ends:
            self._advance(self._ends[0][0])
        return self.run

    def restart(self, memory: Memory, now_s: float) -> None:
        """A fresh memory at `now_s`: the cache is gone, what is alive is placed again in order of arrival and ends when
        it would have ended."""
        self._advance(now_s)
        ends = sorted((number, end_s) for end_s, number in self._ends)
        alive = [(number, self._live[number][0], end_s) for number, end_s in ends]
        self.memory, self._live, self._ends, self._cached = memory, {}, [], OrderedDict()
        for number, holding, end_s in alive:
            if not self._place(number, holding, end_s):
                self.run.num_dropped += 1
        self._admit_waiting(now_s)

    def _arrive(self, holding: Holding) -> None:
        number, self._num = self._num, self._num + 1
        if self._waiting or not self._place(number, holding, holding.arrival_s + holding.hold_s):
            if not self._waiting:
                self._note_failure(holding, holding.arrival_s)
            if self.on_failure == "wait" and holding.size <= self.memory.capacity:
                self._waiting.append((number, holding))
            else:
                self.run.num_dropped += 1
        else:
            self.run.waits_s.append(0.0)

    def _advance(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            end_s, number = heapq.heappop(self._ends)
            holding, handle = self._live.pop(number)
            if self.keep_finished:
                self._cached[number] = (holding, handle)
            else:
                self.memory.release(handle)
            self._admit_waiting(end_s)
            if self.sample_ends:
                self._sample(end_s)

    def _admit_waiting(self, now_s: float) -> None:
        while self._waiting:
            number, holding = self._waiting[0]
            if not self._place(number, holding, now_s + holding.hold_s):
                self._note_failure(holding, now_s)
                return
            self._waiting.popleft()
            self.run.waits_s.append(now_s - holding.arrival_s)

    def _place(self, number: int, holding: Holding, end_s: float) -> bool:
        handle, evicted_bytes = self.memory.place(holding), 0
        while handle is None and self._cached:
            _, (evicted, old) = self._cached.popitem(last=False)
            self.memory.release(old)
            evicted_bytes += evicted.size
            handle = self.memory.place(holding)
        if evicted_bytes:
            self.run.evictions.append((holding.size, evicted_bytes))
        if handle is None:
            return False
        self._live[number] = (holding, handle)
        heapq.heappush(self._ends, (end_s, number))
        self.run.num_placed += 1
        self.run.placed_bytes += holding.size
        return True

    def _note_failure(self, holding: Holding, now_s: float) -> None:
        memory = self.memory
        self.run.failures.append(
            Failure(now_s, holding.size, memory.free_bytes(), memory.largest_free_bytes())
        )

    def _sample(self, now_s: float) -> None:
        run, memory = self.run, self.memory
        run.times_s.append(now_s)
        run.free.append(memory.free_bytes())
        run.largest_free.append(memory.largest_free_bytes())
        run.num_live.append(len(self._live))
        run.num_waiting.append(len(self._waiting))


def holdings_of(
    requests: Iterable[RequestSpec],
    *,
    bytes_per_token: int,
    seconds_per_token: float,
    prefill_s_per_token: float = 1e-4,
) -> list[Holding]:
    """What each request holds if its KV is reserved at its final length: (prompt + output) tokens for as long as it
    takes to compute them one output token at a time."""
    return [
        Holding(
            arrival_s=request.arrival_s,
            hold_s=request.num_prompt_tokens * prefill_s_per_token
            + request.num_output_tokens * seconds_per_token,
            size=(request.num_prompt_tokens + request.num_output_tokens) * bytes_per_token,
            lifetime="request",
            tag=request.request_id,
        )
        for request in requests
    ]
