"""Budget lifetimes, not only capacity: how much of the pool the load holds, by who holds it and for how long.

Little's law for memory: what is resident equals arrival rate x bytes x time held. Three terms beside the private blocks
of running requests: sessions that stay hot between turns, shared prefixes that stay until their last user leaves, and
the peak when several long prompts arrive together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from labkit.errors import LabError
from labkit.planning.planner import Plan


@dataclass(frozen=True, slots=True)
class LifetimeLoad:
    """What arrives and how long it stays. Seconds and tokens; rates are requests a second."""

    rate: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    mean_residence_s: float
    session_rate: float = 0.0
    session_tokens: float = 0.0
    session_idle_s: float = 0.0
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
        return (
            self.pool_blocks
            - self.private_blocks
            - self.session_blocks
            - self.prefix_blocks
            - self.burst_blocks
        )

    def sentence(self) -> str:
        verdict = "fits" if self.headroom >= 0 else "does not fit"
        return (
            f"Of {self.pool_blocks:,} blocks running requests hold {self.private_blocks:,}, hot sessions "
            f"{self.session_blocks:,}, shared prefixes {self.prefix_blocks:,} and the prefill burst {self.burst_blocks:,}: "
            f"the load {verdict} ({self.headroom:+,} blocks)."
        )


def lifetime_budget(plan: Plan, load: LifetimeLoad) -> LifetimeBudget:
    """Blocks that the load keeps resident on the plan's pool."""
    size = plan.block_size * 1.0

    def blocks(num_tokens: float) -> int:
        return ceil(num_tokens / size)

    per_request = blocks(load.mean_prompt_tokens - load.prefix_tokens + load.mean_output_tokens / 2)
    sessions = load.session_rate * load.session_idle_s
    return LifetimeBudget(
        private_blocks=ceil(load.rate * load.mean_residence_s * max(1, per_request)),
        session_blocks=ceil(sessions * blocks(load.session_tokens)),
        prefix_blocks=load.num_prefixes * blocks(load.prefix_tokens),
        burst_blocks=load.burst_prompts * blocks(load.burst_prompt_tokens),
        pool_blocks=plan.num_usable_blocks // plan.groups.num_groups,
    )
