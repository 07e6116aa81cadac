"""Budget lifetimes, not only capacity: how much of the pool the load holds, by who holds it and for how long.

Little's law for memory: what is resident equals arrival rate x bytes x time held. Three terms beside the private blocks
of running requests: sessions that stay hot between turns, shared prefixes that stay until their last user leaves, and
the peak when several long prompts arrive together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.planning.planner import Plan
from labkit.workload.base import RequestSpec


@dataclass(frozen=True, slots=True)
class LifetimeLoad:
    """What arrives and how long it stays. Seconds and tokens; rates are requests a second.

    shared_prompt_tokens  of a prompt, on average, are found in a shared prefix and are not private
    session_*             sessions that end a turn a second, what they keep, and how long until the next turn
    prefix_tokens         length of each of `num_prefixes` shared prefixes that stay resident
    burst_*               the most prompts that arrive together, and their length
    """

    rate: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    mean_residence_s: float
    session_rate: float = 0.0
    session_tokens: float = 0.0
    session_idle_s: float = 0.0
    shared_prompt_tokens: float = 0.0
    prefix_tokens: float = 0.0
    num_prefixes: int = 0
    burst_prompts: int = 0
    burst_prompt_tokens: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 0:
                raise LabError(f"{name} is {getattr(self, name)}; a lifetime budget counts from 0")
        if self.rate == 0 or self.mean_residence_s == 0:
            raise LabError("rate and mean_residence_s must be above 0: nobody arrives, or nobody stays")


@dataclass(frozen=True, slots=True)
class LifetimeBudget:
    """Blocks by owner; `headroom` is the pool less all of them (negative: the load does not fit for long)."""

    private_blocks: int
    session_blocks: int
    prefix_blocks: int
    burst_blocks: int
    pool_blocks: int

    @property
    def headroom(self) -> int:
        """Blocks that are left; negative when the load does not fit."""
        return (
            self.pool_blocks
            - self.private_blocks
            - self.session_blocks
            - self.prefix_blocks
            - self.burst_blocks
        )

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"headroom": self.headroom}

    def sentence(self) -> str:
        """The budget in words, blocks by lifetime."""
        verdict = "fits" if self.headroom >= 0 else "does not fit"
        return (
            f"Of {self.pool_blocks:,} blocks running requests want {self.private_blocks:,}, hot sessions "
            f"{self.session_blocks:,}, shared prefixes {self.prefix_blocks:,} and the prefill burst {self.burst_blocks:,}: "
            f"the load {verdict} ({self.headroom:+,} blocks)."
        )


def lifetime_budget(plan: Plan, load: LifetimeLoad) -> LifetimeBudget:
    """Blocks that the load keeps resident on the plan's pool."""
    size = plan.block_size * 1.0

    def blocks(num_tokens: float) -> int:
        return ceil(num_tokens / size)

    per_request = blocks(load.mean_prompt_tokens - load.shared_prompt_tokens + load.mean_output_tokens / 2)
    sessions = load.session_rate * load.session_idle_s
    return LifetimeBudget(
        private_blocks=ceil(load.rate * load.mean_residence_s * max(1, per_request)),
        session_blocks=ceil(sessions * blocks(load.session_tokens)),
        prefix_blocks=load.num_prefixes * blocks(load.prefix_tokens),
        burst_blocks=load.burst_prompts * blocks(load.burst_prompt_tokens),
        pool_blocks=plan.num_usable_blocks // plan.groups.num_groups,
    )


def load_of_trace(
    requests: Sequence[RequestSpec], mean_residence_s: float, *, burst_window_s: float = 1.0
) -> LifetimeLoad:
    """Read the terms off a trace: `mean_residence_s` comes from a replay, all else from the trace itself.

    Sessions count where the trace names them, shared prefixes where it carries block ids: a shared block is resident
    from its first to its last use. The burst is the most prompt tokens that arrive within `burst_window_s`.
    """
    if len(requests) < 2:
        raise LabError("a lifetime budget needs a trace of at least two requests")
    times = np.array([r.arrival_s for r in requests])
    prompts = np.array([r.num_prompt_tokens for r in requests], dtype=float)
    duration = max(float(times[-1] - times[0]), 1e-9)
    shared, resident = _shared(requests, duration)
    turns, idle = _sessions(requests)
    return LifetimeLoad(
        rate=len(requests) / duration,
        mean_prompt_tokens=float(prompts.mean()),
        mean_output_tokens=float(np.mean([r.num_output_tokens for r in requests])),
        mean_residence_s=mean_residence_s,
        session_rate=len(turns) / duration,
        session_tokens=float(np.mean(turns)) if turns else 0.0,
        session_idle_s=float(np.mean(idle)) if idle else 0.0,
        shared_prompt_tokens=shared,
        prefix_tokens=resident,
        num_prefixes=1 if resident else 0,
        burst_prompts=1,
        burst_prompt_tokens=_burst(times, prompts, burst_window_s),
    )


def _burst(times: np.ndarray, prompts: np.ndarray, window_s: float) -> float:
    """The largest sum of prompts in any window."""
    total = np.concatenate([[0.0], np.cumsum(prompts)])
    ends = np.searchsorted(times, times + window_s, side="right")
    return float((total[ends] - total[np.arange(len(times))]).max())


def _sessions(requests: Sequence[RequestSpec]) -> tuple[list[int], list[float]]:
    """For each turn that has a next one: tokens it leaves, and seconds until the next."""
    last: dict[str, RequestSpec] = {}
    tokens, idle = [], []
    for request in requests:
        if request.session_id is None:
            continue
        before = last.get(request.session_id)
        if before is not None:
            tokens.append(before.num_prompt_tokens + before.num_output_tokens)
            idle.append(request.arrival_s - before.arrival_s)
        last[request.session_id] = request
    return tokens, idle


def _shared(requests: Sequence[RequestSpec], duration_s: float) -> tuple[float, float]:
    """Mean prompt tokens that somebody had sent before, and the mean of shared tokens resident over the trace."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    hit = block = 0
    for request in requests:
        block = max(block, request.prefix_block_size)
        for h in request.prefix_hashes or ():
            if h in first:
                hit += 1
                last[h] = request.arrival_s
            else:
                first[h] = request.arrival_s
    resident_s = sum(end - first[h] for h, end in last.items())
    return hit * block / len(requests), block * resident_s / duration_s
