"""Section 15: capacity, shape of allocation, regularity of lifetimes and scheduling, crossed in one factorial experiment."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.experiments.churn import AllocatorMemory, BlockMemory, Churn, Holding
from labkit.experiments.harms import peak_demand
from labkit.experiments.scheduling import faster, with_client_limit
from labkit.experiments.serve import serve
from labkit.memory import make_allocator
from labkit.workload.base import RequestSpec

#: factor -> (name of the low level, name of the high level); the high level is the one that should help
FACTORS: dict[str, tuple[str, str]] = {
    "capacity": ("40,000 tokens", "80,000 tokens"),
    "shape": ("reserved runs of 4,096", "blocks of 16"),
    "lifetimes": ("trace, one in 25 very long", "all alike"),
    "scheduling": ("static batches, counts requests", "continuous, counts memory"),
}
Cell = tuple[bool, bool, bool, bool]
MAX_MODEL_LEN = 4096


@dataclass(frozen=True)
class Effect:
    """A contrast of the 2^4 design: mean of the cells where the product of the factors is high, less the others."""

    factors: tuple[str, ...]
    size: float

    @property
    def name(self) -> str:
        return " x ".join(self.factors)


def load_for(requests: Sequence[RequestSpec], *, alike: bool, speed: float) -> list[RequestSpec]:
    """The load of one level of "lifetimes": the trace with 1,500 more output tokens for every 25th request, or as many
    requests of the trace's mean lengths, evenly spaced."""
    asked = faster(requests, speed)
    if not alike:
        asked = [
            dataclasses.replace(
                r, num_output_tokens=min(r.num_output_tokens + 1500, MAX_MODEL_LEN - r.num_prompt_tokens)
            )
            if index % 25 == 0
            else r
            for index, r in enumerate(asked)
        ]
    else:
        prompt = int(np.mean([r.num_prompt_tokens for r in asked]))
        output = int(np.mean([r.num_output_tokens for r in asked]))
        gap = (asked[-1].arrival_s - asked[0].arrival_s) / (len(asked) - 1)
        asked = [
            dataclasses.replace(r, arrival_s=index * gap, num_prompt_tokens=prompt, num_output_tokens=output)
            for index, r in enumerate(asked)
        ]
    return with_client_limit(asked)


def run_cell(
    requests: Sequence[RequestSpec], cell: Cell, *, bytes_per_token: int, speed: float = 1.3
) -> float:
    """Share of the requests that were served whole within the SLA (first token in 2 s, then 60 ms a token)."""
    capacity, shape, lifetimes, scheduling = cell
    load = load_for(requests, alike=lifetimes, speed=speed)
    options: dict[str, Any] = (
        {"admission": "blocks", "headroom": 0.05}
        if scheduling
        else {"admission": "requests", "max_requests": 48, "batching": "static"}
    )
    run = serve(
        "paged" if shape else "reserve-max",
        load,
        capacity_tokens=80_000 if capacity else 40_000,
        bytes_per_token=bytes_per_token,
        max_model_len=MAX_MODEL_LEN,
        kv_options=None if shape else {"max_model_len": MAX_MODEL_LEN},
        every=50,
        **options,
    )
    records = run.recorder.requests.values()
    good = sum(
        r.finish_s is not None and (r.ttft_s or 0.0) <= 2.0 and (r.tpot_s or 0.0) <= 0.060 for r in records
    )
    return good / len(load)


def factorial(
    requests: Sequence[RequestSpec], *, bytes_per_token: int, speed: float = 1.3
) -> dict[Cell, float]:
    """All sixteen cells."""
    cells = itertools.product((False, True), repeat=len(FACTORS))
    return {
        (a, b, c, d): run_cell(requests, (a, b, c, d), bytes_per_token=bytes_per_token, speed=speed)
        for a, b, c, d in cells
    }


def effects(results: Mapping[Cell, float]) -> list[Effect]:
    """Main effects first, then interactions of two, three and four factors, each group from large to small."""
    names = list(FACTORS)
    found = []
    for size in range(1, len(names) + 1):
        group = []
        for chosen in itertools.combinations(range(len(names)), size):
            signs = {cell: np.prod([1 if cell[i] else -1 for i in chosen]) for cell in results}
            contrast = sum(signs[cell] * value for cell, value in results.items()) / (len(results) / 2)
            group.append(Effect(tuple(names[i] for i in chosen), float(contrast)))
        found += sorted(group, key=lambda effect: -abs(effect.size))
    return found


def act_together(found: Sequence[Effect], main: float = 0.02, interaction: float = 0.05) -> bool:
    """Each of the four changes the outcome by more than two percentage points, and some pair or group changes what its
    members are worth by more than five."""
    mains = [abs(e.size) for e in found if len(e.factors) == 1]
    interactions = [abs(e.size) for e in found if len(e.factors) > 1]
    return min(mains) > main and max(interactions) > interaction


@dataclass(frozen=True)
class Answer:
    """Why requests are refused although memory is free: counts of the refusals by kind, and after each remedy."""

    refused: int
    with_room_to_spare: int
    after: dict[str, int]

    def removes_refusals(self, remedy: str) -> bool:
        """There were refusals, and none is left."""
        return self.refused > 0 and self.after[remedy] == 0

    @property
    def sentence(self) -> str:
        cause = (
            "no free span was long enough"
            if self.with_room_to_spare * 2 > self.refused
            else "memory was full"
        )
        return (
            f"{self.refused} requests were refused; {self.with_room_to_spare} of them with enough bytes free, because {cause}. "
            + "; ".join(f"{name}: {left} left" for name, left in self.after.items())
        )


def closing_answer(holdings: Sequence[Holding], *, room: float = 1.0, block_bytes: int) -> Answer:
    """The reader's own run: contiguous memory of `room` times the peak demand, then the two obvious remedies.

    Blocks get 1 % more memory, which covers the empty rest of last blocks. At the peak demand a handful is refused, so a
    verdict needs several runs: see `all_of`.
    """
    capacity = int(room * peak_demand(holdings))

    def refusals(size: int) -> tuple[int, int]:
        run = Churn(AllocatorMemory(make_allocator("first-fit", size)), on_failure="drop").feed(holdings)
        return run.num_dropped, run.num_fragmentation_failures

    refused, spare = refusals(capacity)
    blocks = Churn(BlockMemory(int(1.01 * capacity), block_bytes), on_failure="drop").feed(holdings)
    return Answer(
        refused=refused,
        with_room_to_spare=spare,
        after={"5 % more memory": refusals(int(1.05 * capacity))[0], "blocks": blocks.num_dropped},
    )


def all_of(answers: Sequence[Answer]) -> Answer:
    """The counts of several runs, added up."""
    return Answer(
        refused=sum(answer.refused for answer in answers),
        with_room_to_spare=sum(answer.with_room_to_spare for answer in answers),
        after={name: sum(answer.after[name] for answer in answers) for name in answers[0].after},
    )
