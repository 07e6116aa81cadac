"""Numbers that rules look at, each computed once from the evidence; a signal that the evidence cannot give is None.

A *rest* is a stretch of at least three readings in which nothing waits, no prompt token comes in, and either nobody runs or nothing ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from labkit.doctor.evidence import Evidence

#: less than this share of the pool at rest is nothing (a null block, rounding)
LEAST_HELD = 0.008
#: a wait of the queue longer than this is felt
FELT_S = 1.0


@dataclass(frozen=True, slots=True)
class Signal:
    """`value` in `unit`, seen at `time_s` on the series' clock (None: over the whole time)."""

    value: float
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class SignalInfo:
    unit: str
    says: str
    needs: str
    compute: Callable[[Signals], Signal | None]


@dataclass(frozen=True)
class Rest:
    """Rows `first..last` of the series; seconds, share of the pool, sequences."""

    start_s: float
    end_s: float
    usage_first: float
    usage_last: float
    running: float
    decoding: float | None
    since_last_end_s: float


SIGNALS: dict[str, SignalInfo] = {}


def signal(name: str, unit: str, says: str, needs: str) -> Callable[[Any], Any]:
    """Put a function into the table under `name`."""

    def register(compute: Callable[[Signals], Signal | None]) -> Callable[[Signals], Signal | None]:
        SIGNALS[name] = SignalInfo(unit, says, needs, compute)
        return compute

    return register


class Signals:
    """Signals of one body of evidence by name, computed when asked."""

    def __init__(self, evidence: Evidence):
        self.evidence = evidence
        frame = evidence.series
        self.frame = frame if frame is not None and len(frame) >= 2 else None
        self._known: dict[str, Signal | None] = {}
        self.rests = self._find_rests()

    def __getitem__(self, name: str) -> Signal | None:
        if name not in self._known:
            self._known[name] = SIGNALS[name].compute(self)
        return self._known[name]

    def value(self, name: str) -> float | None:
        found = self[name]
        return None if found is None else found.value

    def column(self, name: str) -> np.ndarray | None:
        """A column of the series, gaps filled with what came before; None where no page has it."""
        if self.frame is None or name not in self.frame.columns:
            return None
        values = self.frame[name].ffill().fillna(0.0).to_numpy(dtype=float)
        return values

    def total(self, name: str) -> float | None:
        """What a counter grew by."""
        values = self.column(name)
        return None if values is None else float(values[-1] - values[0])

    def _find_rests(self) -> list[Rest]:
        names = ("num_prompt_tokens", "num_finished", "num_waiting", "kv_usage", "num_running")
        columns = [column for name in names if (column := self.column(name)) is not None]
        if self.frame is None or len(columns) < len(names):
            return []
        prompt, done, waiting, usage, running = columns
        times, itl = self.frame["time_s"].to_numpy(dtype=float), self.column("itl_sum")
        alone = (running[1:] == 0) | (np.diff(done) == 0)
        still = np.concatenate([[False], (np.diff(prompt) == 0) & alone]) & (waiting == 0)
        restarts = self.frame["restarts"].to_numpy()
        rests, first = [], None
        for i in range(len(times) + 1):
            on = i < len(times) and bool(still[i])
            if on and first is not None:
                on = restarts[i] == restarts[first] and (running[i] == 0) == (running[first] == 0)
            if on and first is None and done[i] > done[0]:
                first = i
            elif not on and first is not None:
                last = i - 1
                if last - first >= 2:
                    lasted = times[last] - times[first]
                    decoding = None if itl is None or not lasted else float((itl[last] - itl[first]) / lasted)
                    rests.append(
                        Rest(times[first], times[last], usage[first], usage[last], running[last], decoding,
                             times[first] - times[max(0, first - 1)])
                    )  # fmt: skip
                first = i if i < len(times) and bool(still[i]) and done[i] > done[0] else None
        return rests

    @property
    def pool_tokens(self) -> float | None:
        """The pool's size: from SGLang's pages, a recorded run, or the line that a server prints at start."""
        run, total = self.evidence.run, self.column("kv_total_tokens")
        if run is not None:
            return None if run.settings is None else float(run.settings.capacity_tokens)
        return float(total[-1]) if total is not None else self.evidence.settings.get("kv_tokens")

    @property
    def usual_tokens(self) -> float | None:
        """Prompt and output of a finished request, on the mean."""
        prompt, output = self.total("num_prompt_tokens"), self.total("num_output_tokens")
        done = self.total("num_finished")
        return None if prompt is None or output is None or not done else (prompt + output) / done

    @property
    def held_by_nobody(self) -> float:
        """The most that is in use at the start of a rest with nobody running: not the sequences' that run in other rests."""
        return max((rest.usage_first for rest in self.empty_rests), default=0.0)

    @property
    def empty_rests(self) -> list[Rest]:
        """Rests with nobody running."""
        return [rest for rest in self.rests if rest.running == 0]


def felt(signals: Signals) -> bool | None:
    """Do users feel anything? None when nothing says so or otherwise."""
    limits = {
        "queued_share": 0.025, "refusal_share": 0.01, "preemption_rate": 0.02, "wait_share": 0.06,
        "blocked_share": 0.03,
    }  # fmt: skip
    known = {name: signals.value(name) for name in limits}
    if all(value is None for value in known.values()):
        return True if signals.evidence.ooms else None
    return any(value is not None and value >= limits[name] for name, value in known.items())


# --- what users feel ------------------------------------------------------------------------------------------------

_PAGES = "a series of /metrics pages (two or more)"
_LOG = "log lines that say why the head of the queue waits"


@signal("queued_share", "share", f"requests that queued longer than {FELT_S:g} s", _PAGES)
def _queued(s: Signals) -> Signal | None:
    within, count = s.total("queue_le_1_count"), s.total("queue_count")
    return None if within is None or not count else Signal(1 - within / count)


@signal("refusal_share", "share", "requests refused or aborted", _PAGES)
def _refusals(s: Signals) -> Signal | None:
    refused, done = s.total("num_rejected"), s.total("num_finished")
    return (
        None if refused is None or done is None or not refused + done else Signal(refused / (refused + done))
    )


@signal("preemption_rate", "per request", "preemptions for each finished request", _PAGES)
def _preemptions(s: Signals) -> Signal | None:
    number, done = s.total("num_preemptions"), s.total("num_finished")
    return None if number is None or not done else Signal(number / done)


@signal("wait_share", "share", "busy readings in which requests kept waiting", _PAGES)
def _waits(s: Signals) -> Signal | None:
    waiting, running = s.column("num_waiting"), s.column("num_running")
    if waiting is None or running is None:
        return None
    busy = (waiting + running) > 0
    kept = (waiting >= 2) | ((waiting >= 1) & (np.concatenate([[0], waiting[:-1]]) >= 1))
    return Signal(float(kept[busy].mean())) if busy.any() else Signal(0.0)


@signal("usage_when_waiting", "share", "median KV usage while requests wait", _PAGES)
def _usage_when_waiting(s: Signals) -> Signal | None:
    waiting, usage = s.column("num_waiting"), s.column("kv_usage")
    if waiting is None or usage is None or not (waiting >= 1).any():
        return None
    assert s.frame is not None
    at = np.flatnonzero(waiting >= 1)
    return Signal(float(np.median(usage[at])), float(s.frame["time_s"].iloc[at[len(at) // 2]]))


@signal("stuck_share", "share", "readings with requests waiting, nobody running and an empty pool", _PAGES)
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
    _LOG,
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


@signal("blocked_stretches", "count", "stretches of such waits, more than ten seconds apart", _LOG)
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
    "waits_without_room", "share", "waits in which free and evictable memory together are too little", _LOG
)
def _no_room(s: Signals) -> Signal | None:
    return _share_of_waits(s, lambda w: not set_limit(w) and w.free + w.evictable < w.needed)


@signal("waits_without_a_span", "share", "waits with enough free memory and no span long enough", _LOG)
def _no_span(s: Signals) -> Signal | None:
    return _share_of_waits(s, lambda w: w.free >= w.needed > w.largest_free)


@signal("waits_beside_cache", "share", "waits for memory that evicting the cache would give", _LOG)
def _beside_cache(s: Signals) -> Signal | None:
    return _share_of_waits(s, lambda w: not set_limit(w) and w.free < w.needed <= w.free + w.evictable)


@signal(
    "waits_with_room", "share", "waits although the pool has room for it: a limit that was set binds", _LOG
)
def _with_room(s: Signals) -> Signal | None:
    return _share_of_waits(s, lambda w: w.largest_free + w.evictable * set_limit(w) >= w.needed)


# --- what is held at rest -------------------------------------------------------------------------------------------

_REST = "a series of /metrics pages with a quiet stretch (no arrivals for half a minute)"


@signal("rest_usage", "share", "KV usage at the end of the last rest with nobody running", _REST)
def _rest_usage(s: Signals) -> Signal | None:
    rests = s.empty_rests
    return Signal(rests[-1].usage_last, rests[-1].end_s) if rests else None


@signal("rest_growth", "share", "KV usage at rest: the end of the last rest less the end of the first", _REST)
def _rest_growth(s: Signals) -> Signal | None:
    rests = [r for r in s.empty_rests if r.end_s - r.start_s >= 12]
    if len(rests) < 2:
        return None
    return Signal(rests[-1].usage_last - rests[0].usage_last, rests[-1].end_s)


@signal("rest_drop", "share", "the most that KV usage fell inside a rest with nobody running", _REST)
def _rest_drop(s: Signals) -> Signal | None:
    rests = s.empty_rests
    if not rests:
        return None
    best = max(rests, key=lambda r: r.usage_first - r.usage_last)
    return Signal(best.usage_first - best.usage_last, best.start_s)


@signal(
    "rest_hold_s",
    "s",
    "how long after the last end more than a tenth of what was held then is still held",
    _REST,
)
def _rest_hold(s: Signals) -> Signal | None:
    """Over rests with nobody running that start with something held; the longest."""
    if s.frame is None or not s.empty_rests:
        return None
    times, usage = s.frame["time_s"].to_numpy(dtype=float), s.column("kv_usage")
    assert usage is not None
    longest, at = 0.0, None
    for rest in s.empty_rests:
        if rest.usage_first < LEAST_HELD:
            continue
        inside = (times >= rest.start_s) & (times <= rest.end_s)
        held = times[inside][usage[inside] > 0.1 * rest.usage_first]
        lasted = float(held[-1] - rest.start_s) if len(held) else 0.0
        if lasted >= longest:
            longest, at = lasted, rest.start_s
    return Signal(longest, at)


@signal(
    "rest_usage_first", "share", "the most KV usage at the first reading of a rest with nobody running", _REST
)
def _rest_first(s: Signals) -> Signal | None:
    rests = s.empty_rests
    if not rests:
        return None
    best = max(rests, key=lambda r: r.usage_first)
    return Signal(best.usage_first, best.start_s)


@signal(
    "rest_cleared",
    "share",
    "of what is held at the first reading of a rest, how much is gone at its end (smallest over rests)",
    _REST,
)
def _rest_cleared(s: Signals) -> Signal | None:
    rests = [r for r in s.empty_rests if r.usage_first >= LEAST_HELD]
    if not rests:
        return None
    worst = min(rests, key=lambda r: 1 - r.usage_last / r.usage_first)
    return Signal(1 - worst.usage_last / worst.usage_first, worst.end_s)


@signal("idle_sequences", "count", "sequences counted as running at rest that make no token", _REST)
def _idle(s: Signals) -> Signal | None:
    known = [r for r in s.rests if r.decoding is not None]
    if not known:
        return None
    best = max(known, key=lambda r: r.running - (r.decoding or 0.0))
    return Signal(max(0.0, best.running - (best.decoding or 0.0)), best.end_s)


@signal("decoding_at_rest", "count", "sequences that go on decoding while nothing arrives or ends", _REST)
def _decoding(s: Signals) -> Signal | None:
    known = [r for r in s.rests if r.decoding is not None]
    if not known:
        return None
    best = max(known, key=lambda r: r.decoding or 0.0)
    return Signal(best.decoding or 0.0, best.end_s)


@signal("held_by_idle", "share", "KV usage in the rest with the most idle sequences", _REST)
def _held_by_idle(s: Signals) -> Signal | None:
    known = [r for r in s.rests if r.decoding is not None]
    if not known:
        return None
    best = max(known, key=lambda r: r.running - (r.decoding or 0.0))
    return Signal(best.usage_last, best.end_s)


@signal("held_by_few", "share", "KV usage in a rest of sequences that decode", _REST)
def _held_by_few(s: Signals) -> Signal | None:
    known = [r for r in s.rests if r.decoding is not None and r.running and r.decoding >= 0.6 * r.running]
    if not known:
        return Signal(0.0) if s.rests else None
    best = max(known, key=lambda r: r.usage_last)
    return Signal(best.usage_last, best.end_s)


@signal(
    "times_the_usual",
    "ratio",
    "KV a sequence holds in that rest, over prompt and output of a usual request",
    f"{_REST}, and the pool's size in tokens",
)
def _times_usual(s: Signals) -> Signal | None:
    known = [r for r in s.rests if r.decoding is not None and r.running and r.decoding >= 0.6 * r.running]
    usual, pool = s.usual_tokens, s.pool_tokens
    if not s.rests or usual is None or pool is None:
        return None
    if not known:
        return Signal(0.0)
    best = max(known, key=lambda r: r.usage_last)
    held = max(0.0, best.usage_last - s.held_by_nobody)
    return Signal(held * pool / best.running / usual, best.end_s)


# --- the prefix cache -----------------------------------------------------------------------------------------------


@signal(
    "times_the_usual_waiting",
    "ratio",
    "KV a running sequence holds while others wait, over prompt and output of a usual request",
    f"{_PAGES}, and the pool's size in tokens",
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
    _PAGES,
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


@signal("hit_ratio", "share", "prompt tokens found in the prefix cache, of those looked up", _PAGES)
def _hit_ratio(s: Signals) -> Signal | None:
    hits = s.total("num_prefix_hits")
    queries = s.total("num_prefix_queries")
    if queries is None:
        queries = s.total("num_prompt_tokens")
    return None if hits is None or not queries else Signal(hits / queries)


@signal(
    "lookups_per_prompt_token", "ratio", "tokens looked up for each prompt token computed or found", _PAGES
)
def _lookups(s: Signals) -> Signal | None:
    queries, prompt = s.total("num_prefix_queries"), s.total("num_prompt_tokens")
    return None if queries is None or not prompt else Signal(queries / prompt)


@signal(
    "cached_share",
    "share",
    "the pool's share that is cached and evictable, at its highest",
    "SGLang's kv_evictable_tokens, or a recorded run",
)
def _cached(s: Signals) -> Signal | None:
    cached, total = s.column("kv_cached_tokens"), s.column("kv_total_tokens")
    if cached is None or total is None or not total[-1]:
        return None
    assert s.frame is not None
    at = int(np.argmax(cached))
    return Signal(float(cached[at] / total[at]) if total[at] else 0.0, float(s.frame["time_s"].iloc[at]))


@signal("evicted_tokens", "tokens", "tokens that the cache gave up", "SGLang's evicted_tokens_total")
def _evicted(s: Signals) -> Signal | None:
    gone = s.total("num_evicted_tokens")
    return None if gone is None else Signal(gone)


# --- the device's allocator -----------------------------------------------------------------------------------------

_STATS = "torch.cuda.memory_stats"


def _cards(s: Signals) -> float | None:
    cards = s.evidence.cards
    return cards[-1].total_bytes if cards else None


@signal(
    "idle_reserved_share", "share", "reserved and not active, of the card (or of what is reserved)", _STATS
)
def _idle_reserved(s: Signals) -> Signal | None:
    memory = s.evidence.memory
    if memory is None or not len(memory) or "active" not in memory.columns:
        return None
    quiet = memory["reserved"] - memory["active"]
    whole = _cards(s) or float(memory["reserved"].max()) or 1.0
    return Signal(float(quiet.iloc[-1] / whole), _memory_time(s, len(memory) - 1))


@signal(
    "idle_reserved_growth",
    "share",
    "how much of the card it grew by over the readings",
    f"two readings of {_STATS}",
)
def _idle_growth(s: Signals) -> Signal | None:
    memory = s.evidence.memory
    if memory is None or len(memory) < 2 or "active" not in memory.columns:
        return None
    quiet = (memory["reserved"] - memory["active"]).to_numpy(dtype=float)
    whole = _cards(s) or float(memory["reserved"].max()) or 1.0
    return Signal(float((quiet[-1] - quiet[0]) / whole), _memory_time(s, len(memory) - 1))


@signal(
    "allocator_failures", "count", "allocation retries and out-of-memory errors over the readings", _STATS
)
def _failures(s: Signals) -> Signal | None:
    memory = s.evidence.memory
    ooms = len(s.evidence.ooms)
    if memory is None or not len(memory):
        return Signal(float(ooms)) if ooms else None
    number = 0.0
    for name in ("num_retries", "num_ooms"):
        if name in memory.columns:
            number += float(memory[name].iloc[-1] - (memory[name].iloc[0] if len(memory) > 1 else 0))
    return Signal(max(number, float(ooms)), _memory_time(s, len(memory) - 1))


def _memory_time(s: Signals, row: int) -> float | None:
    memory = s.evidence.memory
    return s.evidence.since_start(float(memory["time_s"].iloc[row])) if "time_s" in memory.columns else None


# --- the ledger -----------------------------------------------------------------------------------------------------

_START = "the lines a server prints when it starts (weights, KV, activation peak, graphs, dtypes)"


@signal("weight_bits", "bits", "bits of a weight", _START)
def _weight_bits(s: Signals) -> Signal | None:
    bits = s.evidence.settings.get("weight_bits")
    return None if bits is None else Signal(bits)


@signal("kv_bits", "bits", "bits of a key or value", _START)
def _kv_bits(s: Signals) -> Signal | None:
    bits = s.evidence.settings.get("kv_bits")
    return None if bits is None else Signal(bits)


@signal("workspace_share", "share", "activation peak and graphs, of weights, KV and these", _START)
def _workspace(s: Signals) -> Signal | None:
    said = s.evidence.settings
    if not {"weights_bytes", "kv_bytes", "activation_bytes"} <= set(said):
        return None
    workspace = said["activation_bytes"] + said.get("graph_bytes", 0.0)
    whole = said["weights_bytes"] + max(0.0, said["kv_bytes"]) + workspace
    return Signal(workspace / whole) if whole else None


@signal("kv_budget", "bytes", "what was left for keys and values at start", _START)
def _kv_budget(s: Signals) -> Signal | None:
    kv = s.evidence.settings.get("kv_bytes")
    return None if kv is None else Signal(kv)


@signal(
    "other_process_share",
    "share",
    "of the card, held by processes that are not this server",
    "nvidia-smi with its process list, or an out-of-memory message",
)
def _others(s: Signals) -> Signal | None:
    for verdict in s.evidence.ooms:
        return Signal(verdict.numbers["others"] / verdict.numbers["total"])
    shares = [sum(sorted(c.process_bytes)[:-1]) / c.total_bytes for c in s.evidence.cards if c.process_bytes]
    return Signal(max(shares)) if shares else None


@signal(
    "kv_bound",
    "yes = 1",
    "again and again requests wait or are preempted because the pool is full",
    f"{_PAGES}, better with {_LOG}",
)
def _kv_bound(s: Signals) -> Signal | None:
    """With a log: most waits are for memory that is not there, and they come back or last. Without: the pool is full
    while requests wait, in more than one reading in twelve, or preemptions are common."""
    blocked, preempted = s["blocked_share"], s.value("preemption_rate") or 0.0
    if blocked is not None:
        without = s["waits_without_room"]
        assert without is not None
        lasting = blocked.value >= 0.05 or (s.value("blocked_stretches") or 0) >= 2
        return Signal(float(without.value >= 0.4 and lasting), without.time_s)
    usage, waits = s["usage_when_waiting"], s.value("wait_share")
    if waits is None:
        return None
    if usage is None:
        return Signal(0.0)
    return Signal(float(usage.value >= 0.8 and (waits >= 0.08 or preempted >= 0.05)), usage.time_s)
