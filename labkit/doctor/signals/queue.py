"""What users feel, and why the head of the queue waits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from labkit.doctor.signals.core import FELT_S, LOG, PAGES, Signal, Signals, signal

# --- what users feel ------------------------------------------------------------------------------------------------


@signal("queued_share", "share", f"requests that queued longer than {FELT_S:g} s", PAGES)
def _queued(s: Signals) -> Signal | None:
    within, count = s.total("queue_le_1_count"), s.total("queue_count")
    return None if within is None or not count else Signal(1 - within / count)


@signal("refusal_share", "share", "requests refused or aborted", PAGES)
def _refusals(s: Signals) -> Signal | None:
    refused, done = s.total("num_rejected"), s.total("num_finished")
    return (
        None if refused is None or done is None or not refused + done else Signal(refused / (refused + done))
    )


@signal("preemption_rate", "per request", "preemptions for each finished request", PAGES)
def _preemptions(s: Signals) -> Signal | None:
    number, done = s.total("num_preemptions"), s.total("num_finished")
    return None if number is None or not done else Signal(number / done)


@signal("wait_share", "share", "busy readings in which requests kept waiting", PAGES)
def _waits(s: Signals) -> Signal | None:
    waiting, running = s.column("num_waiting"), s.column("num_running")
    if waiting is None or running is None:
        return None
    busy = (waiting + running) > 0
    kept = (waiting >= 2) | ((waiting >= 1) & (np.concatenate([[0], waiting[:-1]]) >= 1))
    return Signal(float(kept[busy].mean())) if busy.any() else Signal(0.0)


@signal("usage_when_waiting", "share", "median KV usage while requests wait", PAGES)
def _usage_when_waiting(s: Signals) -> Signal | None:
    waiting, usage = s.column("num_waiting"), s.column("kv_usage")
    if waiting is None or usage is None or not (waiting >= 1).any():
        return None
    assert s.frame is not None
    at = np.flatnonzero(waiting >= 1)
    return Signal(float(np.median(usage[at])), float(s.frame["time_s"].iloc[at[len(at) // 2]]))


@signal("stuck_share", "share", "readings with requests waiting, nobody running and an empty pool", PAGES)
def _stuck(s: Signals) -> Signal | None:
    waiting, running, usage = s.column("num_waiting"), s.column("num_running"), s.column("kv_usage")
    if waiting is None or running is None or usage is None:
        return None
    return Signal(float(((waiting > 0) & (running == 0) & (usage < 0.01)).mean()))


# --- why the head of the queue waits --------------------------------------------------------------------------------


#: limits that are not about memory: the step is full
COMPUTE_LIMITS = ("token_budget", "decodes_first", "batch_running")
#: limits that an operator sets
_SET_LIMITS = ("max_num_seqs", "headroom", "max_long", "throttle", "requests")


def set_limit(wait: Any) -> bool:
    """Is it a limit of the scheduler that binds, rather than the pool?"""
    return wait.limit in _SET_LIMITS or wait.limit.startswith("reserved_")


def memory_waits(s: Signals) -> list[Any]:
    """Logged waits that more compute would not end."""
    return [wait for wait in s.evidence.waits if wait.limit not in COMPUTE_LIMITS]


@signal(
    "blocked_share",
    "share",
    "busy time in which the head of the queue is logged waiting, and not for compute",
    LOG,
)
def _blocked(s: Signals) -> Signal | None:
    logged = s.evidence.waits or "weight_bits" in s.evidence.settings
    if not logged and (s.evidence.run is None or s.evidence.run.settings is None):
        return None
    running, waiting = s.column("num_running"), s.column("num_waiting")
    if s.frame is None or running is None or waiting is None:
        return None
    times = s.frame["time_s"].to_numpy(dtype=float)
    busy_s = float(((running + waiting) > 0).mean() * (times[-1] - times[0]))
    seconds = {int(wait.time_s) for wait in memory_waits(s)}
    return Signal(len(seconds) / busy_s) if busy_s else Signal(0.0)


@signal("blocked_stretches", "count", "stretches of such waits, more than ten seconds apart", LOG)
def _stretches(s: Signals) -> Signal | None:
    if s.value("blocked_share") is None:
        return None
    times = sorted(wait.time_s for wait in memory_waits(s))
    return Signal(float(sum(b - a > 10 for a, b in pairwise(times)) + bool(times)))


def _share_of_waits(s: Signals, test: Callable[[Any], bool]) -> Signal | None:
    waits = memory_waits(s)
    if not waits:
        return None if s.value("blocked_share") is None else Signal(0.0)
    hits = [w for w in waits if test(w)]
    first = s.evidence.since_start(hits[0].time_s) if hits else None
    return Signal(len(hits) / len(waits), first)


@signal(
    "waits_without_room", "share", "waits in which free and evictable memory together are too little", LOG
)
def _no_room(s: Signals) -> Signal | None:
    return _share_of_waits(s, lambda w: not set_limit(w) and w.free + w.evictable < w.needed)


@signal("waits_without_a_span", "share", "waits with enough free memory and no span long enough", LOG)
def _no_span(s: Signals) -> Signal | None:
    return _share_of_waits(s, lambda w: w.free >= w.needed > w.largest_free)


@signal("waits_beside_cache", "share", "waits for memory that evicting the cache would give", LOG)
def _beside_cache(s: Signals) -> Signal | None:
    return _share_of_waits(s, lambda w: not set_limit(w) and w.free < w.needed <= w.free + w.evictable)


@signal(
    "waits_with_room", "share", "waits although the pool has room for it: a limit that was set binds", LOG
)
def _with_room(s: Signals) -> Signal | None:
    return _share_of_waits(s, lambda w: w.largest_free + w.evictable * set_limit(w) >= w.needed)


@signal(
    "times_the_usual_waiting",
    "ratio",
    "KV a running sequence holds while others wait, over prompt and output of a usual request",
    f"{PAGES}, and the pool's size in tokens",
)
def _times_usual_waiting(s: Signals) -> Signal | None:
    usage, running, waiting = s.column("kv_usage"), s.column("num_running"), s.column("num_waiting")
    usual, pool = s.usual_tokens, s.pool_tokens
    if usage is None or running is None or waiting is None or usual is None or pool is None:
        return None
    at = (waiting > 0) & (running > 0)
    if not at.any():
        return Signal(0.0)
    return Signal(float(np.median(usage[at] * pool / running[at])) / usual)


@signal(
    "usage_floor",
    "share",
    "the highest KV usage that was never undercut for a minute while somebody ran",
    PAGES,
)
def _floor(s: Signals) -> Signal | None:
    usage, running = s.column("kv_usage"), s.column("num_running")
    if s.frame is None or usage is None or running is None:
        return None
    times = s.frame["time_s"].to_numpy(dtype=float)
    best = Signal(0.0)
    for first in range(len(times)):
        last = int(np.searchsorted(times, times[first] + 60.0))
        if last < len(times) and (running[first : last + 1] > 0).all():
            lowest = float(usage[first : last + 1].min())
            if lowest > best.value:
                best = Signal(lowest, float(times[first]))
    return best
