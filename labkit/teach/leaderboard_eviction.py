"""The eviction board. An entry is a subclass of `labkit.kv.eviction.EvictionQueue` whose `key` says which idle block goes
first. Judged by the share of prompt tokens that were found in the cache, over three loads that share content.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from labkit.kv.eviction import EVICTION, EvictionQueue
from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix_hash import HashPrefixCache
from labkit.serving.base import Scheduler
from labkit.serving.schedulers import SYSTEMS, make_scheduler
from labkit.teach.leaderboard import Board, Result, Row
from labkit.teach.leaderboard_entry import Disqualified, Entry, load_class
from labkit.teach.leaderboard_scheduler import server
from labkit.teach.leaderboard_serving import Contest, play, score
from labkit.teach.leaderboard_traces import BYTES_PER_TOKEN, BoardLoad, shared_loads

COLUMNS = ("hit_share", "evicted_blocks", "good_share", "goodput", "preempted")
#: tokens; a divisor of the loads' shared blocks
CACHE_BLOCK = 128


def judge(num_requests: int | None, seed: int) -> tuple[Board, Callable[[Entry], list[Result]]]:
    """The board with every built-in policy and the systems' own, and the function that scores an entry."""
    loads = shared_loads(num_requests or 300, seed)
    board = Board("eviction", COLUMNS, [load.origin for load in loads])
    for name in EVICTION:
        results = [score(load, play(partial(cached, load, name), load.requests)) for load in loads]
        board.rows.append(Row(name, "built in", tuple(results)))
    for system in SYSTEMS:
        results = [score(load, play(partial(server, system, load), load.requests)) for load in loads]
        board.rows.append(Row(system, "system", tuple(results)))
    return board, partial(_contest, loads)


def cached(load: BoardLoad, eviction: str) -> Scheduler:
    """The lab's scheduler on a paged cache with a hash chain under this eviction policy."""
    prefix = HashPrefixCache(CACHE_BLOCK, eviction)
    kv = PagedKVCache(load.pool_tokens // CACHE_BLOCK, BYTES_PER_TOKEN, block_size=CACHE_BLOCK, prefix=prefix)
    return make_scheduler("lab", kv, max_model_len=32_768)


def with_entry(entry: Entry, load: BoardLoad) -> Scheduler:
    """The same with the entry's policy. Executes the entry's file: call it in the child only."""
    cls: Any = load_class(entry)
    if not issubclass(cls, EvictionQueue):
        raise Disqualified("fails", f"{cls.__name__} is not a labkit.kv.eviction.EvictionQueue")
    if "entry" not in EVICTION:
        EVICTION.register("entry")(cls)
    return cached(load, "entry")


def _contest(loads: list[BoardLoad], entry: Entry) -> list[Result]:
    return [Contest(load, partial(with_entry, entry, load)).result() for load in loads]
