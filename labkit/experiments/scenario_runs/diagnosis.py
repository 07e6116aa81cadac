"""Three scenarios of telling faults apart: one number with three causes, bugs against a law, slopes after drain."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from labkit.doctor.oom import explain_oom
from labkit.doctor.oom_message import render_oom
from labkit.experiments.scenarios import SCENARIOS
from labkit.kv.mutants import run_mutants
from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix_hash import HashPrefixCache
from labkit.memory import make_allocator
from labkit.units import GIB, MIB


@SCENARIOS.register("unallocated-triage")
def unallocated_triage(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The same "reserved but unallocated" in three messages; tried, free and private pools say what it means."""
    verdicts = {}
    for name, printed in inputs["dumps"].items():
        verdict = explain_oom(render_oom({**inputs["common"], **printed}, "2.2"))
        verdicts[name] = {"verdict": verdict.kind, "unallocated_gib": verdict.numbers["unallocated"] / GIB}
    kinds = [row["verdict"] for row in verdicts.values()]
    return {**verdicts, "num_verdicts": len(set(kinds))}


@SCENARIOS.register("reference-count-mutants")
def reference_count_mutants(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Six planted bugs and one cache that only fills up, under the law free + evictable + pinned = total."""
    *bugs, fill = run_mutants(seed, inputs["num_operations"])
    return {
        "num_bugs": len(bugs),
        "num_caught": sum(report.caught for report in bugs),
        "num_laws": sum(bool(report.law) for report in bugs),
        "false_leak": {
            "acquitted": not fill.caught,
            "num_pinned": fill.num_pinned,
            "free_list_is_short": fill.num_free < fill.num_blocks,
            "sums_up": fill.num_free + fill.num_evictable == fill.num_blocks,
        },
    }


@SCENARIOS.register("soak-three-slopes")
def soak_three_slopes(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Rounds of requests, each followed by a drain. Read after every drain: live KV blocks, cached KV blocks, and device bytes
    that the allocator has reserved outside of the pool."""
    figures: dict[str, Any] = {}
    for fault in ("undrained_list", "cache_fill", "leak"):
        live, cached, reserved = _rounds(inputs, seed, fault)
        slopes = {
            "live": _slope(live), "cached": _slope(cached), "reserved_mib": _slope(reserved),
        }  # fmt: skip
        figures[fault] = {
            "slopes": slopes,
            "verdict": verdict_of(slopes),
            "rounds_to_exhaustion": (inputs["num_blocks"] - live[-1]) / slopes["live"] if slopes["live"] > 1e-9 else None,
        }  # fmt: skip
    return figures


def verdict_of(slopes: Mapping[str, float]) -> str:
    """What grows after drain names the fault; a cache that grows alone is none."""
    if slopes["live"] > 1e-9:
        return "leak of blocks"
    if slopes["reserved_mib"] > 1e-9:
        return "list that is never drained"
    return "cache fills up: harmless" if slopes["cached"] > 1e-9 else "steady"


def _rounds(inputs: Mapping[str, Any], seed: int, fault: str) -> tuple[list[int], list[int], list[float]]:
    rng, size = Random(seed), inputs["block_size"]
    prefix = HashPrefixCache(size) if fault == "cache_fill" else None
    kv = PagedKVCache(inputs["num_blocks"], 1, block_size=size, prefix=prefix)
    device, kept = make_allocator("caching", 8 * GIB), []
    live, cached, reserved = [], [], []
    per_round = inputs["num_requests"] // inputs["num_rounds"]
    for number in range(inputs["num_requests"]):
        tokens = rng.randint(4 * size, 10 * size)
        name = f"r{number}"
        ids = [rng.randrange(1 << 30) for _ in range(tokens)] if prefix is not None else None
        if not kv.admit(name, tokens, max_tokens=tokens, token_ids=ids).admitted:
            raise AssertionError("the pool of this scenario is large enough for one request at a time")
        result = device.malloc(MIB)
        if not (fault == "leak" and number % inputs["leaks_every"] == 0):
            kv.free(name)
        if fault == "undrained_list" and number % inputs["leaks_every"] == 0:
            kept.append(result)
        else:
            device.free(result)
        if (number + 1) % per_round == 0:
            stats = kv.stats()
            live.append(stats.reserved_bytes // size)
            cached.append(stats.cached_bytes // size)
            reserved.append(device.stats().reserved_bytes / MIB)
    return live, cached, reserved


def _slope(values: list[int] | list[float]) -> float:
    """Least squares, a round as the unit."""
    return float(np.polyfit(np.arange(len(values)), np.asarray(values, dtype=float), 1)[0])
