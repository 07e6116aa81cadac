"""Exercise 15: six incidents. Name the cause and the figure that tells it from the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.experiments.six_incidents import CAUSES, FIGURES, six
from labkit.teach.exercises.base import Exercise, Mistake, Picture
from labkit.teach.exercises.watch import called, short

#: the six that the notebook shows, then unseen ones
SEEDS = (15, 150, 151)
SHARES = (
    "kv_peak",
    "kv_at_rest_first",
    "kv_at_rest_growth",
    "free_while_waiting",
    "largest_free_while_waiting",
)


def incidents(seed: int = 15) -> list[dict[str, float]]:
    """The six recordings of the notebook, without their causes."""
    return [figures for _, figures in six(seed)]


def run(my_diagnosis: Callable[[dict[str, float]], Any]) -> str:
    my_diagnosis = called(my_diagnosis)
    num = 0
    for seed in SEEDS:
        for number, (cause, figures) in enumerate(six(seed), 1):
            where = (
                f"incident {number} of the notebook"
                if seed == SEEDS[0]
                else "an incident that you have not seen"
            )
            _judge(my_diagnosis(dict(figures)), cause, figures, where)
            num += 1
    return f"{num} incidents told apart, {num - 6} of them unseen, each with its evidence."


def _judge(answer: Any, cause: str, figures: dict[str, float], where: str) -> None:
    picture = Picture(
        "bars",
        where,
        {name: {"share": figures[name]} for name in SHARES},
        {"ylabel": "share of the pool, or of what is free"},
    )
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        raise Mistake(f"my_diagnosis returned {short(answer)}; return a pair (cause, figure).", picture)
    said, evidence = answer
    if not isinstance(said, str) or said not in CAUSES:
        raise Mistake(f"{said!r} is no cause; the causes are: {', '.join(CAUSES)}.", picture)
    if not isinstance(evidence, str) or evidence not in FIGURES:
        raise Mistake(f"{evidence!r} is no figure; the figures are: {', '.join(FIGURES)}.", picture)
    shown = ", ".join(f"{name} {value:g}" for name, value in figures.items())
    if said != cause:
        raise Mistake(
            f"{where[0].upper()}{where[1:]} is not {said!r}: {_why(said, cause, figures)}. Its figures: {shown}.",
            picture,
        )
    if evidence != CAUSES[cause]:
        raise Mistake(
            f"{cause!r} is right for {where}, and {evidence} ({figures[evidence]:g}) is not what tells it from the others: which "
            f"figure would be ordinary if this cause were taken away, and only then? Its figures: {shown}.",
            picture,
        )


def _why(said: str, cause: str, figures: dict[str, float]) -> str:
    """What contradicts the answer."""
    rest, growth = figures["kv_at_rest_first"], figures["kv_at_rest_growth"]
    free, run = figures["free_while_waiting"], figures["largest_free_while_waiting"]
    if said == "leak":
        return (
            f"{100 * rest:.0f} % are held when nobody runs, and by the end it is no more: a leak grows from rest to rest, and this "
            "was there from the start"
            if rest > 0.05
            else "nothing is held when nobody runs"
        )
    if said == "pinned prefixes":
        return (
            f"what is held when nobody runs has grown by {100 * growth:.0f} % of the pool: pins are there from the start and stay"
            if growth > 0.05
            else "nothing is held when nobody runs, so nothing is pinned"
        )
    if said == "fragmentation":
        return f"the longest free run is {100 * run:.0f} % of what is free while somebody waits: the free part is in one piece"
    if said == "admission limit":
        return (
            f"only {100 * free:.0f} % of the pool are free while somebody waits: memory binds, not a limit"
            if figures["mean_waiting"] > 0.5 or free < 0.5
            else "hardly anybody waits"
        )
    if said == "step too large":
        return (
            f"{figures['num_preemptions']:.0f} preemptions explain the long gap: a request that is sent back makes no token meanwhile"
            if figures["num_preemptions"]
            else f"the longest gap is {figures['worst_gap_ms']:.0f} ms, as in a quiet service"
        )
    if cause in ("leak", "pinned prefixes"):
        return f"{100 * (rest + growth):.0f} % of the pool are held at the end with nobody running: that is no load"
    if cause == "fragmentation":
        return f"while somebody waits {100 * free:.0f} % are free, and the longest run is {100 * run:.0f} % of that: enough, and in pieces"
    if cause == "admission limit":
        return f"{100 * free:.0f} % of the pool are free while somebody waits: a full pool does not look like that"
    return f"the pool is never more than {100 * figures['kv_peak']:.0f} % full, and nobody waits for memory"


EXERCISE = Exercise(
    "15",
    "diagnose",
    "Six incidents: name the cause and the evidence",
    ("my_diagnosis",),
    (
        "Look at rest first. When nobody runs, whatever is still held is held by something else.",
        "Held at rest and growing is one cause, held at rest and constant another.",
        "Then ask what is free while somebody waits: much, or little? And is the little in one piece?",
        "A long gap with preemptions and a long gap without them are two different things.",
        "kv_peak = 1 says least of all: four of the six fill the pool. Ask for it last.",
    ),
    run,
    time_s=20.0,
)
