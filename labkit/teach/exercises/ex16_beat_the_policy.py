"""Exercise 16, open: beat the built-in queue order on a real trace under an SLA. Judged as the scheduler leaderboard does."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from labkit.serving.order import QueueOrder
from labkit.teach.exercises.base import Exercise, Mistake, Picture, that
from labkit.teach.leaderboard_entry import Disqualified
from labkit.teach.leaderboard_scheduler import entry_scheduler, lab
from labkit.teach.leaderboard_serving import Contest, play, score
from labkit.teach.leaderboard_traces import BoardLoad, serving_loads

#: points of good share that an entry must win
MARGIN = 0.05


@cache
def load() -> BoardLoad:
    """The Azure conversation trace (or its stand-in), half as fast again, on a pool that is somewhat too small."""
    return serving_loads(160)[0]


@cache
def built_in() -> dict[str, float]:
    """Share of requests that met the SLA under what is built in."""
    rules: dict[str, dict[str, Any]] = {
        "first come, first served": {},
        "maximum set aside": {"reserve": "all"},
        "shortest prompt first": {"order": "shortest-prompt"},
    }
    return {
        name: score(load(), play(partial(lab, load(), **options), load().requests)).figures["good_share"]
        for name, options in rules.items()
    }


def run(my_policy: Any) -> str:
    that(
        isinstance(my_policy, type) and issubclass(my_policy, QueueOrder),
        "MyPolicy must be a class that inherits from QueueOrder, with a method key(self, request, space).",
        _bars({}),
    )
    try:
        result = Contest(load(), partial(entry_scheduler, my_policy, load()), time_s=6.0).result()
    except Disqualified as problem:
        if problem.cheat == "fails" and "NotImplementedError" in problem.what:
            raise NotImplementedError(problem.what.split("NotImplementedError: ")[1].split(" (")[0]) from None
        raise Mistake(f"Your policy {problem}.", _bars({})) from None
    mine, baseline = result.figures["good_share"], built_in()["first come, first served"]
    picture = _bars({"yours": mine})
    if mine < baseline:
        raise Mistake(
            f"{100 * mine:.1f} % of the requests met the SLA, fewer than under first come, first served ({100 * baseline:.1f} %): "
            "your order lets those wait who could have been served in time. The smallest key goes first.",
            picture,
        )
    that(
        mine >= baseline + MARGIN,
        f"{100 * mine:.1f} % of the requests met the SLA and {100 * baseline:.1f} % under first come, first served: win at least "
        f"{100 * MARGIN:.0f} points. What do requests that miss the SLA have in common?",
        picture,
    )
    best = built_in()["shortest prompt first"]
    rest = "also ahead of" if mine > best else "not yet ahead of"
    return (
        f"{100 * mine:.1f} % of the requests met the SLA, {100 * (mine - baseline):.1f} points more than under first come, first "
        f"served; {rest} shortest prompt first ({100 * best:.1f} %). Now all three loads: labkit leaderboard scheduler FILE.py:MyPolicy"
    )


def _bars(mine: dict[str, float]) -> Picture:
    rows = {name: {"met the SLA": 100 * share} for name, share in (built_in() | mine).items()}
    return Picture(
        "bars",
        f"{load().name}: first token within {load().ttft_s:g} s, 60 ms a token",
        rows,
        {"ylabel": "% of requests"},
    )


EXERCISE = Exercise(
    "16",
    "beat_the_policy",
    "Open: beat the built-in policy on a real trace, under an SLA",
    ("MyPolicy",),
    (
        "A request is good when its first token comes within 2 s. Who can still make it, and who has already missed it?",
        "`request.spec.num_prompt_tokens` and `request.arrival_step` are known. How long the answer will be is not.",
        "Short prompts first serves more people in time; it may starve long ones. Mix in the arrival.",
        "Key = prompt tokens + c x arrival step: c = 0 is shortest first, a large c is first come, first served.",
    ),
    run,
    time_s=40.0,
)
