"""The scheduler board. An entry is a class: one of the four parts of the lab's scheduler (queue order, admission, batch
composition, pressure response; the other three stay as they are), or a subclass of `LabScheduler` that takes a cache.

Judged by the share of requests that met the SLA, over three loads that are somewhat too much for their pools.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from labkit.experiments.proofs.systems import small_server
from labkit.kv import make_kv_cache
from labkit.serving.admission import Admission
from labkit.serving.base import Scheduler
from labkit.serving.batching import BatchComposition
from labkit.serving.lab import LabScheduler
from labkit.serving.order import QueueOrder
from labkit.serving.pressure import PressureResponse
from labkit.serving.schedulers import SYSTEMS, make_scheduler
from labkit.teach.leaderboard import Board, Result, Row
from labkit.teach.leaderboard_entry import Disqualified, Entry, load_class
from labkit.teach.leaderboard_serving import Contest, play, score
from labkit.teach.leaderboard_traces import BLOCK, BYTES_PER_TOKEN, BoardLoad, serving_loads

COLUMNS = ("good_share", "lost_tokens", "goodput", "output_tokens_per_s", "preempted", "refused")
#: name -> options of the lab's scheduler
BUILT_IN: dict[str, dict[str, Any]] = {
    "lab: first come, first served": {},
    "lab: 5 % headroom": {"headroom": 0.05},
    "lab: maximum set aside": {"reserve": "all"},
    "lab: predicted set aside": {"reserve": "predicted"},
    "lab: shortest prompt first": {"order": "shortest-prompt"},
    "lab: ageing, skips": {"order": "ageing", "blocked": "skip", "max_skips": 20},
    "lab: prefill first": {"batching": "prefill-first"},
    "lab: static batches": {"batching": "static"},
    "lab: 24 requests at once": {"admission": "requests", "max_requests": 24},
    "lab: throttle": {"pressure": "throttle"},
    "lab: swap": {"pressure": "swap"},
    "lab: refuse": {"pressure": "refuse"},
}
PARTS: dict[str, type] = {
    "order": QueueOrder,
    "admission": Admission,
    "batching": BatchComposition,
    "pressure": PressureResponse,
}


def judge(num_requests: int | None, seed: int) -> tuple[Board, Callable[[Entry], list[Result]]]:
    """The board with everything that is built in, and the function that scores an entry."""
    loads = serving_loads(num_requests or 200, seed)
    board = Board("scheduler", COLUMNS, [load.origin for load in loads])
    for name, options in BUILT_IN.items():
        results = [score(load, play(partial(lab, load, **options), load.requests)) for load in loads]
        board.rows.append(Row(name, "built in", tuple(results)))
    for system in SYSTEMS:
        results = [score(load, play(partial(server, system, load), load.requests)) for load in loads]
        board.rows.append(Row(system, "system", tuple(results)))
    return board, partial(_contest, loads)


def lab(load: BoardLoad, **options: Any) -> Scheduler:
    """The lab's scheduler on the load's pool."""
    kv = make_kv_cache(
        "paged", capacity_tokens=load.pool_tokens, bytes_per_token=BYTES_PER_TOKEN, block_size=BLOCK
    )
    return make_scheduler("lab", kv, max_model_len=16_384, **options)


def server(system: str, load: BoardLoad) -> Scheduler:
    """A real system's model with a pool of the same size."""
    options = {"enable_chunked_prefill": True} if system == "tensorrt_llm" else {}
    return small_server(system, load.pool_tokens, **options)


def entry_scheduler(entry: Entry, load: BoardLoad) -> Scheduler:
    """The entry in its place. Executes the entry's file: call it in the child only."""
    cls: Any = load_class(entry)
    for part, base in PARTS.items():
        if issubclass(cls, base):
            return lab(load, **{part: cls()})
    if issubclass(cls, LabScheduler):
        kv = make_kv_cache(
            "paged", capacity_tokens=load.pool_tokens, bytes_per_token=BYTES_PER_TOKEN, block_size=BLOCK
        )
        scheduler: Scheduler = cls(kv)
        return scheduler
    bases = ", ".join(base.__name__ for base in PARTS.values())
    raise Disqualified("fails", f"{cls.__name__} is none of {bases}, LabScheduler")


def _contest(loads: list[BoardLoad], entry: Entry) -> list[Result]:
    return [Contest(load, partial(entry_scheduler, entry, load)).result() for load in loads]
