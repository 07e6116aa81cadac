"""The prefix cache, the device's allocator, the ledger that a server prints at start, and whether the pool is what binds."""

from __future__ import annotations

import numpy as np

from labkit.doctor.signals.core import LOG, PAGES, Signal, Signals, signal

# --- the prefix cache ----------------------------------------------------------------------------------------------------


@signal("hit_ratio", "share", "prompt tokens found in the prefix cache, of those looked up", PAGES)
def _hit_ratio(s: Signals) -> Signal | None:
    hits = s.total("num_prefix_hits")
    queries = s.total("num_prefix_queries")
    if queries is None:
        queries = s.total("num_prompt_tokens")
    return None if hits is None or not queries else Signal(hits / queries)


@signal(
    "lookups_per_prompt_token", "ratio", "tokens looked up for each prompt token computed or found", PAGES
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
    f"{PAGES}, better with {LOG}",
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
