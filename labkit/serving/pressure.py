"""Part 4 of a scheduler: what happens when a running request needs room and there is none.

    refuse      the request that needs room is given up: its client gets an error
    wait        it keeps what it has and stalls until others leave; no admissions meanwhile (it can deadlock: the
                no-progress guard then names the cycle)
    throttle    admissions pause above `high` and resume below `low`; what still runs dry is preempted
    degrade     above `high` new requests may produce at most `max_output_tokens`; one that runs dry ends early
    pools       each class of requests has its share of the pool, and only takes room from its own class
    recompute   the last admitted (or the least urgent) gives everything back and starts again (vLLM's preemption)
    swap        the same victim, but its keys and values go to host memory and come back over the same bus

`relieve` answers one question: is it worth asking the pool again? False means that the request itself does not run
in this step (it was preempted, stalled, ended or given up).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from labkit.errors import LabError
from labkit.registry import Registry
from labkit.serving.base import StepPlan
from labkit.serving.request import Request
from labkit.serving.space import Space

if TYPE_CHECKING:
    from labkit.serving.running import RunningSet

PRESSURES: Registry[type[PressureResponse]] = Registry("pressure response")
Victim = Literal["last", "least-urgent"]


class PressureResponse:
    """Asked when a running request finds no room to grow, and before every admission."""

    def limit(self, scheduler: RunningSet, request: Request) -> str | None:
        """What forbids an admission now, or None."""
        return None

    def joins(self, scheduler: RunningSet, request: Request) -> None:
        """The request is being admitted."""

    def never_fits(self, request: Request, space: Space) -> str | None:
        """The reason when this response could never let it run to its end."""
        return None

    def may_grow(self, scheduler: RunningSet, request: Request, num_tokens: int) -> bool:
        """May it hold slots for `num_tokens`, if the pool has them? Otherwise it runs dry as if the pool were empty."""
        return True

    def relieve(self, scheduler: RunningSet, plan: StepPlan, request: Request) -> bool:
        """Make room for a running `request`; True when it may try again, False when it is no longer to grow in this step."""
        raise NotImplementedError


@PRESSURES.register("refuse")
class Refuse(PressureResponse):
    """Who finds no room is dropped."""

    def relieve(self, scheduler: RunningSet, plan: StepPlan, request: Request) -> bool:
        scheduler.drop(plan, request, "no room to grow")
        return False


@PRESSURES.register("wait")
class Wait(PressureResponse):
    """Who finds no room stands still and keeps what it holds: two such requests can wait for each other for ever."""

    def limit(self, scheduler: RunningSet, request: Request) -> str | None:
        return "stalled_requests" if scheduler.stalled else None

    def relieve(self, scheduler: RunningSet, plan: StepPlan, request: Request) -> bool:
        scheduler.stall(request)
        return False


@PRESSURES.register("recompute")
class PreemptRecompute(PressureResponse):
    """`victim`: "last" is the last admitted, "least-urgent" the one with the largest (priority, arrival)."""

    def __init__(self, victim: Victim = "last"):
        if victim not in ("last", "least-urgent"):
            raise LabError(f"victim={victim!r} is not known; choose one of: last, least-urgent")
        self.victim = victim

    def relieve(self, scheduler: RunningSet, plan: StepPlan, request: Request) -> bool:
        victim = self.choose(scheduler, request)
        self.preempt(scheduler, plan, victim)
        return victim is not request

    def choose(self, scheduler: RunningSet, request: Request) -> Request:
        running = scheduler.running
        if self.victim == "last":
            return running[next(reversed(running))]
        return max(running.values(), key=lambda r: (r.spec.priority, r.arrival))

    def preempt(self, scheduler: RunningSet, plan: StepPlan, victim: Request) -> None:
        scheduler.preempt(plan, victim)


@PRESSURES.register("swap")
class PreemptSwap(PreemptRecompute):
    """The bytes count in `plan.swapped_bytes`, once on the way out and once on the way back; the executor turns them
    into time (vLLM v0 `Scheduler._swap_out`, SOSP'23 section 4.5). Only prompts that are done are swapped."""

    def preempt(self, scheduler: RunningSet, plan: StepPlan, victim: Request) -> None:
        if victim.status in ("decoding", "stalled"):
            scheduler.swap_out(plan, victim)
        else:
            scheduler.preempt(plan, victim)


@PRESSURES.register("throttle")
class Throttle(PreemptRecompute):
    """Admissions pause above `high` and resume below `low`, shares of the pool; who finds no room is preempted."""

    def __init__(self, high: float = 0.9, low: float = 0.8, victim: Victim = "last"):
        super().__init__(victim)
        if not 0 < low <= high <= 1:
            raise LabError(f"low={low}, high={high}: write shares of the pool with 0 < low <= high <= 1")
        self.high, self.low, self.paused = high, low, False

    def limit(self, scheduler: RunningSet, request: Request) -> str | None:
        used = scheduler.usage
        self.paused = used > (self.low if self.paused else self.high)
        return "throttle" if self.paused and scheduler.running else None


@PRESSURES.register("degrade")
class DegradeOutput(PressureResponse):
    """Above `high`, a share of the pool, newcomers get at most `max_output_tokens`; who finds no room ends early."""

    def __init__(self, high: float = 0.9, max_output_tokens: int = 128):
        self.high, self.max_output_tokens = high, max_output_tokens

    def joins(self, scheduler: RunningSet, request: Request) -> None:
        if scheduler.usage > self.high:
            scheduler.shorten(request, max(self.max_output_tokens, request.num_output_tokens + 1))

    def relieve(self, scheduler: RunningSet, plan: StepPlan, request: Request) -> bool:
        scheduler.end_early(plan, request)
        return False


def long_or_short(request: Request) -> str:
    """The default classes of `pools`: prompts above 4,096 tokens are "long"."""
    return "long" if request.spec.num_prompt_tokens > 4096 else "short"


@PRESSURES.register("pools")
class SplitPools(PreemptRecompute):
    """`shares` maps a class to its share of the blocks; what is in no class is refused. A class cannot take what belongs
    to another, so a burst of long requests preempts long ones only. What a class holds is counted when it is asked:
    O(running)."""

    def __init__(
        self,
        shares: Mapping[str, float] | None = None,
        classify: Callable[[Request], str] = long_or_short,
    ):
        super().__init__("last")
        self.shares = dict(shares or {"long": 0.5, "short": 0.5})
        if sum(self.shares.values()) > 1 + 1e-9 or min(self.shares.values()) <= 0:
            raise LabError(
                f"shares={self.shares} are not shares of one pool; write positive numbers that add up to at most 1"
            )
        self.classify = classify

    def budget(self, name: str, space: Space) -> int:
        """Blocks of a class."""
        return int(self.shares.get(name, 0.0) * space.num_blocks)

    def never_fits(self, request: Request, space: Space) -> str | None:
        name, needed = self.classify(request), space.blocks_for(request.max_tokens)
        if needed <= self.budget(name, space):
            return None
        return (
            f"request {request.request_id} can never fit: it needs {needed} blocks and the class {name!r} may hold "
            f"{self.budget(name, space)} of {space.num_blocks}"
        )

    def limit(self, scheduler: RunningSet, request: Request) -> str | None:
        name = self.classify(request)
        return None if self._fits(scheduler, request, request.num_known_tokens) else f"pool_{name}"

    def may_grow(self, scheduler: RunningSet, request: Request, num_tokens: int) -> bool:
        return self._fits(scheduler, request, num_tokens)

    def _fits(self, scheduler: RunningSet, request: Request, num_tokens: int) -> bool:
        """With `num_tokens` for this request, does its class stay inside its share?"""
        space, name = scheduler.space, self.classify(request)
        others = sum(
            space.blocks_for(r.num_placed_tokens)
            for r in scheduler.running.values()
            if r is not request and self.classify(r) == name
        )
        return others + space.blocks_for(num_tokens) <= self.budget(name, space)

    def choose(self, scheduler: RunningSet, request: Request) -> Request:
        name = self.classify(request)
        same = [r for r in scheduler.running.values() if self.classify(r) == name]
        return same[-1]
