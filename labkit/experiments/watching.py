"""Section 11: a server watched from the device up, so that each group of metrics has something to say.

A device is a `CachingAllocator` that holds weights, one KV pool and the workspace of each step; what nvidia-smi shows is what that
allocator has reserved, plus what lies outside of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.experiments.serve import STEP_COST, Served
from labkit.experiments.soak_faults import SoakFault
from labkit.kv import KVCacheManager, make_kv_cache
from labkit.memory import Allocator, Span, make_allocator
from labkit.observe.measure import measure
from labkit.observe.metrics import Metric
from labkit.observe.recorder import RunRecorder
from labkit.observe.series import Series
from labkit.serving.base import Scheduler, StepOutcome, StepPlan
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.lab import LabScheduler
from labkit.serving.schedulers import make_scheduler
from labkit.units import GIB, MIB
from labkit.workload.base import RequestSpec

#: a card with 80 GiB; driver context and libraries lie outside the allocator
DEVICE_BYTES, OTHER_BYTES = 80 * GIB, 512 * MIB
#: two activations of 14,336 values a token in 16 bits
WORKSPACE_BYTES_PER_TOKEN = 2 * 14_336 * 2
BLOCK_TOKENS = 16


@dataclass
class Device:
    """What one process holds on the card."""

    allocator: Allocator
    weights_bytes: int
    pool_bytes: int
    peak_workspace_bytes: int = 0

    @property
    def nvidia_smi_bytes(self) -> int:
        """All that nvidia-smi can show."""
        return self.allocator.stats().reserved_bytes + OTHER_BYTES

    @property
    def nvidia_smi(self) -> float:
        """Share of the card that is "in use"."""
        return self.nvidia_smi_bytes / DEVICE_BYTES

    def spike(self, num_bytes: int) -> None:
        """One large temporary (a very long prompt, a shape that compiles): gone at once, and its segment stays."""
        self.allocator.free(self.allocator.malloc(num_bytes, lifetime="workspace"))


def device_with(weights_bytes: int, pool_bytes: int) -> Device:
    """A process that has loaded its weights (32 layers) and set its pool aside."""
    allocator = make_allocator("caching", DEVICE_BYTES - OTHER_BYTES)
    for _ in range(32):
        allocator.malloc(weights_bytes // 32, tag="weights", lifetime="weights")
    allocator.malloc(pool_bytes, tag="kv", lifetime="request")
    return Device(allocator, weights_bytes, pool_bytes)


class DeviceRecorder(RunRecorder):
    """Records at level full while the workspace of the step is on the device; tells a fault about ends of requests."""

    def __init__(self, device: Device, every: int = 4, fault: SoakFault | None = None):
        super().__init__(Series(every, device=device.allocator, other_bytes=OTHER_BYTES))
        self.device, self.fault = device, fault

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        size = max(1, plan.num_scheduled_tokens) * WORKSPACE_BYTES_PER_TOKEN
        held = self.device.allocator.malloc(size, lifetime="workspace")
        self.device.peak_workspace_bytes = max(self.device.peak_workspace_bytes, size)
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        self.device.allocator.free(held)
        if self.fault is not None:
            for _ in outcome.finished:
                self.fault.finished()


@dataclass(frozen=True)
class WatchedRun:
    """A run and all its metrics. `idle_blocks`: allocatable blocks before the first request."""

    recorder: RunRecorder
    device: Device
    kv: KVCacheManager
    scheduler: Scheduler
    max_num_seqs: int
    idle_blocks: int

    @property
    def block_bytes(self) -> int:
        return self.kv.block_size * self.kv.bytes_per_token

    @property
    def given(self) -> dict[str, Any]:
        """What `measure` and `dashboard` need beside the recorder."""
        return {
            "block_bytes": self.block_bytes,
            "max_num_seqs": self.max_num_seqs,
            "capacity": {
                "weights": self.device.weights_bytes,
                "workspace": self.device.peak_workspace_bytes,
            },
            "allocator": self.device.allocator.stats(),
        }

    def metrics(self, **more: Any) -> dict[Metric, Any]:
        return measure(self.recorder, **{**self.given, **more})

    def busiest(self) -> Instant:
        """The recorded instant with the fewest blocks left."""
        frame = self.recorder.series_frame()
        left = (frame["kv_free_bytes"] + frame["kv_cached_bytes"]) // self.block_bytes
        row = int(left.to_numpy().argmin())
        reserved = int(frame["device_reserved_bytes"].iloc[row])
        return Instant((reserved + OTHER_BYTES) / DEVICE_BYTES, int(left.iloc[row]))

    def idle(self) -> Instant:
        """The same server before its first request: weights and pool are there."""
        fresh = device_with(self.device.weights_bytes, self.device.pool_bytes)
        return Instant(fresh.nvidia_smi, self.idle_blocks)


@dataclass(frozen=True)
class Instant:
    """What nvidia-smi shows (share of the card) and how many blocks a new request could take."""

    nvidia_smi: float
    allocatable_blocks: int

    def hides(self, later: Instant) -> bool:
        """nvidia-smi moved by less than a point, and more than half of the allocatable blocks went: predicate of 11.1."""
        return (
            abs(later.nvidia_smi - self.nvidia_smi) < 0.01
            and later.allocatable_blocks < 0.5 * self.allocatable_blocks
        )


def watch(
    requests: Sequence[RequestSpec],
    device: Device,
    *,
    bytes_per_token: int,
    kv_name: str = "paged",
    kv_options: Mapping[str, Any] | None = None,
    fault: SoakFault | None = None,
    every: int = 4,
    max_num_seqs: int = 256,
    **options: Any,
) -> WatchedRun:
    """Serve `requests` on the device's pool."""
    kv = make_kv_cache(
        kv_name, capacity_bytes=device.pool_bytes, bytes_per_token=bytes_per_token, **(kv_options or {})
    )
    if fault is not None:
        fault.attach(kv)
    scheduler = make_scheduler("lab", kv, max_model_len=16_384, max_num_seqs=max_num_seqs, **options)
    recorder = DeviceRecorder(device, every, fault)
    idle = kv.num_free_blocks
    simulate(scheduler, LinearStepCost(**STEP_COST), requests, recorder)
    return WatchedRun(recorder, device, kv, scheduler, max_num_seqs, idle)


# --- 11.2 fragmentation --------------------------------------------------------------------------------------------------


def lost_contiguity(run: Served, num_tokens: int) -> float:
    """Share of the recorded instants at which `num_tokens` tokens were free in total and no span was that long."""
    frame = run.recorder.series_frame()
    wanted = num_tokens * run.kv.bytes_per_token
    return float(((frame["kv_free_bytes"] >= wanted) & (frame["kv_largest_free_bytes"] < wanted)).mean())


# --- 11.3 lifetimes ------------------------------------------------------------------------------------------------------


def with_long_answers(
    requests: Sequence[RequestSpec], rng: np.random.Generator, *, share: float = 0.02, num_tokens: int = 4000
) -> list[RequestSpec]:
    """A random `share` of the requests answers with `num_tokens` tokens."""
    long = rng.random(len(requests)) < share
    return [
        dataclasses.replace(r, num_output_tokens=num_tokens) if is_long else r
        for r, is_long in zip(requests, long)
    ]


def alike(requests: Sequence[RequestSpec]) -> list[RequestSpec]:
    """The control: the same arrivals, every request with the mean lengths, nobody shares anything."""
    prompt = int(np.mean([r.num_prompt_tokens for r in requests]))
    output = int(np.mean([r.num_output_tokens for r in requests]))
    return [
        dataclasses.replace(
            r, num_prompt_tokens=prompt, num_output_tokens=output, prompt_token_ids=None, session_id=None
        )
        for r in requests
    ]


def sees_what_stays(metrics: Mapping[Metric, Any]) -> bool:
    """Some requests hold memory ten times as long as usual, blocks wait for a second holder, cached objects stay for
    seconds: the predicate of claim 11.3."""
    counts = metrics.get(Metric.REFERENCE_COUNTS, {})
    shared = sum(share for count, share in counts.items() if count >= 2)
    return (
        metrics.get(Metric.LONG_SHARE, 0.0) > 0.005
        and shared > 0.005
        and metrics.get(Metric.RECLAIM_DELAY, 0.0) > 0.05
        and metrics.get(Metric.PREFIX_RESIDENCY, 0.0) > 1.0
    )


def steady_load(
    requests: Sequence[RequestSpec],
    num_requests: int,
    rate: float,
    rng: np.random.Generator,
    *,
    regular: bool = False,
) -> list[RequestSpec]:
    """Lengths drawn in pairs from `requests`, Poisson arrivals at `rate` a second: no hour is busier than another. `regular`: one
    arrival somewhere in each 1/`rate` seconds, so that no second is either."""
    if regular:
        times = ((np.arange(num_requests) + rng.uniform(0, 1, num_requests)) / rate).tolist()
    else:
        times = np.cumsum(rng.exponential(1 / rate, num_requests)).tolist()
    picks = rng.integers(0, len(requests), num_requests).tolist()
    return [
        dataclasses.replace(requests[k], request_id=f"r{i}", arrival_s=at)
        for i, (at, k) in enumerate(zip(times, picks))
    ]


# --- 11.5 before and after a restart -------------------------------------------------------------------------------------


def room_for(requests: Sequence[RequestSpec], times: float, *, bytes_per_token: int) -> int:
    """Tokens of a pool that is `times` as large as what `requests` hold on average when memory is no limit, in whole blocks."""
    recorder, _ = with_restart(
        requests, capacity_tokens=1_000_000, bytes_per_token=bytes_per_token, fault=None
    )
    frame = recorder.series_frame()
    mean = float(frame["kv_live_bytes"].mean()) / bytes_per_token
    return int(times * mean) // BLOCK_TOKENS * BLOCK_TOKENS


class TwoLives(RunRecorder):
    """One recorder over a restart: no lives of blocks, which end with the first cache. `layouts`: a picture of the pool at
    every 64th row of the series."""

    def __init__(self, every: int, fault: SoakFault | None):
        super().__init__(Series(every))
        self._watching, self.fault = True, fault
        self.every = every
        self.layouts: list[tuple[float, list[Span]]] = []

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        if self.num_steps % (64 * self.every) == 0 and isinstance(scheduler, LabScheduler):
            self.layouts.append((end_s, scheduler.kv.layout()))
        if self.fault is not None:
            for _ in outcome.finished:
                self.fault.finished()


def with_restart(
    requests: Sequence[RequestSpec],
    *,
    capacity_tokens: int,
    bytes_per_token: int,
    fault: SoakFault | None,
    every: int = 8,
) -> tuple[TwoLives, float]:
    """Serve the first half, restart, serve the second half. Returns the recorder and the instant of the restart: when the
    first half was done."""
    recorder = TwoLives(every, fault)
    half = len(requests) // 2
    restart_s = 0.0
    for part in (requests[:half], requests[half:]):
        if restart_s:
            shift = restart_s - part[0].arrival_s
            part = [dataclasses.replace(r, arrival_s=r.arrival_s + shift) for r in part]
        kv = make_kv_cache("paged", capacity_tokens=capacity_tokens, bytes_per_token=bytes_per_token)
        if fault is not None:
            fault.attach(kv)
        scheduler = make_scheduler("lab", kv, max_model_len=16_384)
        totals = simulate(scheduler, LinearStepCost(**STEP_COST), part, recorder)
        restart_s = restart_s or totals.end_s
    return recorder, restart_s


def harmed_and_healed(metrics: Mapping[Metric, Any]) -> bool:
    """P95 TTFT was beyond 1 s before the restart and less than a third of that after it: the predicate of claim 11.5."""
    found = metrics[Metric.BEFORE_AFTER_RESTART]
    return found["ratio"] is not None and found["before"] > 1.0 and found["ratio"] > 3.0
