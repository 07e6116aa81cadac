"""What a step of the vLLM and TensorRT-LLM models hands to the loop: sampled ids kept, and who started or finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from labkit.serving.base import StepOutcome
from labkit.workload.base import RequestSpec

#: most steps start and finish nobody; one object for all of them
NOTHING = StepOutcome()


class Request(Protocol):
    """`end` is the number of tokens, prompt included, at which it stops; `tokens` its ids, None where nobody needs them."""

    id: str
    spec: RequestSpec
    num_prompt: int
    end: int
    tokens: list[int] | None


def keep_sampled(requests: Mapping[str, Request], sampled: Mapping[str, int]) -> None:
    """The executor's tokens continue the requests that carry ids."""
    for request_id, token in sampled.items():
        r = requests.get(request_id)
        if r is not None and r.tokens is not None:
            r.tokens.append(token)


def outcome_of(started: Sequence[Request], finished: Sequence[Request]) -> StepOutcome:
    """Who gave its first token and who its last in this step, and who of the latter was stopped short of its output."""
    if not (started or finished):
        return NOTHING
    short = {r.id: r.end - r.num_prompt for r in finished if r.end < r.num_prompt + r.spec.num_output_tokens}
    return StepOutcome([r.id for r in started], [r.id for r in finished], short or None)
