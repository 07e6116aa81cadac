"""The kinds of incident, each with what can be observed of it, and what makes one happen at a given strength.

`strength` grows from 0 (nothing) without bound; the generator raises it until users feel at least what the severity says.
A recipe changes a `Plan`: the size of the pool, what holds memory in it, the scheduler's options, the ledger that the
server prints when it starts, and what the device allocator does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.experiments.incidents.faults import (
    Fault,
    IdleSessions,
    LatePrefixRelease,
    Leak,
    NoEviction,
    SlowReclaim,
)
from labkit.experiments.incidents.load import Load
from labkit.workload.base import RequestSpec

HEALTHY = "healthy"
#: reference pool: this many times the most that live requests ever hold when memory is no limit
ROOM = 1.35
LOOK_ALIKES = ("plain", "burst", "full cache", "long prompts", "restart", "98 % at rest")


@dataclass
class Plan:
    """How the server of one incident is set up. Shares are of the pool; `room` multiplies the peak demand."""

    rng: np.random.Generator
    load: Load
    peak_tokens: int
    room: float = ROOM
    kv_name: str = "paged"
    prefix: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    faults: list[tuple[Fault, float]] = field(default_factory=list)
    extra: list[RequestSpec] = field(default_factory=list)
    refused: frozenset[str] = frozenset()
    pauses: tuple[float, float] | None = None
    #: ledger printed at start: bytes a weight parameter, bytes a KV element, share of the budget that is workspace
    weight_bits: int = 16
    kv_bits: int = 16
    workspace_share: float = 0.1
    #: bytes that the allocator keeps reserved and unused, as a share of the card, at the end of the run
    idle_reserved_share: float = 0.015
    restart: bool = False
    kinds: tuple[str, ...] = ()
    card_fill: float | None = None

    @property
    def capacity_tokens(self) -> int:
        """The pool: `room` times what the load holds at its peak, and never less than its longest request."""
        return max(int(self.room * self.peak_tokens), int(1.1 * self.longest_tokens))

    @property
    def longest_tokens(self) -> int:
        """Prompt and output of the longest request."""
        return max(r.num_prompt_tokens + r.num_output_tokens for r in [*self.load.requests, *self.extra])

    def held(self, strength: float) -> float:
        """The share of the pool that a holder may take: never so much that the longest request no longer fits."""
        return min(0.32 + 0.26 * strength, 1 - 1.08 * self.longest_tokens / self.capacity_tokens)


Recipe = Callable[[Plan, float], None]
RECIPES: dict[str, Recipe] = {}


def kind(recipe: Recipe) -> Recipe:
    """Register a recipe under its function's name."""
    RECIPES[recipe.__name__] = recipe
    return recipe


@kind
def contiguous_fragmentation(plan: Plan, strength: float) -> None:
    """The head of the queue waits although more is free than it needs, because no free span is long enough."""
    plan.kv_name, plan.prefix = "reserve-oracle", False
    plan.room = ROOM * 0.84 / (1 + 0.22 * strength)


@kind
def pool_held_by_long_requests(plan: Plan, strength: float) -> None:
    """Two or three running, decoding requests hold several times what a usual one holds, and most of the pool, for minutes."""
    rng, load = plan.rng, plan.load
    number = int(rng.integers(2, 4))
    start, stop = 0.06 * load.ends_s, load.lull_s[1] + 0.35 * (load.ends_s - load.lull_s[1])
    outputs = int((stop - start) / 0.032)
    each = plan.held(strength) * plan.capacity_tokens / number
    prompt = max(int(each - outputs / 2), int(each / 2), 64)
    outputs = min(outputs, int(1.6 * each))
    plan.extra = [
        RequestSpec(
            f"long{i}", start + 2.0 * i + float(rng.uniform(0, 2)), prompt, outputs, max_output_tokens=outputs
        )
        for i in range(number)
    ]


@kind
def late_prefix_release(plan: Plan, strength: float) -> None:
    """With prefix hits, memory stays in use after the last request has ended and goes back minutes later, by lease."""
    plan.prefix = True
    share, lease_s = plan.held(strength), float(plan.rng.uniform(110, 180))
    prompt = sum(r.num_prompt_tokens for r in plan.load.requests) / len(plan.load.requests)
    wanted = (
        share
        * plan.capacity_tokens
        / (0.66 * prompt * plan.load.rate * min(lease_s, 0.9 * plan.load.lull_s[0]))
    )
    plan.faults.append((LatePrefixRelease(plan.rng, min(1.0, wanted), lease_s), share))


@kind
def reserved_high_active_low(plan: Plan, strength: float) -> None:
    """The device allocator's reserved bytes are far above its active ones and grow; retries or out-of-memory errors grow with them."""
    plan.idle_reserved_share = min(0.4, 0.09 + 0.1 * strength)
    plan.pauses = (min(0.5, 0.12 + 0.1 * strength), float(plan.rng.uniform(0.3, 0.6)))
    share = 0.012 + 0.025 * strength
    later = [r.request_id for i, r in enumerate(plan.load.requests) if i > len(plan.load.requests) // 4]
    plan.refused = frozenset(name for name in later if plan.rng.random() < share)


@kind
def slow_reclaim(plan: Plan, strength: float) -> None:
    """Memory in use exceeds what running requests hold, follows the rate of endings, and is back seconds after the last one."""
    share = plan.held(strength)
    flow = plan.load.rate * plan.load.mean_tokens
    delay_s = float(np.clip(share * plan.capacity_tokens / flow, 9.0, 26.0))
    plan.faults.append((SlowReclaim(delay_s), share))


@kind
def cache_without_eviction_policy(plan: Plan, strength: float) -> None:
    """The cached share only grows, nothing is evicted, and requests wait or are preempted while the cache could give way."""
    plan.prefix = True
    plan.faults.append((NoEviction(plan.rng), plan.held(1.1 * strength)))


@kind
def weights_only_quantisation(plan: Plan, strength: float) -> None:
    """Weights of 4 or 8 bits beside 16-bit keys and values, and it is the KV pool that is full when requests wait."""
    plan.weight_bits, plan.kv_bits = int(plan.rng.choice([4, 8])), 16
    plan.room = _short(plan, strength)


@kind
def workspace_limited(plan: Plan, strength: float) -> None:
    """Activations, graphs and workspace take more of the budget than the KV pool or a third of it, and the pool is full when requests wait."""
    plan.workspace_share = float(plan.rng.uniform(0.34, 0.5))
    plan.room = _short(plan, strength)
    not_weights_only(plan)


@kind
def admission_too_conservative(plan: Plan, strength: float) -> None:
    """Requests wait while much of the pool stays free and findable, with no preemption: a limit of the scheduler binds."""
    rng, usual = plan.rng, plan.load
    choice = rng.choice(["max_num_seqs", "reserve", "headroom"])
    outputs = sum(r.num_output_tokens for r in usual.requests) / len(usual.requests)
    running = max(2.0, usual.rate * outputs * 0.034)
    if choice == "max_num_seqs":
        plan.options["max_num_seqs"] = max(1, round(running * 1.25 / (0.6 + 0.4 * strength)))
    elif choice == "reserve":
        plan.options["reserve"] = "all"
        plan.options["max_output"] = int(plan.capacity_tokens / (running * 1.6) * (0.6 + 0.4 * strength))
    else:
        plan.options["headroom"] = min(0.86, 0.5 + 0.13 * strength)


@kind
def kv_block_leak(plan: Plan, strength: float) -> None:
    """Memory in use with nobody running grows from rest to rest and never comes back."""
    _left_behind(plan, strength, Leak)


@kind
def idle_sessions_left_behind(plan: Plan, strength: float) -> None:
    """Sequences stay counted as running with nobody asking, make no token, and keep their memory."""
    _left_behind(plan, strength, IdleSessions)


@kind
def capacity_too_small(plan: Plan, strength: float) -> None:
    """Running requests of usual size fill the pool, and it is the largest thing beside 16-bit weights (or its keys and values are 8-bit already)."""
    plan.room = _short(plan, strength)
    not_weights_only(plan)
    plan.workspace_share = min(plan.workspace_share, 0.16)


@kind
def healthy(plan: Plan, strength: float) -> None:
    """Nothing but load: waits are short and rare, and what is held at rest is cache that can be evicted."""


def not_weights_only(plan: Plan) -> None:
    """Quantised weights come with 8-bit keys and values, unless the other kind is wanted too."""
    if plan.weight_bits < 16 and "weights_only_quantisation" not in plan.kinds:
        plan.kv_bits = 8


def _short(plan: Plan, strength: float) -> float:
    """A pool smaller than the demand."""
    return max(0.95 / (1 + 0.4 * strength), 1.02 * plan.longest_tokens / plan.peak_tokens)


def _left_behind(plan: Plan, strength: float, leak: type[Leak]) -> None:
    share = plan.held(1.15 * strength)
    number, probability = len(plan.load.requests), float(plan.rng.uniform(0.15, 0.4))
    each = math.ceil(share * plan.capacity_tokens / (probability * 0.75 * number))
    plan.faults.append((leak(plan.rng, probability, each), share))


#: which second kind may come with which first one: pairs whose signs do not hide each other
_HOLDERS = (
    "kv_block_leak",
    "idle_sessions_left_behind",
    "late_prefix_release",
    "slow_reclaim",
    "pool_held_by_long_requests",
)
_LEDGER = ("weights_only_quantisation", "workspace_limited")
PARTNERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_HOLDERS, (*_LEDGER, "reserved_high_active_low")),
    "weights_only_quantisation": ("workspace_limited", "reserved_high_active_low", *_HOLDERS),
    "workspace_limited": ("weights_only_quantisation", "reserved_high_active_low", *_HOLDERS),
    "reserved_high_active_low": (
        *_HOLDERS, *_LEDGER, "capacity_too_small", "admission_too_conservative", "contiguous_fragmentation",
        "cache_without_eviction_policy",
    ),
    "capacity_too_small": ("reserved_high_active_low",),
    "admission_too_conservative": ("reserved_high_active_low",),
    "contiguous_fragmentation": ("reserved_high_active_low",),
    "cache_without_eviction_policy": ("reserved_high_active_low",),
}  # fmt: skip
KINDS = tuple(RECIPES)


def recipe_order(name: str) -> int:
    """What sets the size of the pool comes before what takes a share of it."""
    return 1 if name in _HOLDERS or name == "cache_without_eviction_policy" else 0
