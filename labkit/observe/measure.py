"""All metrics of one recorded run: `measure(recorder)` gives a value for each that the run can answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from labkit.memory.base import AllocatorStats, Span
from labkit.observe.block_watch import pooled
from labkit.observe.metrics import Metric
from labkit.observe.percentiles import percentiles
from labkit.observe.recorder import RunRecorder


def measure(
    recorder: RunRecorder,
    *,
    block_bytes: int | None = None,
    max_num_seqs: int | None = None,
    capacity: Mapping[str, int] | None = None,
    allocator: AllocatorStats | None = None,
    layout: list[Span] | None = None,
    restart_s: float | None = None,
) -> dict[Metric, Any]:
    """A scalar, a dict of percentiles or a distribution by metric; what cannot be answered is not there.

    `capacity` gives bytes by kind from a ledger; `allocator` and `layout` the state of a device allocator; `restart_s`
    the instant of a restart inside the run.
    """
    found: dict[Metric, Any] = {}
    found |= _capacity(recorder, block_bytes, capacity or {}, allocator)
    found |= _fragmentation(recorder, block_bytes, allocator, layout)
    found |= _lifetime(recorder)
    found |= _scheduling(recorder, max_num_seqs)
    found |= _user(recorder, allocator, restart_s)
    return found


def _last(recorder: RunRecorder, column: str) -> Any:
    rows = recorder.series.column(column) if recorder.series is not None else []
    return rows[-1] if rows and rows[-1] is not None else None


def _capacity(
    recorder: RunRecorder,
    block_bytes: int | None,
    capacity: Mapping[str, int],
    allocator: AllocatorStats | None,
) -> dict[Metric, Any]:
    found: dict[Metric, Any] = {}
    if "weights" in capacity:
        found[Metric.WEIGHTS] = capacity["weights"]
    if "workspace" in capacity:
        found[Metric.WORKSPACE] = capacity["workspace"] + capacity.get("activations", 0)
    if recorder.series is not None and recorder.series.capacity_bytes:
        found[Metric.KV] = recorder.series.capacity_bytes
        free, cached = _last(recorder, "kv_free_bytes"), _last(recorder, "kv_cached_bytes")
        if block_bytes and free is not None:
            found[Metric.ALLOCATABLE_BLOCKS] = (free + cached) // block_bytes
    if allocator is not None:
        found[Metric.ALLOCATOR_RESERVED] = allocator.reserved_bytes
        found[Metric.ALLOCATOR_ACTIVE] = allocator.active_bytes
    return found


def _fragmentation(
    recorder: RunRecorder,
    block_bytes: int | None,
    allocator: AllocatorStats | None,
    layout: list[Span] | None,
) -> dict[Metric, Any]:
    found: dict[Metric, Any] = {}
    free, largest = _last(recorder, "kv_free_bytes"), _last(recorder, "kv_largest_free_bytes")
    if free is not None:
        found[Metric.LARGEST_RUN] = largest
        if block_bytes:
            found[Metric.FREE_BLOCKS] = free // block_bytes
        found[Metric.WASTE_INSIDE] = _waste(recorder)
    if layout is not None:
        found[Metric.FREE_BY_SIZE] = free_by_size_class(layout)
    failed = recorder.blocks.num_failed if recorder.blocks is not None else None
    if failed is not None or allocator is not None:
        found[Metric.FAILED_ALLOCATIONS] = (failed or 0) + (
            allocator.num_ooms if allocator is not None else 0
        )
    return found


def free_by_size_class(layout: list[Span]) -> dict[int, int]:
    """Free bytes by the power of two below the size of their span: `{4096: 12288}` is three spans of 4 to 8 KiB."""
    classes: dict[int, int] = {}
    for span in layout:
        if span.state == "free":
            size_class = 1 << (span.size.bit_length() - 1)
            classes[size_class] = classes.get(size_class, 0) + span.size
    return dict(sorted(classes.items()))


def _waste(recorder: RunRecorder) -> float | None:
    """Mean over time of the empty share of what requests hold."""
    assert recorder.series is not None
    live = np.array(recorder.series.column("kv_live_bytes"), dtype=float)
    token = np.array(recorder.series.column("kv_token_bytes"), dtype=float)
    lasted = np.array(recorder.series.column("end_s")) - np.array(recorder.series.column("start_s"))
    held = live > 0
    if not lasted[held].sum():
        return None
    return float(((1 - token[held] / live[held]) * lasted[held]).sum() / lasted[held].sum())


def _lifetime(recorder: RunRecorder) -> dict[Metric, Any]:
    found: dict[Metric, Any] = {}
    done = [r for r in recorder.requests.values() if r.finish_s is not None and r.admission_s is not None]
    if done:
        lives = np.array([(r.finish_s or 0.0) - (r.admission_s or 0.0) for r in done])
        found[Metric.MEAN_LIFETIME] = float(lives.mean())
        found[Metric.LONG_SHARE] = float((lives > 10 * np.median(lives)).mean())
    if recorder.blocks is not None:
        watch = recorder.blocks
        if watch.idle_before_evict_s:
            evicted = pooled(watch.evicted_lifetimes_s)
            found[Metric.PREFIX_RESIDENCY] = float(evicted.mean())
        found[Metric.REFERENCE_COUNTS] = watch.reference_counts()
        delays = pooled(watch.reclaim_delays_s)
        if len(delays):
            found[Metric.RECLAIM_DELAY] = float(delays.mean())
    return found


def _scheduling(recorder: RunRecorder, max_num_seqs: int | None) -> dict[Metric, Any]:
    found: dict[Metric, Any] = {}
    if recorder.requests:
        found[Metric.REFUSAL_RATE] = (recorder.num_refused + recorder.num_dropped) / len(recorder.requests)
    found[Metric.PREFILL_WAIT] = percentiles(r.queue_s for r in recorder.requests.values())
    gaps, counts = recorder.gaps.weighted()
    if counts.sum():
        fastest = float(gaps[counts > 0].min())
        found[Metric.DECODE_WAIT] = percentiles(
            max(0.0, r.tpot_s - fastest) * (r.num_output_tokens - 1)
            for r in recorder.requests.values()
            if r.tpot_s is not None
        )
    if recorder.series is not None and recorder.series.rows:
        running = np.array(recorder.series.column("num_running"), dtype=float)
        lasted = np.array(recorder.series.column("end_s")) - np.array(recorder.series.column("start_s"))
        if lasted.sum():
            found[Metric.ACTIVE_SEQUENCES] = float((running * lasted).sum() / lasted.sum())
            if max_num_seqs:
                found[Metric.BATCH_OCCUPANCY] = found[Metric.ACTIVE_SEQUENCES] / max_num_seqs
    return found


def _user(
    recorder: RunRecorder, allocator: AllocatorStats | None, restart_s: float | None
) -> dict[Metric, Any]:
    summary = recorder.summary()
    found: dict[Metric, Any] = {
        Metric.TTFT: summary["ttft_s"],
        Metric.TPOT: summary["tpot_s"],
        Metric.TOKENS_PER_S: summary["output_tokens_per_s"],
        Metric.LATENCY: summary["e2e_s"],
        Metric.OOM_COUNT: recorder.num_dropped + (allocator.num_ooms if allocator is not None else 0),
    }
    if restart_s is not None:
        found[Metric.BEFORE_AFTER_RESTART] = before_and_after(recorder, restart_s)
    return found


def before_and_after(
    recorder: RunRecorder, restart_s: float, window_s: float | None = None
) -> dict[str, float | None]:
    """P95 TTFT of requests that arrived in the last `window_s` before the restart and the first after it (default: a
    quarter of the shorter side), and their ratio."""
    times = [r.arrival_s for r in recorder.requests.values()]
    if window_s is None:
        window_s = min(restart_s - min(times), max(times) - restart_s) / 4 if times else 0.0
    before = percentiles(
        r.ttft_s for r in recorder.requests.values() if restart_s - window_s <= r.arrival_s < restart_s
    )["p95"]
    after = percentiles(
        r.ttft_s for r in recorder.requests.values() if restart_s <= r.arrival_s < restart_s + window_s
    )["p95"]
    return {
        "before": before,
        "after": after,
        "ratio": before / after if before is not None and after else None,
    }
