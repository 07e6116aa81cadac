"""Part 2 of a scheduler: may this request join now, and in what unit is that counted?

Each class below counts in one unit: requests, tokens, blocks or bytes. What they share is how much a request counts:

    gate "chunk"      the tokens of its first step must fit now
    gate "prompt"     everything it knows (prompt, and outputs when it was preempted) must fit now, as in vLLM
                      (`KVCacheManager.allocate_slots`, the full-sequence gate): a check, not a reservation
    reserve "none"        only the gate
    reserve "predicted"   prompt + predicted output is set aside until it finishes
    reserve "all"         prompt + maximum output is set aside: nobody is ever preempted

`headroom` is the share of the capacity that an admission must leave free (vLLM's watermark), except into an idle
scheduler. What exceeds the whole capacity, or the model's maximum, is refused on arrival unless `can_ever_fit` is off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from labkit.errors import LabError
from labkit.registry import Registry
from labkit.serving.request import Request
from labkit.serving.space import Space

ADMISSIONS: Registry[type[Admission]] = Registry("admission")
Predictor = Callable[[Request], int]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which limit binds, and the numbers behind it, in the admission's unit."""

    limit: str
    needed: float
    free: float


def half_of_maximum(request: Request) -> int:
    """A plain predictor of the output length: half of what the client allows."""
    return max(1, request.max_output_tokens // 2)


class Admission:
    """`used` is maintained by the scheduler: tokens in the cache, requests running, and what is committed."""

    unit = "blocks"

    def __init__(
        self,
        *,
        headroom: float = 0.0,
        gate: Literal["chunk", "prompt"] = "prompt",
        reserve: Literal["none", "predicted", "all"] = "none",
        predictor: Predictor = half_of_maximum,
        can_ever_fit: bool = True,
    ):
        if not 0 <= headroom < 1:
            raise LabError(
                f"headroom={headroom} is not a share of the capacity; write a number from 0 up to below 1"
            )
        if gate not in ("chunk", "prompt"):
            raise LabError(f"gate={gate!r} is not known; choose one of: chunk, prompt")
        if reserve not in ("none", "predicted", "all"):
            raise LabError(f"reserve={reserve!r} is not known; choose one of: none, predicted, all")
        self.headroom, self.gate, self.reserve = headroom, gate, reserve
        self.predictor, self.can_ever_fit = predictor, can_ever_fit
        self.committed = 0.0

    # --- one unit each ---

    def units(self, num_tokens: int, space: Space) -> float:
        """What a request that holds `num_tokens` counts."""
        raise NotImplementedError

    def capacity(self, space: Space) -> float:
        """The most that may be used, in this admission's unit."""
        raise NotImplementedError

    def free(self, space: Space, num_running: int, num_tokens: int) -> float:
        """What is left now, reservations not counted."""
        raise NotImplementedError

    # --- shared rules ---

    def refusal(
        self,
        request: Request,
        chunk: int,
        num_hit_tokens: int,
        space: Space,
        num_running: int,
        num_tokens: int,
    ) -> Refusal | None:
        """None when it may join. `num_running` requests hold `num_tokens` tokens."""
        headroom = int(self.headroom * self.capacity(space)) if num_running else 0
        first = num_hit_tokens + chunk if self.gate == "chunk" else request.num_known_tokens
        needed = self.units(first, space) - (self.units(num_hit_tokens, space) if num_hit_tokens else 0)
        free = self.free(space, num_running, num_tokens) - headroom
        if needed > free:
            return Refusal(self.unit, needed, free)
        if self.reserve != "none":
            needed = self.units(self._reserved_tokens(request), space)
            free = self.capacity(space) - headroom - self.committed
            if needed > free:
                return Refusal(f"reserved_{self.unit}", needed, free)
        return None

    def never_fits(self, request: Request, space: Space) -> str | None:
        """The reason when no state of the cache could hold it to its end."""
        if not self.can_ever_fit:
            return None
        asked = space.blocks_asked(request, 0)
        if asked > space.num_blocks:
            return (
                f"request {request.request_id} can never fit: an admission asks for {asked:,} blocks, the cache has "
                f"{space.num_blocks:,}"
            )
        needed = self.units(request.max_tokens, space)
        if needed <= self.capacity(space):
            return None
        return (
            f"request {request.request_id} can never fit: prompt {request.num_prompt_tokens} + maximum output "
            f"{request.max_output_tokens} tokens need {needed:,.0f} {self.unit}, the cache has {self.capacity(space):,.0f}"
        )

    def joined(self, request: Request, space: Space) -> None:
        """It runs from now on: what it reserves is committed."""
        if self.reserve != "none":
            request.committed_tokens = self._reserved_tokens(request)
            self.committed += self.units(request.committed_tokens, space)

    def left(self, request: Request, space: Space) -> None:
        """It runs no longer: its reservation is given back."""
        if request.committed_tokens:
            self.committed -= self.units(request.committed_tokens, space)
            request.committed_tokens = 0

    def _reserved_tokens(self, request: Request) -> int:
        if self.reserve == "all":
            return request.max_tokens
        return max(request.num_known_tokens, request.num_prompt_tokens + self.predictor(request))


@ADMISSIONS.register("requests")
class RequestAdmission(Admission):
    """At most so many at once, whatever their length: the coarsest unit."""

    unit = "requests"

    def __init__(self, max_requests: int = 256, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.max_requests = max_requests

    def units(self, num_tokens: int, space: Space) -> float:
        return 1

    def capacity(self, space: Space) -> float:
        return self.max_requests

    def free(self, space: Space, num_running: int, num_tokens: int) -> float:
        return self.max_requests - num_running

    def never_fits(self, request: Request, space: Space) -> str | None:
        return None  # it does not look at memory at all


@ADMISSIONS.register("tokens")
class TokenAdmission(Admission):
    """At most so many tokens in the cache (default: what the cache can hold), the round-up to blocks not counted."""

    unit = "tokens"

    def __init__(self, max_tokens: int | None = None, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.max_tokens = max_tokens

    def units(self, num_tokens: int, space: Space) -> float:
        return num_tokens

    def capacity(self, space: Space) -> float:
        return space.num_blocks * space.block_size if self.max_tokens is None else self.max_tokens

    def free(self, space: Space, num_running: int, num_tokens: int) -> float:
        return self.capacity(space) - num_tokens


@ADMISSIONS.register("blocks")
class BlockAdmission(Admission):
    """What the cache manager itself counts: blocks, the last one of each request rounded up, shared ones once."""

    unit = "blocks"

    def units(self, num_tokens: int, space: Space) -> float:
        return space.blocks_for(num_tokens)

    def capacity(self, space: Space) -> float:
        return space.num_blocks

    def free(self, space: Space, num_running: int, num_tokens: int) -> float:
        return space.num_free_blocks


@ADMISSIONS.register("bytes")
class ByteAdmission(Admission):
    """A budget in bytes, below the pool if wished: what is left for keys and values after everything else."""

    unit = "bytes"

    def __init__(self, max_bytes: int | None = None, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.max_bytes = max_bytes

    def units(self, num_tokens: int, space: Space) -> float:
        return space.blocks_for(num_tokens) * space.block_bytes

    def capacity(self, space: Space) -> float:
        pool = space.num_blocks * space.block_bytes
        return pool if self.max_bytes is None else min(pool, self.max_bytes)

    def free(self, space: Space, num_running: int, num_tokens: int) -> float:
        used = (space.num_blocks - space.num_free_blocks) * space.block_bytes
        return self.capacity(space) - used
