"""The rules: one row a cause, with what must hold for it. Thresholds are constants of the table; docs/doctor.md explains them.

A row fires when all its checks hold, is excluded when one of them does not, and stays open when a signal is missing. A
cause may have several rows (with and without a log); the first that fires speaks for it. `rank` orders what fired: causes
that are seen directly come before causes that are what remains.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

OPERATORS = {">=": operator.ge, "<": operator.lt, "==": operator.eq}


@dataclass(frozen=True, slots=True)
class Check:
    """`signal operator threshold`."""

    signal: str
    op: str
    threshold: float

    def holds(self, value: float) -> bool:
        """Whether a signal's `value`, in the signal's unit, passes."""
        return bool(OPERATORS[self.op](value, self.threshold))


@dataclass(frozen=True, slots=True)
class Rule:
    """`felt` rules count only when users feel something (waits, refusals, preemptions)."""

    kind: str
    rank: int
    situations: tuple[str, ...]
    cause: str
    checks: tuple[Check, ...]
    next_measurement: str
    fix: str
    felt: bool = True


def _at_least(signal: str, threshold: float) -> Check:
    return Check(signal, ">=", threshold)


def _below(signal: str, threshold: float) -> Check:
    return Check(signal, "<", threshold)


_HEAD = "log why the head of the queue waits: needed, free, evictable, largest free span"

RULES: tuple[Rule, ...] = (
    Rule(
        "never_fits", 0, ("12.1", "scenario 1"),
        "the head of the queue asks for more than the pool will ever have, and nothing refuses it",
        (_at_least("stuck_share", 0.25), _below("rest_usage_first", 0.05)),
        "compare prompt plus maximum output of the waiting request with the pool's size",
        "refuse on arrival what exceeds the pool (can_ever_fit), or lower max_model_len",
    ),
    Rule(
        "never_fits", 0, ("12.1", "scenario 1"),
        "the head of the queue asks for more than the pool will ever have, and nothing refuses it",
        (_at_least("stuck_share", 0.6),),
        "compare prompt plus maximum output of the waiting request with the pool's size",
        "refuse on arrival what exceeds the pool (can_ever_fit), or lower max_model_len",
    ),
    Rule(
        "starts_together", 0, ("12.1", "scenario 18"),
        "two servers start on one card, and each charges the other's memory to itself: nothing is left for keys and values",
        (_below("kv_budget", 1.0),),
        "nvidia-smi's process list at the moment of the start",
        "start them one after the other, or give each an absolute KV size",
        felt=False,
    ),
    Rule(
        "other_process", 1, ("12.1", "scenario 18"),
        "another process holds the memory that is missing",
        (_at_least("other_process_share", 0.2), _at_least("allocator_failures", 1)),
        "nvidia-smi's process list",
        "stop or move the other process",
        felt=False,
    ),
    Rule(
        "idle_sessions_left_behind", 2, ("12.5",),
        "sessions whose client has gone stay open: they count as running, make no token and keep their memory",
        (_at_least("idle_sequences", 0.9), _at_least("held_by_idle", 0.02)),
        "list open sequences with the time of their last token",
        "cancel a sequence when its client disconnects, and after a time without a token",
        felt=False,
    ),
    Rule(
        "kv_block_leak", 3, ("12.5", "scenario 15", "scenario 16"),
        "blocks that nobody owns any more are never given back",
        (_at_least("rest_usage", 0.02), _at_least("rest_growth", 0.015), _below("rest_drop", 0.02), _below("idle_sequences", 0.9)),
        "the invariant free + evictable + pinned = total, and who took the pinned blocks",
        "find the path that ends a request without freeing (abort, error, preemption); until then restart before the pool is used up",
        felt=False,
    ),
    Rule(
        "late_prefix_release", 4, ("12.1", "12.5"),
        "references to shared prefixes are dropped minutes after the requests that needed them ended",
        (_at_least("rest_usage_first", 0.03), _at_least("rest_hold_s", 45), _at_least("hit_ratio", 0.005), _at_least("rest_drop", 0.02),
         _below("idle_sequences", 0.9)),
        "reference counts of prefix blocks at rest",
        "drop the reference when the request ends and let eviction decide; shorten the lease",
        felt=False,
    ),
    Rule(
        "slow_reclaim", 5, ("12.2", "12.5"),
        "blocks come back seconds after their request has ended: reclaim is slower than allocation",
        (_at_least("rest_usage_first", 0.008), _below("rest_hold_s", 45), _at_least("rest_cleared", 0.8), _below("idle_sequences", 0.9)),
        "the delay between the end of a request and the return of its blocks",
        "free in the step that ends the request; wait for transfers elsewhere; keep headroom for rate x delay",
        felt=False,
    ),
    Rule(
        "pool_held_by_long_requests", 6, ("12.1",),
        "a few very long requests hold most of the pool for minutes",
        (_at_least("times_the_usual", 2.0), _at_least("held_by_few", 0.3)),
        "tokens and age of each running request",
        "give long requests a pool or a limit of their own (pressure 'pools', max_long), or send them to another server",
    ),
    Rule(
        "pool_held_by_long_requests", 6, ("12.1",),
        "a few very long requests hold most of the pool for minutes",
        (_at_least("times_the_usual_waiting", 1.9), _at_least("usage_when_waiting", 0.7), _at_least("usage_floor", 0.5), _below("rest_usage_first", 0.03),
         _below("idle_sequences", 0.9)),
        "tokens and age of each running request",
        "give long requests a pool or a limit of their own (pressure 'pools', max_long), or send them to another server",
    ),
    Rule(
        "contiguous_fragmentation", 7, ("12.1", "12.2", "12.5"),
        "enough memory is free, and no span of it is long enough",
        (_at_least("waits_without_a_span", 0.3), _at_least("blocked_share", 0.02)),
        "the distribution of free memory by size of span",
        "allocate in blocks (paged KV), or compact",
    ),
    Rule(
        "cache_without_eviction_policy", 8, ("12.2", "12.4"),
        "the prefix cache keeps what it has while requests wait for memory: nothing is evicted",
        (_at_least("waits_beside_cache", 0.3), _at_least("hit_ratio", 0.005), _at_least("blocked_share", 0.02)),
        "evictions a second beside waiting requests",
        "let admission evict idle cached blocks (LRU), or give the cache a limit",
    ),
    Rule(
        "cache_without_eviction_policy", 8, ("12.2", "12.4"),
        "the prefix cache keeps what it has while requests wait for memory: nothing is evicted",
        (_at_least("cached_share", 0.15), _below("evicted_tokens", 1), _at_least("hit_ratio", 0.005),
         _below("waits_without_room", 0.5), _below("waits_with_room", 0.5)),
        _HEAD,
        "let admission evict idle cached blocks (LRU), or give the cache a limit",
    ),
    Rule(
        "reserved_high_active_low", 9, ("12.1", "12.2", "12.5", "scenario 14"),
        "the device allocator keeps far more reserved than it uses, and allocations fail or stall for it",
        (_at_least("idle_reserved_share", 0.05), _at_least("idle_reserved_growth", 0.04), _at_least("allocator_failures", 3)),
        "a memory snapshot at a failure: labkit snapshot FILE.pickle",
        "expandable segments, fewer distinct sizes, or torch.cuda.empty_cache at a quiet moment",
        felt=False,
    ),
    Rule(
        "workspace_limited", 10, ("12.3",),
        "activations, graphs and workspace take the memory that the KV pool lacks",
        (_at_least("workspace_share", 0.26), _at_least("kv_bound", 1)),
        "the activation peak against max_num_batched_tokens, and the size of the graphs",
        "lower max_num_batched_tokens or capture fewer graph sizes, and give the KV pool what that frees",
    ),
    Rule(
        "weights_only_quantisation", 11, ("12.3",),
        "weights are quantised, keys and values are not, and it is the KV pool that is full",
        (_below("weight_bits", 16), _at_least("kv_bits", 16), _at_least("kv_bound", 1)),
        "KV bytes a token, and what the saved weights were spent on",
        "8-bit keys and values, and give the KV pool the memory that the weights saved",
    ),
    Rule(
        "admission_too_conservative", 12, ("12.1", "12.3"),
        "requests wait although memory is free: a limit of the scheduler binds",
        (_at_least("waits_with_room", 0.5), _at_least("blocked_share", 0.02)),
        "which limit binds: max_num_seqs, reserved outputs, headroom, token budget",
        "raise that limit until preemptions appear, then step back",
    ),
    Rule(
        "admission_too_conservative", 12, ("12.1", "12.3"),
        "requests wait although memory is free: a limit of the scheduler binds",
        (_at_least("wait_share", 0.15), _at_least("queued_share", 0.03), _below("usage_when_waiting", 0.6), _below("preemption_rate", 0.01), _below("hit_ratio", 0.005),
         _below("rest_usage_first", 0.03), _below("waits_without_room", 0.3), _below("waits_without_a_span", 0.3)),
        _HEAD,
        "raise that limit until preemptions appear, then step back",
    ),
    Rule(
        "capacity_too_small", 13, ("12.1",),
        "ordinary requests fill the pool: there is too little memory for this load",
        (_at_least("kv_bound", 1),),
        "the load that the pool carries: labkit plan, or a replay with a larger pool",
        "a larger pool (more memory, tensor parallelism, 8-bit keys and values), or less load",
    ),
    Rule(
        "hit_rate_counts_lookups", 14, ("12.4", "scenario 5"),
        "the hit rate counts every look-up of a waiting request, not admissions: it says nothing",
        (_at_least("lookups_per_prompt_token", 1.5),),
        "hits counted once, at admission",
        "divide cached prompt tokens by prompt tokens",
        felt=False,
    ),
)  # fmt: skip
