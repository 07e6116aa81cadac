"""The picture of the tour: a GPU with many GB free turns a long request away, and what a restart and blocks change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.experiments.churn import AllocatorMemory, BlockMemory, Churn, ChurnRun, Holding, Memory
from labkit.memory import Span, make_allocator


@dataclass(frozen=True)
class Moment:
    """One long request at one instant. Bytes."""

    time_s: float
    asked: int
    free: int
    largest_free: int
    served: bool
    layout: list[Span]

    @property
    def refused_with_room_to_spare(self) -> bool:
        return not self.served and self.free >= self.asked


@dataclass(frozen=True)
class Tour:
    """The load up to the worst instant, and the same long request under three conditions."""

    run: ChurnRun
    aged: Moment
    restarted: Moment
    on_blocks: Moment
    share_of_time_refused: float


def take_tour(
    holdings: Sequence[Holding],
    *,
    capacity: int,
    long_request_bytes: int,
    block_bytes: int,
    allocator: str = "first-fit",
) -> Tour:
    """Run `holdings` on contiguous memory and stop at the instant with the most free bytes at which a request of
    `long_request_bytes` finds no span. Then ask again after a restart that places the same live requests, and on blocks
    that carry the same load.

    When no such instant exists, the last one is taken and nothing is refused.
    """
    run = Churn(_contiguous(allocator, capacity), on_failure="drop").feed(holdings)
    stuck = [
        index
        for index, (free, largest) in enumerate(zip(run.free, run.largest_free))
        if largest < long_request_bytes <= free
    ]
    worst = max(stuck, key=lambda index: run.free[index]) if stuck else len(holdings) - 1
    upto = holdings[: worst + 1]

    aged = Churn(_contiguous(allocator, capacity), on_failure="drop")
    aged.feed(upto)
    before = _ask(aged.memory, upto[-1].arrival_s, long_request_bytes)
    aged.restart(_contiguous(allocator, capacity), upto[-1].arrival_s)
    after = _ask(aged.memory, upto[-1].arrival_s, long_request_bytes)
    blocks = Churn(BlockMemory(capacity, block_bytes), on_failure="drop")
    blocks.feed(upto)
    return Tour(
        run=run,
        aged=before,
        restarted=after,
        on_blocks=_ask(blocks.memory, upto[-1].arrival_s, long_request_bytes),
        share_of_time_refused=len(stuck) / len(holdings),
    )


def _contiguous(allocator: str, capacity: int) -> AllocatorMemory:
    return AllocatorMemory(make_allocator(allocator, capacity))


def _ask(memory: Memory, now_s: float, size: int) -> Moment:
    """Ask for one long request, and look at the memory as it is then (with the request in it when it was served)."""
    free, largest = memory.free_bytes(), memory.largest_free_bytes()
    handle = memory.place(Holding(now_s, 0.0, size, lifetime="long request", tag="long request"))
    return Moment(now_s, size, free, largest, handle is not None, memory.layout())


def layouts_of(
    memory: Memory, holdings: Sequence[Holding], num_layouts: int
) -> list[tuple[float, list[Span]]]:
    """`num_layouts` pictures of `memory` while it carries `holdings`, evenly spaced over the arrivals: for the player."""
    first, last = holdings[0].arrival_s, holdings[-1].arrival_s
    times = [first + (last - first) * index / (num_layouts - 1) for index in range(num_layouts)]
    return Churn(memory, on_failure="drop").feed(holdings, snapshot_times_s=times).snapshots
