"""Section 4: five properties of LLM serving that fragment a memory, switched on alone or one after another.

The unit is a `Holding` of `churn.py`; the memory is the same allocator throughout. With everything off the load is
ordinary inference: batches of equal tensors that are born together and die together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.experiments.churn import AllocatorMemory, Churn, ChurnRun, Holding
from labkit.experiments.harms import peak_demand
from labkit.memory import Allocation, make_allocator
from labkit.workload.base import RequestSpec

SECONDS_PER_TOKEN = 0.03
#: the causes, in the order of claims 4.1 to 4.5
CAUSES = ("lengths", "growth", "continuous batching", "shared prefixes", "long sessions")
_FIELDS = ("lengths", "growth", "continuous", "prefixes", "sessions")


@dataclass(frozen=True)
class Causes:
    """Which of the five are on. `batch_size` and `fixed_tokens` describe the control, where none is."""

    lengths: bool = False
    growth: bool = False
    continuous: bool = False
    prefixes: bool = False
    sessions: bool = False
    batch_size: int = 32
    fixed_tokens: tuple[int, int] = (896, 128)

    @classmethod
    def first(cls, number: int) -> Causes:
        """The first `number` causes of `CAUSES`."""
        on: dict[str, Any] = {field: index < number for index, field in enumerate(_FIELDS)}
        return cls(**on)

    @classmethod
    def only(cls, index: int) -> Causes:
        """Cause `index` of `CAUSES` alone."""
        on: dict[str, Any] = {field: index == other for other, field in enumerate(_FIELDS)}
        return cls(**on)


def load_with(
    causes: Causes, requests: Sequence[RequestSpec], rng: np.random.Generator, *, bytes_per_token: int
) -> list[Holding]:
    """The holdings that `requests` become, in order of arrival.

    lengths      prompt and output lengths of the trace instead of one length for all
    growth       a request holds its prompt and, every 64 tokens, moves to a piece that is 64 tokens longer (both exist
                 for one step)
    continuous   requests start when they arrive; otherwise `batch_size` of them start together, and the next batch
                 starts when the last of this one has ended
    prefixes     three requests in four share one of eight prefixes of 256 to 2,048 tokens, held once from the first user's
                 start until the last one's end
    sessions     two requests in a hundred stay forty times as long
    """
    prompts = [r.num_prompt_tokens if causes.lengths else causes.fixed_tokens[0] for r in requests]
    outputs = [r.num_output_tokens if causes.lengths else causes.fixed_tokens[1] for r in requests]
    stays = [tokens * SECONDS_PER_TOKEN for tokens in outputs]
    long = rng.random(len(requests)) < 0.02
    if causes.sessions:
        stays = [stay * 40 if is_long else stay for stay, is_long in zip(stays, long)]
    starts = [r.arrival_s for r in requests] if causes.continuous else _batches(stays, causes.batch_size)
    users = _users(len(requests), rng)
    holdings: list[Holding] = []
    for index, (start, stay, prompt, output) in enumerate(zip(starts, stays, prompts, outputs)):
        lifetime = "session" if causes.sessions and long[index] else "request"
        whole = Holding(start, stay, (prompt + output) * bytes_per_token, lifetime, f"r{index}")
        holdings += _growing(whole, prompt, output, bytes_per_token) if causes.growth else [whole]
    if causes.prefixes:
        holdings += _prefixes(starts, stays, users, rng, bytes_per_token)
    return sorted(holdings, key=lambda holding: holding.arrival_s)


@dataclass(frozen=True)
class Fragmented:
    """A run of one load: contiguity loss (1 − largest/total free) averaged over time, and placements refused
    although enough bytes were free."""

    mean_loss: float
    num_failures: int
    run: ChurnRun


def fragmentation_of(
    holdings: Sequence[Holding], *, allocator: str = "first-fit", room: float = 1.1
) -> Fragmented:
    """Run `holdings` in a memory of `room` times their peak demand."""
    memory = AllocatorMemory(make_allocator(allocator, int(room * peak_demand(holdings))))
    run = Churn(memory, on_failure="drop", sample_ends=True).feed(holdings)
    return Fragmented(run.mean_contiguity_loss, run.num_fragmentation_failures, run)


def room_needed(holdings: Sequence[Holding]) -> float:
    """The highest address that first fit ever uses when memory is no limit, over the peak demand: 1.0 is perfect."""
    peak = peak_demand(holdings)
    memory = HighWater(make_allocator("first-fit", 8 * peak))
    Churn(memory, on_failure="drop").feed(holdings)
    return memory.highest / peak


def room_needed_in_blocks(holdings: Sequence[Holding], block_bytes: int) -> float:
    """The same for memory in blocks: the most blocks ever held, in bytes, over the peak demand."""
    rounded = [dataclasses.replace(h, size=-(-h.size // block_bytes) * block_bytes) for h in holdings]
    return peak_demand(rounded) / peak_demand(holdings)


class HighWater(AllocatorMemory):
    """Remembers the highest address ever handed out."""

    highest = 0

    def place(self, holding: Holding) -> Allocation | None:
        allocation: Allocation | None = super().place(holding)
        if allocation is not None:
            self.highest = max(self.highest, allocation.offset + allocation.size)
        return allocation


@dataclass(frozen=True)
class Residency:
    """Mean seconds in memory: of prefixes, and of the requests that brought them."""

    prefix_s: float
    request_s: float

    def outlives(self) -> bool:
        """A prefix stays at least twice as long as the request that brought it: the predicate of claim 4.4."""
        return self.prefix_s > 2 * self.request_s


def prefix_residency(requests: Sequence[RequestSpec], rng: np.random.Generator, *, shared: bool) -> Residency:
    """Three requests in four use one of eight prefixes; a prefix is freed when its last user ends. Not `shared`: every
    request brings a prefix of its own."""
    users = _users(len(requests), rng) if shared else list(range(len(requests)))
    intervals: dict[int, list[tuple[float, float]]] = {}
    for request, number in zip(requests, users):
        if number >= 0:
            end = request.arrival_s + request.num_output_tokens * SECONDS_PER_TOKEN
            intervals.setdefault(number, []).append((request.arrival_s, end))
    periods = [(members, period) for members in intervals.values() for period in _busy_periods(members)]
    brought_by = [
        next(end - start for start, end in members if start == period[0]) for members, period in periods
    ]
    stayed = [last - first for _, (first, last) in periods]
    return Residency(float(np.mean(stayed)), float(np.mean(brought_by)))


def _batches(stays: Sequence[float], batch_size: int) -> list[float]:
    starts, now = [], 0.0
    for first in range(0, len(stays), batch_size):
        batch = stays[first : first + batch_size]
        starts += [now] * len(batch)
        now += max(batch) + SECONDS_PER_TOKEN
    return starts


def _growing(whole: Holding, prompt: int, output: int, bytes_per_token: int, step: int = 64) -> list[Holding]:
    """The pieces that a cache grown by copying holds one after another; neighbours overlap for one step."""
    pieces = []
    seconds = whole.hold_s / output
    for at in range(0, output, step):
        stay = (min(step, output - at) + (at + step < output)) * seconds
        size = (prompt + min(at + step, output)) * bytes_per_token
        pieces.append(
            dataclasses.replace(whole, arrival_s=whole.arrival_s + at * seconds, hold_s=stay, size=size)
        )
    return pieces


def _users(num_requests: int, rng: np.random.Generator) -> list[int]:
    """Which of eight prefixes each request uses, -1 for none."""
    return np.where(rng.random(num_requests) < 0.75, rng.integers(0, 8, num_requests), -1).tolist()


def _prefixes(
    starts: Sequence[float],
    stays: Sequence[float],
    group: Sequence[int],
    rng: np.random.Generator,
    bytes_per_token: int,
) -> list[Holding]:
    """One holding a prefix and busy period: it leaves with its last reference and comes back with its next user."""
    sizes = {number: int(rng.integers(256, 2049)) * bytes_per_token for number in range(8)}
    holdings = []
    for number in range(8):
        users = sorted((start, start + stay) for start, stay, g in zip(starts, stays, group) if g == number)
        for first, last in _busy_periods(users):
            holdings.append(Holding(first, last - first, sizes[number], "prefix", f"prefix {number}"))
    return holdings


def _busy_periods(users: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Unions of overlapping intervals, in order."""
    periods: list[tuple[float, float]] = []
    for start, end in users:
        if periods and start <= periods[-1][1]:
            periods[-1] = (periods[-1][0], max(end, periods[-1][1]))
        else:
            periods.append((start, end))
    return periods
