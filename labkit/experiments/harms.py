"""The four harms of fragmentation, each as one number, on any memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.experiments.churn import BlockMemory, Churn, Holding, Memory


@dataclass(frozen=True)
class Harms:
    """What one memory does to one load.

    failed_admissions   placements refused although enough bytes were free
    idle_while_waiting  mean share of the capacity that was free while somebody waited: what a cautious scheduler loses
    reclaim_ratio       bytes evicted for a byte asked, over placements that had to evict
    ageing              mean contiguity loss before restarts, less that after them
    """

    failed_admissions: int
    idle_while_waiting: float
    reclaim_ratio: float
    ageing: float

    def all_present(self) -> bool:
        """Each harm is there by a margin: the predicate of claim 3.3."""
        return (
            self.failed_admissions > 0
            and self.idle_while_waiting > 0.05
            and self.reclaim_ratio > 1.75
            and self.ageing > 0.05
        )


def harms_of(make: Callable[[int], Memory], holdings: Sequence[Holding]) -> Harms:
    """`make(capacity)` builds a fresh memory. The first two harms are measured where requests must queue (0.7 of the
    peak demand), reclaim where there is room for a cache (1.3 of it), ageing at the peak demand itself."""
    peak = peak_demand(holdings)
    tight, roomy = int(0.7 * peak), int(1.3 * peak)
    queued = Churn(make(tight)).feed(holdings)
    cached = Churn(make(roomy), on_failure="drop", keep_finished=True).feed(holdings)
    waiting = np.asarray(queued.num_waiting) > 0
    reclaimed = np.asarray(cached.evictions, dtype=float).reshape(-1, 2).sum(axis=0)
    return Harms(
        failed_admissions=queued.num_fragmentation_failures,
        idle_while_waiting=float(np.asarray(queued.free)[waiting].mean() / queued.capacity)
        if waiting.any()
        else 0.0,
        reclaim_ratio=float(reclaimed[1] / reclaimed[0]) if reclaimed[0] else 0.0,
        ageing=loss_healed_by_restarts(make, holdings, peak),
    )


def loss_healed_by_restarts(
    make: Callable[[int], Memory],
    holdings: Sequence[Holding],
    capacity: int,
    *,
    num_restarts: int = 20,
    window: int = 40,
) -> float:
    """Mean contiguity loss of the `window` arrivals before each restart, less that of the `window` after it."""
    churn = Churn(make(capacity), on_failure="drop")
    pieces = [list(piece) for piece in np.array_split(np.arange(len(holdings)), num_restarts + 1)]
    differences = []
    for index, piece in enumerate(pieces):
        churn.feed(holdings[i] for i in piece)
        loss = churn.run.contiguity_loss
        if index:
            at = int(piece[0])
            differences.append(np.mean(loss[at - window : at]) - np.mean(loss[at : at + window]))
        if index < num_restarts:
            churn.restart(make(capacity), holdings[piece[-1]].arrival_s)
    return float(np.mean(differences))


def peak_demand(holdings: Sequence[Holding]) -> int:
    """Most bytes alive at once when memory is no limit."""
    events = sorted(
        [(h.arrival_s, h.size) for h in holdings] + [(h.arrival_s + h.hold_s, -h.size) for h in holdings]
    )
    return int(np.cumsum([size for _, size in events]).max())


def with_long_sessions(
    holdings: Sequence[Holding], rng: np.random.Generator, *, share: float = 0.02, factor: float = 40.0
) -> list[Holding]:
    """The same load in which a random `share` of the holdings stays `factor` times as long."""
    long = rng.random(len(holdings)) < share
    return [
        dataclasses.replace(holding, hold_s=holding.hold_s * factor, lifetime="session")
        if is_long
        else holding
        for holding, is_long in zip(holdings, long)
    ]


def block_memory(block_bytes: int) -> Callable[[int], Memory]:
    """A `make` for memory in blocks, the control of every harm."""
    return lambda capacity: BlockMemory(capacity, block_bytes)
