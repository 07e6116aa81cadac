"""Multi-turn sessions over shared system prompts: the load whose keys and values are hot state, not temporaries.

A session takes one of `num_prefixes` system prompts, then turns: each prompt is all that was said before, answers
included, plus a new question. `prompt_token_ids` carry the content, so any prefix cache can find what is shared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.errors import LabError
from labkit.workload.base import RequestSpec


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """Means; lengths in tokens are geometric around them (at least 1), turns too, times exponential."""

    session_rate: float = 1.0
    mean_turns: float = 4.0
    think_s: float = 20.0
    num_prefixes: int = 4
    prefix_tokens: int = 512
    question_tokens: float = 80.0
    answer_tokens: float = 150.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value < 0 or (value == 0 and name not in ("think_s", "prefix_tokens")):
                raise LabError(f"{name} is {value}; a session load needs numbers above 0")


def session_load(load: SessionLoad, num_sessions: int, rng: np.random.Generator) -> list[RequestSpec]:
    """All turns of `num_sessions` sessions in order of arrival; `session_id` ties them, `kind` is "turn N".

    A turn arrives a thinking time after the one before it; how long the answer took is not known to a load, so
    a slow server meets a session whose turns overlap. Same generator state, same bytes.
    """
    if num_sessions < 1:
        raise LabError(f"num_sessions is {num_sessions}; it must be at least 1")
    starts = np.cumsum(rng.exponential(1 / load.session_rate, num_sessions))
    next_id = load.num_prefixes * load.prefix_tokens
    requests = []
    for session, start in enumerate(starts.tolist()):
        prefix = int(rng.integers(load.num_prefixes)) * load.prefix_tokens
        said = list(range(prefix, prefix + load.prefix_tokens))
        arrival = start
        for turn in range(_at_least_one(load.mean_turns, rng)):
            question, answer = (_at_least_one(m, rng) for m in (load.question_tokens, load.answer_tokens))
            said = [*said, *range(next_id, next_id + question)]
            requests.append(
                RequestSpec(
                    request_id=f"s{session}t{turn}",
                    arrival_s=arrival,
                    num_prompt_tokens=len(said),
                    num_output_tokens=answer,
                    prompt_token_ids=said,
                    session_id=f"s{session}",
                    kind=f"turn {turn}",
                )
            )
            said = [*said, *range(next_id + question, next_id + question + answer)]
            next_id += question + answer
            arrival += float(rng.exponential(load.think_s)) if load.think_s else 0.0
    requests.sort(key=lambda r: (r.arrival_s, r.request_id))
    return requests


def _at_least_one(mean: float, rng: np.random.Generator) -> int:
    return int(rng.geometric(1 / max(1.0, mean)))
