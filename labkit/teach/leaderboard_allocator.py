"""The allocator board. What allocators are asked is recorded from the lab's engine: a contiguous cache that grows in steps
of 256 tokens, under the lab's scheduler, on each load.

    malloc   a request is admitted
    grow     it needs a longer run: in place (`try_grow`) or by a second allocation, a copy, and a free of the first
    free     it ended

A request is *served* when nothing it asked for was refused, and *good* when it was copied at most twice as well. Whatever
an entry returns is judged here from the offsets it gave out, not from what it says about itself.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.experiments.serve import STEP_COST
from labkit.kv.grow import GrowKVCache
from labkit.memory import ALLOCATORS, Allocation, Allocator, OutOfMemory, make_allocator
from labkit.memory.base import AllocatorStats, Span
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.teach.leaderboard import Board, Result, Row
from labkit.teach.leaderboard_entry import Disqualified, Entry, in_child, load_class
from labkit.teach.leaderboard_traces import BYTES_PER_TOKEN, BoardLoad, serving_loads
from labkit.units import GIB

COLUMNS = ("served", "moved_gib", "goodput", "utilisation", "refusals")
#: (kind, request, bytes): what an allocator is asked
Op = tuple[str, int, int]
#: (op, what happened, offset, size): "placed", "grown", "moved", "refused", "freed"
Decision = tuple[int, str, int, int]
GROW_TOKENS = 256
#: memory over the peak of what is asked for
ROOM = 1.08
#: page of each system's pool, in tokens
SYSTEM_BLOCKS = {"vllm, blocks of 16": 16, "sglang, pages of 1": 1, "tensorrt_llm, blocks of 32": 32}


@dataclass(frozen=True)
class AllocationTrace:
    """`ops` in order; `capacity` is what every allocator gets; `duration_s` of the load."""

    name: str
    ops: tuple[Op, ...]
    num_requests: int
    capacity: int
    duration_s: float


def judge(num_requests: int | None, seed: int) -> tuple[Board, Callable[[Entry], list[Result]]]:
    """The board with everything that is built in, and the function that scores an entry."""
    loads = serving_loads(num_requests or 250, seed)
    traces = [record(load) for load in loads]
    board = Board("allocator", COLUMNS, [load.origin for load in loads])
    for name in ALLOCATORS:
        board.rows.append(Row(name, "built in", tuple(_built_in(name, trace) for trace in traces)))
    for name, block in SYSTEM_BLOCKS.items():
        board.rows.append(
            Row(name, "system", tuple(_blocks(trace, block * BYTES_PER_TOKEN) for trace in traces))
        )
    return board, lambda entry: [
        score_entry(entry, trace, other) for trace, other in zip(traces, traces[1:] + traces[:1])
    ]


def record(load: BoardLoad) -> AllocationTrace:
    """Serve the load once on memory without an end and note what is asked of it."""
    memory = _Endless(64 * load.pool_tokens)
    kv = GrowKVCache(memory, 1, grow_tokens=GROW_TOKENS)
    scheduler = make_scheduler("lab", kv, max_model_len=16_384)
    totals = simulate(scheduler, LinearStepCost(**STEP_COST), load.requests)
    ops = tuple((kind, number, size * BYTES_PER_TOKEN) for kind, number, size in memory.ops)
    live: dict[int, int] = {}
    peak = 0
    for kind, number, size in ops:
        if kind == "free":
            del live[number]
        else:
            live[number] = size
            peak = max(peak, sum(live.values()))
    return AllocationTrace(load.name, ops, memory.num, int(ROOM * peak), totals.end_s)


def play(make: Callable[[], Allocator], trace: AllocationTrace) -> tuple[list[Decision], float]:
    """What an allocator decides on `trace`, and the CPU seconds of it."""
    allocator = make()
    live: dict[int, Allocation] = {}
    log: list[Decision] = []
    start = time.process_time()
    for index, (kind, number, size) in enumerate(trace.ops):
        old = live.get(number)
        if kind == "free":
            if old is not None:
                log.append((index, "freed", old.offset, old.size))
                allocator.free(live.pop(number))
            continue
        if kind == "grow" and old is None:
            continue  # it was refused before
        if old is not None and allocator.try_grow(old, size):
            log.append((index, "grown", old.offset, old.size))
            continue
        try:
            new = allocator.malloc(size, tag=f"r{number}", lifetime="request")
        except OutOfMemory:
            log.append((index, "refused", 0, 0))
            if old is not None:
                allocator.free(live.pop(number))
            continue
        log.append((index, "placed" if old is None else "moved", new.offset, new.size))
        if old is not None:
            allocator.free(old)
        live[number] = new
    return log, time.process_time() - start


def score(
    trace: AllocationTrace, log: Sequence[Decision], cpu_s: float, *, address_space: int | None = None
) -> Result:
    """Judge a log. `address_space` is the highest address there is (None: the capacity). Raises `Disqualified` when spans
    overlap, lie outside, or are shorter than asked."""
    limit = trace.capacity if address_space is None else address_space
    spans: list[tuple[int, int, int]] = []  # (start, end, request), sorted
    live: dict[int, tuple[int, int]] = {}
    asked: dict[int, int] = {}
    lost: set[int] = set()
    copies: dict[int, int] = {}
    moved = 0
    used = 0.0
    for index, what, offset, size in log:
        _, number, want = trace.ops[index]
        if what in ("placed", "grown", "moved"):
            _require_room(
                size >= want and offset >= 0 and offset + size <= limit, trace, number, offset, size, want
            )
            if what == "grown":
                spans.remove((*live[number], number))
            at = bisect_left(spans, (offset, 0, 0))
            for other in spans[max(0, at - 1) : at + 1]:
                if other[0] < offset + size and offset < other[1]:
                    raise Disqualified(
                        "corrupts memory",
                        f"on {trace.name} request {number} got [{offset:,}, {offset + size:,}), which overlaps "
                        f"[{other[0]:,}, {other[1]:,}) of request {other[2]}, still alive",
                    )
            insort(spans, (offset, offset + size, number))
            if what == "moved":
                spans.remove((*live[number], number))
                copies[number] = copies.get(number, 0) + 1
                moved += asked[number]
            live[number], asked[number] = (offset, offset + size), want
        elif number in live:  # freed, or a growing one that was refused
            spans.remove((*live.pop(number), number))
            del asked[number]
        if what == "refused":
            lost.add(number)
        used += sum(asked.values()) / trace.capacity
    served = trace.num_requests - len(lost)
    good = served - sum(1 for number, times in copies.items() if times > 2 and number not in lost)
    figures = {
        "served": served / trace.num_requests,
        "moved_gib": moved / GIB,
        "goodput": good / trace.duration_s,
        "utilisation": used / max(1, len(log)),
        "refusals": float(len(lost)),
    }
    return Result(trace.name, figures, len(log), cpu_s)


def score_entry(entry: Entry, trace: AllocationTrace, other: AllocationTrace) -> Result:
    """Run an entry three times, each in a child of its own: twice on `trace`, and once on its first half followed by ops
    of `other`. Raises `Disqualified`."""

    def run(ops: AllocationTrace) -> tuple[list[Decision], float, tuple[Op, ...]]:
        return in_child(lambda: (*play(lambda: _built(entry, ops.capacity), ops), ops.ops))

    log, cpu_s, ops_after = run(trace)
    if ops_after != trace.ops:
        raise Disqualified("mutates the trace", f"the ops of {trace.name} are not what they were")
    if run(trace)[0] != log:
        raise Disqualified(
            "is not deterministic", f"two runs on {trace.name} placed differently; draw from a fixed seed"
        )
    half = len(trace.ops) // 2
    changed = AllocationTrace(
        trace.name, trace.ops[:half] + _later(other.ops), trace.num_requests, trace.capacity, trace.duration_s
    )
    first = [decision for decision in log if decision[0] < half]
    if [decision for decision in run(changed)[0] if decision[0] < half] != first:
        raise Disqualified(
            "reads the future",
            f"on {trace.name} its first {half} decisions change when only what is asked after them is changed",
        )
    return score(trace, log, cpu_s)


def _later(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The same ops for requests with other numbers."""
    return tuple(
        (kind, 1_000_000 + number, size) for kind, number, size in ops[len(ops) // 2 :] if kind == "malloc"
    )


def _built(entry: Entry, capacity: int) -> Allocator:
    cls = load_class(entry)
    if not issubclass(cls, Allocator):
        raise Disqualified("fails", f"{cls.__name__} is not a labkit.memory.Allocator")
    allocator: Any = cls
    return allocator(capacity)


def _built_in(name: str, trace: AllocationTrace) -> Result:
    allocator = make_allocator(name, trace.capacity)
    log, cpu_s = play(lambda: allocator, trace)
    return score(trace, log, cpu_s, address_space=max(1 << 62, allocator.address_space_bytes))


def _blocks(trace: AllocationTrace, block_bytes: int) -> Result:
    """A pool of blocks: any free block will do, nothing is ever copied."""
    free = trace.capacity // block_bytes
    held: dict[int, int] = {}
    asked: dict[int, int] = {}
    lost: set[int] = set()
    used = 0.0
    start = time.process_time()
    for kind, number, size in trace.ops:
        if kind == "free":
            free += held.pop(number, 0)
            asked.pop(number, None)
        elif number not in lost:
            needed = -(-size // block_bytes) - held.get(number, 0)
            if needed > free:
                lost.add(number)
                free += held.pop(number, 0)
                asked.pop(number, None)
            else:
                free -= needed
                held[number] = held.get(number, 0) + needed
                asked[number] = size
        used += sum(asked.values()) / trace.capacity
    served = trace.num_requests - len(lost)
    figures = {
        "served": served / trace.num_requests,
        "moved_gib": 0.0,
        "goodput": served / trace.duration_s,
        "utilisation": used / len(trace.ops),
        "refusals": float(len(lost)),
    }
    return Result(trace.name, figures, len(trace.ops), time.process_time() - start)


def _require_room(fits: bool, trace: AllocationTrace, number: int, offset: int, size: int, want: int) -> None:
    if not fits:
        raise Disqualified(
            "corrupts memory",
            f"on {trace.name} request {number} asked for {want:,} bytes and got [{offset:,}, {offset + size:,}) of a memory "
            f"of {trace.capacity:,}",
        )


class _Endless(Allocator):
    """Memory without an end, in tokens: every run can grow in place. Notes what was asked."""

    name = "endless"

    def __init__(self, capacity: int):
        self.capacity_bytes = capacity
        self.ops: list[Op] = []
        self.num = 0
        self._number: dict[int, int] = {}
        self._allocated = 0

    def malloc(self, size: int, *, tag: str = "", lifetime: str = "") -> Allocation:
        self.ops.append(("malloc", self.num, size))
        allocation = Allocation(self.num << 40, size, size, tag, lifetime)
        self._number[allocation.offset] = self.num
        self.num += 1
        self._allocated += size
        return allocation

    def try_grow(self, allocation: Allocation, size: int) -> bool:
        if size > allocation.size:
            self.ops.append(("grow", self._number[allocation.offset], size))
            self._allocated += size - allocation.size
            allocation.size = allocation.requested = size
        return True

    def free(self, allocation: Allocation) -> None:
        self.ops.append(("free", self._number.pop(allocation.offset), 0))
        self._allocated -= allocation.size

    def layout(self) -> list[Span]:
        return []

    def stats(self) -> AllocatorStats:
        free = self.capacity_bytes - self._allocated
        return AllocatorStats(
            self.capacity_bytes, self.capacity_bytes, self._allocated, self._allocated, self._allocated, free, 1, free,
            len(self._number),
        )  # fmt: skip

    def check_integrity(self) -> None:
        """Runs of one request each: there is nothing to overlap."""
