"""Claim 11.6: nvidia-smi shows the same 95 % for four different root causes; the metrics tell them apart.

weights     the model is too large for the card: little is left for keys and values
traffic     more requests than the card can serve: they wait, and what is live belongs to requests that run
sessions    the pool is full of blocks that nobody runs on (idle sessions, a leak)
allocator   the allocator keeps what a few large temporaries once needed
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.experiments.soak_faults import LongSessions
from labkit.experiments.watching import (
    DEVICE_BYTES,
    OTHER_BYTES,
    WORKSPACE_BYTES_PER_TOKEN,
    Device,
    WatchedRun,
    device_with,
    watch,
)
from labkit.models import get_model
from labkit.observe.metrics import Metric
from labkit.units import GIB
from labkit.workload.base import RequestSpec

CAUSES = ("weights", "traffic", "sessions", "allocator")
READING = 0.95


@dataclass(frozen=True)
class Reading:
    """What one server shows in its busiest tenth. Shares; NaN is "not measured".

    explained  of the live KV, what the active sequences account for: active sequences x mean tokens of a request
    """

    nvidia_smi: float
    weights_share: float
    cached_by_allocator: float
    pool_usage: float
    explained: float
    active_sequences: float
    num_waiting: float
    ttft_p95_s: float

    def cause(self) -> str:
        """The verdict; thresholds are far from all five cases of the notebook."""
        if self.weights_share > 0.7:
            return "weights"
        if self.cached_by_allocator > 0.2:
            return "allocator"
        if self.pool_usage > 0.9 and self.explained < 0.5:
            return "sessions"
        if self.num_waiting > 0.5 * self.active_sequences and self.explained > 0.7:
            return "traffic"
        return "none of these"

    def only_nvidia_smi(self) -> Reading:
        """The control: the same server for somebody who looks at nothing else."""
        nothing = {f.name: float("nan") for f in dataclasses.fields(self) if f.name != "nvidia_smi"}
        return dataclasses.replace(self, **nothing)


def told_apart(readings: dict[str, Reading]) -> bool:
    """Every cause is named: the predicate of claim 11.6."""
    return all(reading.cause() == name for name, reading in readings.items() if name in CAUSES)


def one_reading_four_causes(
    requests: Sequence[RequestSpec], rng: np.random.Generator
) -> dict[str, tuple[Reading, WatchedRun]]:
    """The four causes, and a healthy server, all at 95 % in nvidia-smi. The load is the same but for "traffic", where it comes
    eight times as fast."""
    small, large = get_model("Llama-3.1-8B"), get_model("Llama-3.1-70B")
    kv_small, kv_large = small.kv_bytes_per_token(), large.kv_bytes_per_token()
    peak = 2048 * WORKSPACE_BYTES_PER_TOKEN  # the workspace of a full step
    light = list(requests)
    rush = [dataclasses.replace(r, arrival_s=r.arrival_s / 8) for r in requests]

    def filled(weights: int, spare: int = 0) -> Device:
        """The pool takes what is left up to 95 %, less `spare`."""
        pool = int(READING * DEVICE_BYTES) - OTHER_BYTES - weights - peak - spare
        return device_with(weights, pool // (1 << 21) * (1 << 21))

    in_8_bits = large.weight_bytes() // 2
    cached = filled(small.weight_bytes(), spare=24 * GIB)
    cached.spike(24 * GIB)
    sessions = LongSessions(num=93, parts=100, every=4, spread=0.1, seed=int(rng.integers(1 << 30)))
    runs = {
        "weights": watch(rush, filled(in_8_bits), bytes_per_token=kv_large, max_num_seqs=512),
        "traffic": watch(rush, filled(small.weight_bytes()), bytes_per_token=kv_small, max_num_seqs=1024),
        "sessions": watch(
            light, filled(small.weight_bytes()), bytes_per_token=kv_small, max_num_seqs=512, fault=sessions
        ),
        "allocator": watch(light, cached, bytes_per_token=kv_small, max_num_seqs=512),
        "healthy": watch(light, filled(small.weight_bytes()), bytes_per_token=kv_small, max_num_seqs=512),
    }
    return {name: (reading_of(run), run) for name, run in runs.items()}


def reading_of(run: WatchedRun) -> Reading:
    """The figures of the busiest tenth of a run: the recorded instants with the most requests in the server, running or waiting.
    (Those with the most live KV are no help: a full pool stays full while its queue empties.)"""
    frame = run.recorder.series_frame()
    inside = frame["num_running"] + frame["num_waiting"]
    busy = frame.loc[inside.nlargest(max(1, len(frame) // 10)).index]
    capacity = run.kv.stats().capacity_bytes
    metrics = run.metrics()
    done = [r for r in run.recorder.requests.values() if r.finish_s is not None]
    mean_tokens = float(np.mean([r.num_prompt_tokens + r.num_output_tokens / 2 for r in done]))
    active = float(busy["num_running"].mean())
    live = float(busy["kv_live_bytes"].mean())
    reserved = float(busy["device_reserved_bytes"].mean())
    return Reading(
        nvidia_smi=(reserved + OTHER_BYTES) / DEVICE_BYTES,
        weights_share=metrics[Metric.WEIGHTS] / DEVICE_BYTES,
        cached_by_allocator=(reserved - float(busy["device_allocated_bytes"].mean())) / DEVICE_BYTES,
        pool_usage=live / capacity,
        explained=min(1.5, active * mean_tokens * run.kv.bytes_per_token / live) if live else 0.0,
        active_sequences=active,
        num_waiting=float(busy["num_waiting"].mean()),
        ttft_p95_s=metrics[Metric.TTFT]["p95"] or 0.0,
    )
