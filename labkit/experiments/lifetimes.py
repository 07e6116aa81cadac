"""Section 7: an allocator hands out lifetimes. One pool for all, against pools by lifetime.

The objects of one engine, as `Holding`s with a lifetime class each:

    weights     adapters that are loaded while the service runs and stay for good
    session     KV of long chats, tens of seconds to minutes
    request     KV of ordinary requests, seconds
    prefix      shared system prompts, until the last user leaves
    workspace   temporaries of one prefill, tens of milliseconds
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.experiments.churn import AllocatorMemory, Churn, ChurnRun, Holding
from labkit.experiments.five_causes import Causes, load_with
from labkit.experiments.harms import peak_demand
from labkit.memory import make_allocator
from labkit.memory.base import Allocator, Span
from labkit.memory.pooled import PooledAllocator
from labkit.units import MIB
from labkit.workload.base import RequestSpec

#: lifetime classes from the longest to the shortest, the order in which the layers of claim 7.4 are switched on
CLASSES = ("weights", "workspace", "prefix", "session")
#: the unit in which memory can be unmapped and handed to somebody else
GRANULE = 64 * MIB


def engine_objects(
    requests: Sequence[RequestSpec], rng: np.random.Generator, *, bytes_per_token: int, num_adapters: int = 24
) -> list[Holding]:
    """Everything that one engine allocates for `requests`, in order of arrival.

    An adapter is 160 MiB (rank 64 on an 8B model, 16 bits); the workspace of a prefill is two activations of 14,336
    values a token in 16 bits and lives for as long as the prefill takes (0.1 ms a token, at least 20 ms).
    """
    causes = Causes(lengths=True, continuous=True, prefixes=True, sessions=True)
    holdings = load_with(causes, requests, rng, bytes_per_token=bytes_per_token)
    end = max(holding.arrival_s + holding.hold_s for holding in holdings)
    last = requests[-1].arrival_s
    for at in np.sort(rng.uniform(0, last, num_adapters)).tolist():
        holdings.append(Holding(at, end - at + 1.0, 160 * MIB, "weights", "adapter"))
    for request in requests:
        size = request.num_prompt_tokens * 14_336 * 2 * 2
        holdings.append(
            Holding(
                request.arrival_s, max(0.02, request.num_prompt_tokens * 1e-4), size, "workspace", "prefill"
            )
        )
    return sorted(holdings, key=lambda holding: holding.arrival_s)


def in_waves(
    requests: Sequence[RequestSpec], *, period_s: float = 60.0, busy_s: float = 10.0, factor: float = 8.0
) -> list[RequestSpec]:
    """The same requests; in the first `busy_s` of every `period_s` they arrive `factor` times as fast as in the rest."""
    busy = factor * busy_s
    whole = busy + period_s - busy_s
    warped = []
    for request in requests:
        number, share = divmod(request.arrival_s / period_s, 1.0)
        at = share * whole
        within = at / factor if at <= busy else busy_s + at - busy
        warped.append(dataclasses.replace(request, arrival_s=number * period_s + within))
    return warped


def two_lifetimes(
    rng: np.random.Generator,
    *,
    num_waves: int = 8,
    size: int = 8 * MIB,
    short_s: float = 1.0,
    long_s: float = 90.0,
) -> list[Holding]:
    """Objects of one size in waves: 60 a second for 10 s, then 2 a second for 50 s. One in twenty lives `long_s` seconds
    on average and is called "session"; the others live `short_s` and are called "request"."""
    holdings = []
    for wave in range(num_waves):
        for start, rate, lasts in ((0, 60, 10), (10, 2, 50)):
            times = 60 * wave + start + np.sort(rng.uniform(0, lasts, rng.poisson(rate * lasts)))
            long = rng.random(len(times)) < 0.05
            stays = rng.exponential(np.where(long, long_s, short_s))
            holdings += [
                Holding(float(at), float(stay), size, "session" if is_long else "request")
                for at, stay, is_long in zip(times, stays, long)
            ]
    return holdings


def same_lifetime(holdings: Sequence[Holding]) -> list[Holding]:
    """The control: the same arrivals, sizes and names, everybody stays equally long."""
    mean = float(np.mean([holding.hold_s for holding in holdings]))
    return [dataclasses.replace(holding, hold_s=mean) for holding in holdings]


def shuffled_names(holdings: Sequence[Holding], rng: np.random.Generator) -> list[Holding]:
    """Another control: lifetime names are dealt out at random, so pools by name no longer separate lifetimes."""
    names = [holding.lifetime for holding in holdings]
    return [
        dataclasses.replace(holding, lifetime=names[index])
        for holding, index in zip(holdings, rng.permutation(len(names)).tolist())
    ]


@dataclass(frozen=True)
class Pooled:
    """One run. `lost_share`: bytes free inside partly used granules, over the bytes in use; nobody but the pool's own
    class can have them; `worst_lost_share` the highest at any look. `mean_loss`: contiguity loss averaged over time. `capacity`: memory given to the pools."""

    mean_loss: float
    lost_share: float
    worst_lost_share: float
    num_failures: int
    num_dropped: int
    capacity: int
    run: ChurnRun


def run_pools(
    holdings: Sequence[Holding],
    separate: Sequence[str],
    *,
    room: float = 1.1,
    inner: str = "first-fit",
    num_looks: int = 100,
) -> Pooled:
    """Run `holdings` with the lifetime classes `separate` in pools of their own and the rest together. Each pool has
    `room` times its own peak demand, in whole granules; a full pool may borrow. The layout is looked at `num_looks`
    times."""
    parts = {name: [h for h in holdings if h.lifetime == name] for name in separate}
    rest = [h for h in holdings if h.lifetime not in separate]
    budgets = {name: _granules(room * peak_demand(part)) for name, part in parts.items() if part}
    capacity = sum(budgets.values()) + (_granules(room * peak_demand(rest)) if rest else 0)
    allocator: Allocator
    if budgets:
        allocator = PooledAllocator(capacity, budgets=budgets, inner=inner, borrow=True)
    else:
        allocator = make_allocator(inner, capacity)
    looks = np.linspace(holdings[0].arrival_s, holdings[-1].arrival_s, num_looks + 1)[1:]
    churn = Churn(AllocatorMemory(allocator), on_failure="drop", sample_ends=True)
    run = churn.feed(holdings, snapshot_times_s=looks.tolist())
    used = [sum(span.size for span in layout if span.state == "allocated") for _, layout in run.snapshots]
    held = [held_granules(layout) * GRANULE for _, layout in run.snapshots]
    return Pooled(
        mean_loss=run.mean_contiguity_loss,
        lost_share=(sum(held) - sum(used)) / sum(used),
        worst_lost_share=max(h / u - 1 for h, u in zip(held, used) if u),
        num_failures=run.num_fragmentation_failures,
        num_dropped=run.num_dropped,
        capacity=capacity,
        run=run,
    )


@dataclass(frozen=True)
class Compared:
    """Several services, each in one pool and in pools by lifetime. Losses are means over the services (`worst`: of the worst
    look of each), `memory_ratio` is all memory of the pools over all memory of the single ones."""

    lost_one_pool: float
    lost_pools: float
    worst_one_pool: float
    worst_pools: float
    memory_ratio: float

    def halved(self) -> bool:
        """Pools lose less than half of what one pool loses: the predicate of claim 7.1."""
        return self.lost_pools < self.lost_one_pool / 2

    def saves_a_fifth(self) -> bool:
        """Pools lose less than four fifths of what one pool loses: the predicate of claim 7.4."""
        return self.lost_pools < 0.8 * self.lost_one_pool

    def dearer_and_steadier(self) -> bool:
        """Slightly more memory, and a quarter off the worst moment at least: the predicate of claim 7.5."""
        return 1 < self.memory_ratio < 1.25 and self.worst_pools < 0.75 * self.worst_one_pool


def compare_pools(loads: Sequence[Sequence[Holding]], separate: Sequence[str] = ("session",)) -> Compared:
    """Run each of `loads` both ways. One service is one peak: whether the peaks of its pools meet is luck (of forty drawn,
    one needed no more memory and one a fifth more), so memory and the worst moment are taken over several."""
    single = [run_pools(load, []) for load in loads]
    pools = [run_pools(load, separate) for load in loads]
    return Compared(
        lost_one_pool=float(np.mean([run.lost_share for run in single])),
        lost_pools=float(np.mean([run.lost_share for run in pools])),
        worst_one_pool=float(np.mean([run.worst_lost_share for run in single])),
        worst_pools=float(np.mean([run.worst_lost_share for run in pools])),
        memory_ratio=sum(run.capacity for run in pools) / sum(run.capacity for run in single),
    )


def held_granules(layout: Sequence[Span]) -> int:
    """Granules of 64 MiB with a live byte in them: what cannot be unmapped or given to another pool."""
    held, last = 0, -1
    for span in layout:
        if span.state != "free":
            first, end = max(span.offset // GRANULE, last + 1), (span.end - 1) // GRANULE
            held += max(0, end - first + 1)
            last = max(last, end)
    return held


@dataclass(frozen=True)
class Pinned:
    """Share of the sides of lasting holes on which a long-lived object lies, against its share of the live objects.
    A hole lasts when the same free span is there in `num_looks` looks in a row."""

    side_share: float
    live_share: float
    num_lasting: int

    def pinned_by_long(self) -> bool:
        """Nearly every side of a lasting hole is a long-lived object: the predicate of claim 7.3."""
        return self.side_share > 0.95


def who_pins_holes(
    run: ChurnRun, long: Sequence[str] = ("session", "weights", "prefix"), *, num_looks: int = 4
) -> Pinned:
    """The ends of the memory are no sides."""
    sides = long_sides = num_live = num_long = 0
    seen: dict[tuple[int, int], int] = {}
    for _, layout in run.snapshots:
        num_live += sum(span.state == "allocated" for span in layout)
        num_long += sum(span.lifetime in long for span in layout if span.state == "allocated")
        seen = {(s.offset, s.size): seen.get((s.offset, s.size), 0) + 1 for s in layout if s.state == "free"}
        for before, hole, after in zip(layout, layout[1:], layout[2:]):
            if hole.state == "free" and seen[hole.offset, hole.size] == num_looks:
                sides += 2
                long_sides += (before.lifetime in long) + (after.lifetime in long)
    return Pinned(long_sides / sides if sides else 0.0, num_long / num_live, sides // 2)


def lifetime_quantiles(holdings: Sequence[Holding]) -> dict[str, tuple[float, float, float]]:
    """5 %, 50 % and 95 % quantile of the lifetime in seconds, by class, shortest median first."""
    found = {
        name: tuple(
            float(q)
            for q in np.quantile([h.hold_s for h in holdings if h.lifetime == name], [0.05, 0.5, 0.95])
        )
        for name in {h.lifetime for h in holdings}
    }
    return {name: (q[0], q[1], q[2]) for name, q in sorted(found.items(), key=lambda item: item[1][1])}


def _granules(size: float) -> int:
    return -(-int(size) // GRANULE) * GRANULE
