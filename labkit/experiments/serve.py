"""One load on one KV cache: the same scheduler and the same clock for every variant, so that only the cache differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.kv import KVCacheManager, make_kv_cache
from labkit.observe.recorder import RunRecorder
from labkit.observe.series import Series
from labkit.serving.base import Scheduler
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import SimulationResult, simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec

#: a step of the experiments: 10 ms, and 0.05 ms for each scheduled token (the unit cost of the named scenarios)
STEP_COST = {"base_ms": 10.0, "per_token_ms": 0.05}


@dataclass(frozen=True)
class Served:
    """A finished run: totals of the loop, the recorder with every request, the cache and the scheduler as they were left."""

    name: str
    totals: SimulationResult
    recorder: RunRecorder
    kv: KVCacheManager
    scheduler: Scheduler

    @property
    def summary(self) -> dict[str, Any]:
        """Scalars of the run, as the recorder has them."""
        return self.recorder.summary()

    @property
    def token_share(self) -> float:
        """Mean over the steps of (bytes that hold tokens) / (bytes kept by live requests): 1 - internal waste."""
        frame = self.recorder.series_frame()
        held = frame["kv_live_bytes"].sum()
        return float(frame["kv_token_bytes"].sum() / held) if held else 1.0


def serve(
    kv_name: str,
    requests: Sequence[RequestSpec],
    *,
    capacity_tokens: int,
    bytes_per_token: int,
    max_model_len: int = 8192,
    kv_options: dict[str, Any] | None = None,
    every: int = 10,
    max_steps: int | None = None,
    **scheduler_options: Any,
) -> Served:
    """Run `requests` on KV cache `kv_name`; a row of the series for every `every`-th step.

    No request may become longer than `max_model_len` tokens: a prompt that leaves no room for an answer is refused on
    arrival and counted, an answer ends where the limit is reached.
    """
    kv = make_kv_cache(
        kv_name, capacity_tokens=capacity_tokens, bytes_per_token=bytes_per_token, **(kv_options or {})
    )
    scheduler = make_scheduler("lab", kv, max_model_len=max_model_len, **scheduler_options)
    recorder = RunRecorder(Series(every))
    totals = simulate(scheduler, LinearStepCost(**STEP_COST), requests, recorder, max_steps=max_steps)
    return Served(kv_name, totals, recorder, kv, scheduler)
