"""Section 10.3: programs of several calls under SGLang: state that is reused, and how long it lives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.experiments.serve import STEP_COST
from labkit.experiments.three_systems import SystemRun, run_system
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.forced_outputs import ForcedOutputs
from labkit.workload.base import RequestSpec


def program_load(
    rng: np.random.Generator, *, num_programs: int = 60, branches: int = 3, every_s: float = 1.5
) -> tuple[list[RequestSpec], dict[str, list[int]]]:
    """Programs of several calls over one context, and what each call will answer.

    A program shares a system prompt of 600 tokens with all others and has a task of its own (around 400). Its calls: plan;
    `branches` continuations of context and plan at the same time; a join, which sees context, plan and the first branch,
    then the other branches. A call comes five seconds after the one it needs.
    """
    system = list(range(600))
    next_id = 600
    calls: list[RequestSpec] = []
    answers: dict[str, list[int]] = {}

    def fresh(mean: float) -> list[int]:
        nonlocal next_id
        size = 20 + int(rng.exponential(mean))
        next_id += size
        return list(range(next_id - size, next_id))

    def call(name: str, at_s: float, prompt: list[int], mean_output: float) -> list[int]:
        answer = fresh(mean_output)
        answers[name] = answer
        program = name.split(".")[0]
        calls.append(
            RequestSpec(
                name, at_s, len(prompt), len(answer), len(answer), prompt_token_ids=prompt, session_id=program
            )
        )
        return answer

    start_s = 0.0
    for p in range(num_programs):
        start_s += float(rng.exponential(every_s))
        context = [*system, *fresh(400)]
        planned = [*context, *call(f"p{p}.plan", start_s, context, 150)]
        parts = []
        for b in range(branches):
            prompt = [*planned, *fresh(30)]
            parts.append([*prompt[len(planned) :], *call(f"p{p}.branch{b}", start_s + 5, prompt, 200)])
        call(f"p{p}.join", start_s + 10, [*planned, *(t for part in parts for t in part)], 150)
    calls.sort(key=lambda r: (r.arrival_s, r.request_id))
    return calls, answers


def single_calls(
    calls: Sequence[RequestSpec], answers: dict[str, list[int]]
) -> tuple[list[RequestSpec], dict[str, list[int]]]:
    """The control: the same lengths at the same times, every call on its own text."""
    fresh, alone, own = 1 << 30, [], {}
    for r in calls:
        alone.append(
            dataclasses.replace(
                r, prompt_token_ids=list(range(fresh, fresh + r.num_prompt_tokens)), session_id=None
            )
        )
        fresh += r.num_prompt_tokens
        own[r.request_id] = list(range(fresh, fresh + len(answers[r.request_id])))
        fresh += r.num_output_tokens
    return alone, own


@dataclass(frozen=True)
class Programs:
    """SGLang on programs. `outlived_share`: of the memory in use (mean over time), the part whose requests are gone."""

    hit_share: float
    outlived_share: float
    num_retracted: int
    num_switches: int
    ttft_p95_s: float
    run: SystemRun

    def long_lived_state(self) -> bool:
        """A third of the prompts is found again, and most of the memory in use belongs to nobody who runs."""
        return self.hit_share > 1 / 3 and self.outlived_share > 0.5


def sglang_programs(
    calls: Sequence[RequestSpec], answers: dict[str, list[int]], capacity_tokens: int, **own: Any
) -> Programs:
    """Run the calls under SGLang; answers come back as tokens, so that the next call can find them."""
    executor = ForcedOutputs(LinearStepCost(**STEP_COST), answers)
    run = run_system(
        "sglang", calls, capacity_tokens, executor=executor, record_chunks=True, schedule_policy="lpm", **own
    )
    frame = run.watch.frame()
    prefills = (run.watch.steps()["prefill_tokens"] > 0).to_numpy()
    used = (frame["live"] + frame["cached"]).sum()
    return Programs(
        hit_share=run.hit_share,
        outlived_share=float(frame["cached"].sum() / used) if used else 0.0,
        num_retracted=run.num_preempted,
        num_switches=int((prefills[1:] != prefills[:-1]).sum()),
        ttft_p95_s=run.ttft_p95_s,
        run=run,
    )


def reuse_against_lifetime(ample: Programs, tight: Programs) -> bool:
    """What is found again lives long after its call; where memory is short, a fifth of that memory at least is cut away, and a
    twentieth of the reuse goes with it: claim 10.3."""
    return (
        ample.long_lived_state()
        and tight.outlived_share < 0.8 * ample.outlived_share
        and tight.hit_share < 0.95 * ample.hit_share
    )
