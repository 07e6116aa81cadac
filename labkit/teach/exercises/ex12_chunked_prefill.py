"""Exercise 12: one step of chunked prefill within a token budget. Checked against the lab's scheduler, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.kv import make_kv_cache
from labkit.serving.base import StepResult
from labkit.serving.batching import Chunked
from labkit.serving.lab import LabScheduler
from labkit.teach.exercises.base import Exercise, Mistake, Picture, that
from labkit.teach.exercises.strip import counted
from labkit.teach.exercises.watch import called, short
from labkit.workload.base import RequestSpec

Row = tuple[str, int, int]
PlanStep = Callable[[list[Row], list[Row], int, int], dict[str, int]]


def run(my_plan_step: PlanStep) -> str:
    fixed: list[tuple[list[Row], list[Row], int, int, dict[str, int], str]] = [
        ([("a", 10, 10), ("b", 50, 50)], [], 16, 4, {"a": 1, "b": 1}, "a request whose prompt is computed decodes: one token"),
        ([], [("a", 10, 0)], 16, 4, {"a": 10}, "a waiting prompt that fits the budget is taken whole"),
        ([], [("a", 100, 0)], 16, 4, {"a": 16}, "a prompt longer than the budget is cut to it: a chunk"),
        ([("a", 100, 16)], [], 16, 4, {"a": 16}, "a chunk goes on where the last one ended and takes what the budget allows"),
        ([("a", 20, 16)], [], 16, 4, {"a": 4}, "the last chunk is what is left of the prompt, not the whole budget"),
        (
            [("a", 100, 16), ("b", 10, 10)], [], 16, 4, {"b": 1, "a": 15},
            "decodes take their tokens first, wherever they stand among the running, and prefill chunks share the rest",
        ),
        (
            [("a", 10, 10)], [("b", 100, 0), ("c", 5, 0)], 16, 4, {"a": 1, "b": 15},
            "the budget is used up by the chunk of b: c is left out (no entry with 0 tokens) and does not overtake b",
        ),
        (
            [("a", 10, 10)], [("b", 8, 0), ("c", 30, 0), ("d", 2, 0)], 16, 4, {"a": 1, "b": 8, "c": 7},
            "first come first served: c is cut to the budget, and d does not overtake it",
        ),
        ([("a", 9, 9), ("b", 9, 9)], [("c", 5, 0)], 16, 2, {"a": 1, "b": 1}, "max_num_seqs requests run already: c must wait"),
        ([("a", 9, 9)], [("b", 5, 0), ("c", 5, 0)], 16, 2, {"a": 1, "b": 5}, "one more may join (max_num_seqs=2): b, not c"),
        ([], [("a", 30, 8)], 64, 4, {"a": 22}, "8 tokens of a waiting request are cached (computed): 22 are left"),
        ([], [("a", 20, 8), ("b", 9, 0)], 16, 4, {"a": 12, "b": 4}, "a hit costs no budget: 12 tokens for a, 4 for b"),
    ]  # fmt: skip
    my_plan_step = called(my_plan_step)
    for running, waiting, budget, seqs, expected, why in fixed:
        _compare(my_plan_step, running, waiting, budget, seqs, expected, why)
    num = sum(_against_lab(my_plan_step, seed) for seed in range(20))
    return f"{num} steps of 20 runs are filled exactly as the lab's scheduler fills them."


def _compare(
    my_plan_step: PlanStep,
    running: list[Row],
    waiting: list[Row],
    budget: int,
    seqs: int,
    expected: dict[str, int],
    why: str,
) -> None:
    got = my_plan_step(list(running), list(waiting), budget, seqs)
    that(
        isinstance(got, dict) and all(hasattr(n, "__index__") for n in got.values()),
        f"my_plan_step returned {short(got)}; return a dict {{request id: number of tokens}}.",
    )
    if got == expected:
        return
    total = sum(got.values())
    if total > budget:
        why = f"{total} tokens are more than the budget of {budget}: every decode and every chunk takes from it ({why})"
    raise Mistake(
        f"your step is {got} and should be {expected}: {why}.\nThe call that shows it:\n    my_plan_step({running}, {waiting}, "
        f"budget={budget}, max_num_seqs={seqs})",
        Picture(
            "bars",
            f"tokens of the step (budget {budget})",
            {
                "yours": {k: float(v) for k, v in list(got.items())[:8]},
                "expected": {k: float(v) for k, v in list(expected.items())[:8]},
            },
            {"ylabel": "tokens", "stacked": True},
        ),
    )


def _rule(running: list[Row], budget: int, expected: dict[str, int]) -> str:
    """What the lab's scheduler did here, in words."""
    decoding = sum(1 for _, prompt, computed in running if computed >= prompt)
    left = budget - sum(expected.values())
    rest = f"{counted(left, 'tokens')} of the budget stay unused" if left else "that uses the budget up"
    return f"{decoding} decoding requests take 1 each, then prefilling ones in order, then waiting ones in order; {rest}"


def _against_lab(my_plan_step: PlanStep, seed: int) -> int:
    """A lab scheduler serves a random load; before each of its steps the learner is asked what that step will be."""
    rng = np.random.default_rng([12, seed])
    seqs, budget = int(rng.integers(2, 8)), int(rng.integers(16, 120))
    kv = make_kv_cache("paged", capacity_tokens=1 << 16, bytes_per_token=1)
    scheduler = LabScheduler(
        kv, batching=Chunked(max_num_batched_tokens=budget), max_num_seqs=seqs, record_chunks=True
    )
    arrivals = [
        RequestSpec(f"r{i}", 0.0, int(rng.integers(1, 200)), int(rng.integers(1, 20)), max_output_tokens=20)
        for i in range(12)
    ]
    num = 0
    while scheduler.has_work() or arrivals:
        while arrivals and (rng.random() < 0.5 or not scheduler.has_work()):
            scheduler.add(arrivals.pop(0))
        running = [_row(request) for request in scheduler.running.values()]
        waiting = [_row(request) for request in scheduler.waiting]
        plan = scheduler.schedule()
        expected = {chunk.request_id: chunk.num_tokens for chunk in plan.chunks or ()}
        _compare(
            my_plan_step,
            running,
            waiting,
            budget,
            seqs,
            expected,
            _rule(running, budget, expected),
        )
        scheduler.update(plan, StepResult(0.0))
        num += 1
    return num


def _row(request: Any) -> Row:
    """Prompt and computed tokens; a decoding request has computed its whole prompt."""
    prompt = request.num_prompt_tokens
    done = request.status == "decoding"
    return (request.request_id, prompt, prompt if done else request.num_computed_tokens)


EXERCISE = Exercise(
    "12",
    "chunked_prefill",
    "One step of chunked prefill, within a token budget",
    ("my_plan_step",),
    (
        "Three passes over the input, with one variable: how much of the budget is left.",
        "Pass 1: every running request with num_computed >= num_prompt gets 1 token. Pass 2: the other running ones, in "
        "order, get min(what is left of the prompt, what is left of the budget).",
        "Pass 3: waiting requests in order, while budget is left and fewer than max_num_seqs run. Stop at the first that "
        "gets nothing.",
        "Never write an entry with 0 tokens.",
    ),
    run,
)
