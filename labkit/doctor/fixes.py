"""What a fix would do to P95 of TTFT and to preemptions.

On a recorded run it is computed: the same requests are served again with the fix (and without the fault, where the fault is
not the lab's). On a scrape only totals are known, so a load with the same rate and mean lengths is served before and after;
that is an estimate and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkit.doctor.evidence import Evidence
from labkit.doctor.recorded import RunSettings
from labkit.doctor.signals import Signals
from labkit.kv import make_kv_cache
from labkit.observe.percentiles import percentiles
from labkit.observe.recorder import RunRecorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.progress import NoProgress
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec

REPLAYED, ESTIMATED = "replayed", "estimated on a fitted load"
#: requests of a fitted load
NUM_FITTED = 300


@dataclass(frozen=True, slots=True)
class Effect:
    """What the fix does to one figure. `how` is "replayed" on a recorded run, "estimated on a fitted load" on a scrape."""

    figure: str
    before: float
    after: float
    how: str


def _paged(s: RunSettings) -> RunSettings:
    return replace(s, kv="paged", kv_options={})


def _pool(factor: float) -> Callable[[RunSettings], RunSettings]:
    return lambda s: replace(s, capacity_tokens=int(factor * s.capacity_tokens))


def _open(s: RunSettings) -> RunSettings:
    options = {k: v for k, v in s.options.items() if k not in ("headroom", "reserve", "predictor")}
    return replace(s, options=options | {"max_num_seqs": 4 * int(options.get("max_num_seqs", 256))})


def _same(s: RunSettings) -> RunSettings:
    """The lab's own server does not have the fault."""
    return s


#: kind -> what its fix changes; kinds that are not here cannot be computed (the device's allocator is not in a run)
FIXES: dict[str, Callable[[RunSettings], RunSettings]] = {
    "contiguous_fragmentation": _paged,
    "capacity_too_small": _pool(1.5),
    "weights_only_quantisation": _pool(2.0),
    "workspace_limited": _pool(1.4),
    "admission_too_conservative": _open,
    "kv_block_leak": _same,
    "idle_sessions_left_behind": _same,
    "late_prefix_release": _same,
    "slow_reclaim": _same,
    "cache_without_eviction_policy": _same,
}
#: kinds in which a share of the pool is lost before the fix
_HELD = ("kv_block_leak", "idle_sessions_left_behind", "late_prefix_release", "slow_reclaim")


def effects_of(kind: str, evidence: Evidence, signals: Signals) -> list[Effect]:
    """P95 of TTFT and preemptions before and after; empty where neither a replay nor an estimate is possible."""
    if kind not in FIXES:
        return []
    if evidence.run is not None and evidence.run.settings is not None:
        table = evidence.run.requests
        before = (
            percentiles(table["first_token_s"] - table["arrival_s"])["p95"],
            float(table["num_preemptions"].sum()),
        )
        after = serve_again(FIXES[kind](evidence.run.settings), _recorded(table))
        return _effects(before, after, REPLAYED)
    settings, requests = _fitted(kind, signals)
    if settings is None:
        return []
    fixed = FIXES[kind](settings)
    if kind in _HELD:
        lost = max(signals.value("rest_usage_first") or 0.0, signals.value("held_by_idle") or 0.0)
        longest = max(r.num_prompt_tokens + r.num_output_tokens for r in requests)
        kept = max(int((1 - lost) * settings.capacity_tokens), 2 * longest)
        settings = replace(settings, capacity_tokens=min(kept, settings.capacity_tokens))
    return _effects(serve_again(settings, requests), serve_again(fixed, requests), ESTIMATED)


def serve_again(settings: RunSettings, requests: list[RequestSpec]) -> tuple[float | None, float]:
    """P95 of TTFT in seconds (None when nobody was served) and preemptions."""
    kv = make_kv_cache(
        settings.kv, capacity_tokens=settings.capacity_tokens, bytes_per_token=settings.bytes_per_token,
        **settings.kv_options,
    )  # fmt: skip
    scheduler = make_scheduler("lab", kv, **settings.options)
    recorder = RunRecorder()
    cost = LinearStepCost(base_ms=settings.base_ms, per_token_ms=settings.per_token_ms)
    try:
        totals = simulate(scheduler, cost, requests, recorder)
    except NoProgress:
        return None, float("inf")
    return percentiles(r.ttft_s for r in recorder.requests.values())["p95"], float(totals.num_preempted)


def _effects(before: tuple[Any, float], after: tuple[Any, float], how: str) -> list[Effect]:
    if before[0] is None or after[0] is None:
        return []
    return [
        Effect("P95 of TTFT (s)", float(before[0]), float(after[0]), how),
        Effect("preemptions", before[1], after[1], how),
    ]


def _recorded(table: Any) -> list[RequestSpec]:
    return [
        RequestSpec(str(r.request_id), float(r.arrival_s), int(r.num_prompt_tokens), max(1, int(r.num_output_tokens)),
                    kind=str(r.kind))
        for r in table.sort_values("arrival_s").itertuples()
    ]  # fmt: skip


def _fitted(kind: str, signals: Signals) -> tuple[RunSettings | None, list[RequestSpec]]:
    """Poisson arrivals at the rate of the busy time, geometric outputs and lognormal prompts with the series' means."""
    pool, done = signals.pool_tokens, signals.total("num_finished")
    prompt, output = signals.total("num_prompt_tokens"), signals.total("num_output_tokens")
    running, times = (
        signals.column("num_running"),
        signals.frame["time_s"].to_numpy() if signals.frame is not None else None,
    )
    itl, count = signals.total("itl_sum"), signals.total("itl_count")
    if not (pool and done and prompt and output) or running is None or times is None:
        return None, []
    busy_s = float((running > 0).mean() * (times[-1] - times[0]))
    gap_s = itl / count if itl and count else 0.03
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(busy_s / done, NUM_FITTED))
    prompts = (
        np.minimum(rng.lognormal(np.log(prompt / done) - 0.5, 1.0, NUM_FITTED), pool / 3).astype(int) + 1
    )
    outputs = np.minimum(rng.geometric(1 / max(1.5, output / done), NUM_FITTED), int(pool / 4))
    requests = [
        RequestSpec(f"f{i}", float(t), int(p), int(o))
        for i, (t, p, o) in enumerate(zip(arrivals, prompts, outputs))
    ]
    limit = int(running.max()) if kind == "admission_too_conservative" else 256
    return RunSettings(
        capacity_tokens=int(pool), bytes_per_token=1,
        kv="reserve-oracle" if kind == "contiguous_fragmentation" else "paged",
        options={"max_num_seqs": max(1, limit)}, base_ms=800 * gap_s, per_token_ms=200 * gap_s * done / (prompt + 1),
    ), requests  # fmt: skip
