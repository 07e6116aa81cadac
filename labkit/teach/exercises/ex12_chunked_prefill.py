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
        ([("a", 20, 16), ("b", 50, 8)], [], 16, 4, {"a": 4, "b": 12}, "two prompts in chunks: first come first served"),
        (
            [("a", 100, 16), ("b", 50, 8)], [], 16, 4, {"a": 16},
            "the chunk of a uses the budget up: b computes nothing and is left out (no entry with 0 tokens)",
        ),
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
    why: str = "",
) -> None:
    """`why` is what the input is about; without it the first request that differs is explained."""
    given = {"running": list(running), "waiting": list(waiting)}
    got = my_plan_step(given["running"], given["waiting"], budget, seqs)
    that(
        isinstance(got, dict) and all(hasattr(n, "__index__") for n in got.values()),
        f"my_plan_step returned {short(got)}; return a dict {{request id: number of tokens}}.",
    )
    for name, before in (("running", running), ("waiting", waiting)):
        that(
            given[name] == before,
            f"your function changed the list `{name}`: it had {short(before)} and has {short(given[name])} after the call. The lists "
            f"belong to the caller; work on a copy (list({name})).",
            _picture(got, expected, budget),
        )
    if got == expected:
        return
    why = why or _first_difference(running, waiting, budget, seqs, got, expected)
    total = sum(got.values())
    if total > budget:
        why = f"{total} tokens are more than the budget of {budget}: every decode and every chunk takes from it ({why})"
    raise Mistake(
        f"your step is {got} and should be {expected}: {why}.\nThe call that shows it:\n    my_plan_step({running}, {waiting}, "
        f"budget={budget}, max_num_seqs={seqs})",
        _picture(got, expected, budget),
    )


def _picture(got: dict[str, int], expected: dict[str, int], budget: int) -> Picture:
    rows = {
        name: {str(k): int(v) for k, v in list(step.items())[:8]}
        for name, step in (("yours", got), ("expected", expected))
    }
    return Picture("step", "who gets how many tokens of the step", rows, {"budget": budget})


def _first_difference(
    running: list[Row],
    waiting: list[Row],
    budget: int,
    seqs: int,
    got: dict[str, int],
    expected: dict[str, int],
) -> str:
    """The first request, in the order in which the budget is given out, that gets something else than it should."""
    decoding = [row for row in running if row[2] >= row[1]]
    prefilling = [row for row in running if row[2] < row[1]]
    left = budget
    for what, rows in (("decodes", decoding), ("is prefilling", prefilling), ("waits", waiting)):
        for name, prompt, computed in rows:
            right, mine = expected.get(name, 0), got.get(name, 0)
            if mine != right or (name in got) != (name in expected):
                rest = (
                    f"{counted(prompt - computed, 'tokens')} of its prompt are left, and {left} of the budget"
                )
                if what == "decodes":
                    rest = "its prompt is computed, so it takes 1"
                elif what == "waits" and not right and left:
                    rest = f"{seqs} requests run with those that join before it, and max_num_seqs is {seqs}"
                elif not right:
                    rest = "the budget is used up before its turn, so it has no entry"
                takes = "no entry" if name not in got else counted(mine, "tokens")
                return f"{name} {what} and gets {takes} from you instead of {right or 'no entry'}: {rest}"
            left -= right
    return f"{', '.join(str(name) for name in got if name not in expected)} is none of the requests"


def _against_lab(my_plan_step: PlanStep, seed: int) -> int:
    """A lab scheduler serves a random load; before each of its steps the learner is asked what that step will be."""
    rng = np.random.default_rng([12, seed])
    seqs, budget = int(rng.integers(2, 8)), int(rng.integers(16, 120))
    kv = make_kv_cache("paged", capacity_tokens=1 << 16, bytes_per_token=1)
    scheduler = LabScheduler(
        kv, batching=Chunked(max_num_batched_tokens=budget), max_num_seqs=seqs, record_chunks=True
    )
    arrivals = [
        RequestSpec(f"r{i}", 0.0, prompt, int(rng.integers(1, 20)), max_output_tokens=20)
        for i, prompt in enumerate(int(rng.integers(1, 8 if rng.random() < 0.5 else 200)) for _ in range(16))
    ]
    num = 0
    while scheduler.has_work() or arrivals:
        while arrivals and (rng.random() < 0.7 or not scheduler.has_work()):
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
