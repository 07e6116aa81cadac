"""Section 14: two answers to the same question as two sets of predictions, and the argument as a run.

The shallow answer names remedies (paged attention, quantise, raise the hit rate). The deep one names a quantity that decides
whether a remedy works here. Both say beforehand between which values a measurement will lie.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.experiments.churn import AllocatorMemory, BlockMemory, Churn, Holding, holdings_of
from labkit.experiments.dynamics import smoothed
from labkit.experiments.harms import peak_demand, with_long_sessions
from labkit.experiments.proofs.fragmentation import BYTES_PER_TOKEN, requests_of
from labkit.experiments.proofs.ledger import plan_of
from labkit.experiments.proofs.metrics import restart
from labkit.experiments.proofs.prefix import serve_with_pinned
from labkit.experiments.proofs.scheduling import steady
from labkit.experiments.scheduling import outcome
from labkit.experiments.serve import serve
from labkit.memory import make_allocator

INF = math.inf


@dataclass(frozen=True)
class Case:
    """`shallow` and `deep` are intervals [low, high] that the two answers predict for `measured`; `decides` is the deep
    answer's own number, and what it is compared with."""

    name: str
    quantity: str
    decides: str
    shallow: tuple[float, float]
    deep: tuple[float, float]
    measured: float

    @property
    def shallow_right(self) -> bool:
        return self.shallow[0] <= self.measured <= self.shallow[1]

    @property
    def deep_right(self) -> bool:
        return self.deep[0] <= self.measured <= self.deep[1]

    def tells_apart(self) -> bool:
        """The deep answer predicted the measurement and the shallow one did not: the predicate of claim 14.1."""
        return self.deep_right and not self.shallow_right


def after_paging(rng: np.random.Generator, *, hard: bool) -> Case:
    """ "Use paged attention." Shallow: then nobody is turned back. Deep: compare the peak demand with the pool; blocks end
    fragmentation and not demand."""
    load = [r for r in requests_of(rng, 250) if r.num_prompt_tokens + r.num_output_tokens < 6000][:150]
    free = serve("paged", load, capacity_tokens=2_000_000, bytes_per_token=1, every=1)
    peak = int(free.recorder.series_frame()["kv_live_bytes"].max())
    pool = int((0.4 if hard else 1.5) * peak)
    run = serve("paged", load, capacity_tokens=pool, bytes_per_token=1)
    return Case(
        "use paged attention",
        "preemptions",
        f"peak demand {peak:,} tokens, pool {pool:,}",
        (0, 0),
        (1, INF) if peak > pool else (0, 0),
        run.totals.num_preempted,
    )


def after_quantising(*, hard: bool) -> Case:
    """ "Quantise the weights." Shallow: the model is half as large, so twice as many requests fit, or more. Deep: the gain is
    bytes freed over KV bytes there were."""
    gpu = "H100-80GB" if hard else "L4-24GB"
    before = plan_of("Llama-3.1-8B", gpu, max_model_len=8192)
    after = plan_of("Llama-3.1-8B", gpu, max_model_len=8192, quantization="fp8")
    weights = [sum(t.num_bytes for t in plan.budget.terms if t.name == "weights") for plan in (before, after)]
    predicted = 1 + (weights[0] - weights[1]) / before.kv_bytes
    return Case(
        f"quantise the weights ({gpu})",
        "requests that fit, times",
        f"freed {(weights[0] - weights[1]) / 2**30:.1f} GiB, KV before {before.kv_gib:.1f} GiB",
        (2, INF),
        (0.97 * predicted, 1.03 * predicted),
        after.max_concurrency / before.max_concurrency,
    )


def after_more_hits(rng: np.random.Generator, *, hard: bool) -> Case:
    """ "Raise the hit rate" by pinning 16 of 24 system prompts. Shallow: goodput does not fall. Deep: compare what is left for
    private blocks with what private blocks need at their peak."""
    seed, capacity = int(rng.integers(1 << 30)), 12_000 if hard else 60_000
    need = serve_with_pinned(np.random.default_rng(seed), 16, 60_000).peak_private_blocks
    none, many = (serve_with_pinned(np.random.default_rng(seed), n, capacity) for n in (0, 16))
    return Case(
        f"raise the hit rate ({100 * none.hit_ratio:.0f} to {100 * many.hit_ratio:.0f} %)",
        "goodput, times",
        f"private peak {need} blocks, left for them {many.private_blocks}",
        (0.99, INF),
        (0, 0.95) if need > many.private_blocks else (0.95, 1.05),
        many.goodput / none.goodput,
    )


def after_a_restart(rng: np.random.Generator, *, hard: bool) -> Case:
    """ "It is out of memory, so buy memory": a restart with the same memory cannot help. Deep: look at what is held by nobody;
    if that is much, the restart heals, and more memory only delays."""
    found = restart(rng, "left behind" if hard else "too much load")
    return Case(
        "it needs more memory",
        "refusals after a restart, times before",
        f"held by nobody {100 * found.left_behind:.0f} % of memory",
        (0.6, INF),
        (0, 1 / 3) if found.left_behind > 0.2 else (0.6, INF),
        found.refused_after / found.refused_before,
    )


def after_a_request_limit(rng: np.random.Generator, *, hard: bool) -> Case:
    """ "At most 64 at once ran well in the load test." Shallow: it will in production. Deep: 64 times what a request holds at
    its end, against the pool."""
    pool, limit = 16_000, 64
    prompt, output = (100, 900) if hard else (60, 120)
    mix = steady(rng, prompt, output, 1000.0, 80)
    row = outcome("", mix, capacity_tokens=pool, bytes_per_token=1, admission="requests", max_requests=limit)
    demand = limit * float(np.mean([r.num_prompt_tokens + r.num_output_tokens for r in mix]))
    return Case(
        "at most 64 requests at once",
        "share of requests preempted",
        f"64 requests hold {demand:,.0f} tokens at their end, pool {pool:,}",
        (0, 0.05),
        (0.05, 1) if demand > pool else (0, 0.05),
        row.run.summary["num_preempted_requests"] / len(mix),
    )


def predictions(seed: int, *, hard: bool) -> list[Case]:
    """The five remedies in situations in which they disappoint (`hard`), or in which all is ample."""
    rngs = [np.random.default_rng([seed, part]) for part in range(4)]
    return [
        after_paging(rngs[0], hard=hard),
        after_quantising(hard=hard),
        after_more_hits(rngs[1], hard=hard),
        after_a_restart(rngs[2], hard=hard),
        after_a_request_limit(rngs[3], hard=hard),
    ]


# --- 14.2: one service, and what each step of the argument leaves for the next --------------------------------------------


@dataclass(frozen=True)
class Remainder:
    """Share of the work (tokens x seconds) that is turned away once this much of the argument has been applied."""

    step: str
    refused_share: float


def memory_for(holdings: Sequence[Holding]) -> int:
    """Bytes: seven tenths of the peak demand."""
    return int(0.7 * peak_demand(holdings))


def remainders(
    holdings: Sequence[Holding], capacity: int, *, max_tokens: int = 8192, idle_s: float = 60.0
) -> list[Remainder]:
    """One load, one amount of memory, four services:

    everybody reserves `max_tokens` in one piece; everybody gets exactly what is needed, in one piece; in blocks of 16
    tokens; in blocks, and sessions that have lasted `idle_s` seconds give theirs back. Who finds no room is turned away.
    """
    longest = [dataclasses.replace(h, size=max(h.size, max_tokens * BYTES_PER_TOKEN)) for h in holdings]
    reclaimed = [dataclasses.replace(h, hold_s=min(h.hold_s, idle_s)) for h in holdings]

    def one_piece() -> AllocatorMemory:
        return AllocatorMemory(make_allocator("first-fit", capacity))

    def blocks() -> BlockMemory:
        return BlockMemory(capacity, 16 * BYTES_PER_TOKEN)

    services: list[tuple[str, Callable[[], AllocatorMemory | BlockMemory], Sequence[Holding]]] = [
        ("the maximum reserved", one_piece, longest),
        ("exact length, one piece", one_piece, holdings),
        ("blocks", blocks, holdings),
        ("blocks, idle sessions reclaimed", blocks, reclaimed),
    ]
    work = {h.tag: h.size * min(h.hold_s, idle_s) for h in holdings}
    result = []
    for step, make, load in services:
        memory = _Served(make())
        Churn(memory, on_failure="drop").feed(load)
        result.append(Remainder(step, 1 - sum(work[tag] for tag in memory.served) / sum(work.values())))
    return result


class _Served:
    """A memory that remembers who got in."""

    def __init__(self, memory: AllocatorMemory | BlockMemory):
        self.memory, self.capacity, self.served = memory, memory.capacity, list[str]()

    def place(self, holding: Holding) -> Any:
        handle = self.memory.place(holding)
        if handle is not None:
            self.served.append(holding.tag)
        return handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)


def each_step_explains_some(found: Sequence[Remainder]) -> bool:
    """Every step turns fewer away than the one before: the predicate of claim 14.2's order."""
    shares = [r.refused_share for r in found]
    return all(later < before for before, later in itertools.pairwise(shares))


def service_load(rng: np.random.Generator, num_requests: int = 2000) -> list[Holding]:
    """The service of claim 14.2 as holdings."""
    load = [r for r in requests_of(rng, num_requests) if r.num_prompt_tokens + r.num_output_tokens < 8192]
    holdings = holdings_of(load, bytes_per_token=BYTES_PER_TOKEN, seconds_per_token=0.03)
    return with_long_sessions(holdings, rng)


def calm_load(holdings: Sequence[Holding]) -> list[Holding]:
    """The control: the same mean demand, everybody alike and evenly spaced; to be run in the same memory."""
    return [dataclasses.replace(h, tag=f"r{number}") for number, h in enumerate(smoothed(holdings))]
