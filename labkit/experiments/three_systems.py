"""Section 10: vLLM, SGLang and TensorRT-LLM on one trace."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import LabError
from labkit.experiments.prefix_reuse import BYTES_PER_TOKEN, shared_load
from labkit.experiments.scheduling import faster, with_client_limit
from labkit.experiments.serve import STEP_COST
from labkit.experiments.system_memory import kv_memory
from labkit.kv import make_kv_cache
from labkit.observe.recorder import RunRecorder
from labkit.serving.base import Executor, Scheduler
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import SimulationResult, simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec

if TYPE_CHECKING:
    import pandas as pd

MAX_LEN = 8192

# --- the same pool under three names ------------------------------------------------------------------------------------


def system(name: str, capacity_tokens: int, **own: Any) -> Scheduler:
    """ "vllm", "sglang" or "tensorrt_llm" with `capacity_tokens` of KV, 64 requests at once and 2,048 tokens a step; `own`
    are options under the system's own names. "contiguous" is the lab's scheduler that reserves each request's maximum in one
    piece: what the three replaced."""
    if name == "contiguous":
        kv = make_kv_cache("reserve-max", capacity_tokens=capacity_tokens, bytes_per_token=BYTES_PER_TOKEN)
        return make_scheduler("lab", kv, max_model_len=MAX_LEN, max_num_seqs=64, **own)
    defaults: dict[str, dict[str, Any]] = {
        "vllm": {
            "num_gpu_blocks": capacity_tokens // 16 + 1,
            "block_size": 16,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "max_model_len": min(MAX_LEN, capacity_tokens),
        },
        "sglang": {
            "max_total_tokens": capacity_tokens,
            "max_running_requests": 64,
            "chunked_prefill_size": 2048,
            "context_length": MAX_LEN,
        },
        "tensorrt_llm": {
            "num_blocks": capacity_tokens // 32,
            "tokens_per_block": 32,
            "max_batch_size": 64,
            "max_num_tokens": 2048,
            "max_seq_len": MAX_LEN,
            "enable_chunked_prefill": True,
        },
    }
    if name not in defaults:
        raise LabError(f"unknown system {name!r}; choose one of: {', '.join(defaults)}, contiguous")
    return make_scheduler(name, **{**defaults[name], **own})


# --- one run ------------------------------------------------------------------------------------------------------------


class SystemWatch(RunRecorder):
    """`frame`: live, cached and free bytes and the queue at every eighth step; `steps`: what every step computed."""

    COLUMNS = ("end_s", "live", "cached", "free", "running", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[float, ...]] = []
        self._steps: list[tuple[float, int, int]] = []
        self.num_mixed = self.num_prefill = 0
        self._empty_s = self._live_s = self._since_s = 0.0

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        self._steps.append((end_s, plan.num_prefill_tokens, plan.num_decode_requests))
        if plan.num_prefill_tokens:
            self.num_prefill += 1
            self.num_mixed += plan.num_decode_requests > 0
        if self.num_steps % 8:
            return
        stats = kv_memory(scheduler, BYTES_PER_TOKEN)
        assert stats is not None
        lasted, self._since_s = end_s - self._since_s, end_s
        self._empty_s += empty_slots(scheduler) * BYTES_PER_TOKEN * lasted
        self._live_s += stats.reserved_bytes * lasted
        self.rows.append(
            (
                end_s, stats.reserved_bytes, stats.cached_bytes, stats.free_bytes, plan.num_running,
                max(0, self.num_live + len(outcome.finished) - plan.num_running),
            )
        )  # fmt: skip

    @property
    def waste(self) -> float:
        """Mean share of what live requests hold that holds no token."""
        return self._empty_s / self._live_s if self._live_s else 0.0

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(self.COLUMNS))

    def steps(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self._steps, columns=["end_s", "prefill_tokens", "decodes"])


def empty_slots(scheduler: Any) -> int:
    """Token slots that running requests hold and that hold no token. Shared blocks are full, so only private ones count."""
    if scheduler.name == "sglang":  # pages of one token
        return 0
    if scheduler.name == "lab":
        stats = scheduler.kv_stats()
        return int(stats.reserved_bytes - stats.token_bytes) // BYTES_PER_TOKEN
    running, prefills = (
        (scheduler.running, scheduler.prefilling)
        if scheduler.name == "vllm"
        else (scheduler.active, scheduler.contexts)
    )
    num_tokens = scheduler.decoding.num_kv_tokens + sum(r.computed for r in prefills)
    return max(0, sum(len(r.table) for r in running) * scheduler.block_size - num_tokens)


@dataclass(frozen=True)
class SystemRun:
    """A finished run. `mixed_share`: of the steps that prefill, those in which somebody decodes too. `waste`: of the memory
    that live requests hold, the part without tokens (mean over time)."""

    name: str
    num_requests: int
    num_finished: int
    num_preempted: int
    num_lost_tokens: int
    hit_share: float
    waste: float
    mixed_share: float
    peak_running: int
    ttft_p50_s: float
    ttft_p95_s: float
    worst_gap_s: float
    output_tokens_per_s: float
    watch: SystemWatch
    scheduler: Scheduler
    totals: SimulationResult

    def manageable(self) -> bool:
        """Everybody is served, and what is held is used: less than a tenth of it is empty."""
        return self.num_finished == self.num_requests and self.waste < 0.1

    def signature(self) -> tuple[bool, bool]:
        """What the system does to a running request: prefill beside decodes, and taking its memory away."""
        return (self.mixed_share > 0.5, self.num_preempted > 0)


def run_system(
    name: str,
    requests: Sequence[RequestSpec],
    capacity_tokens: int,
    *,
    label: str | None = None,
    executor: Executor | None = None,
    max_steps: int | None = None,
    **own: Any,
) -> SystemRun:
    """Serve `requests` by `name` (see `system`)."""
    scheduler, watch = system(name, capacity_tokens, **own), SystemWatch()
    if name == "contiguous":  # cannot share, and need not cut its prompts into blocks to find that out
        requests = [dataclasses.replace(r, prefix_hashes=None) for r in requests]
    totals = simulate(
        scheduler, executor or LinearStepCost(**STEP_COST), requests, watch, max_steps=max_steps
    )
    summary = watch.summary()
    return SystemRun(
        name=label or name,
        num_requests=totals.num_requests,
        num_finished=totals.num_finished,
        num_preempted=totals.num_preempted,
        num_lost_tokens=totals.num_recomputed_tokens,
        hit_share=summary["prefix_hit_ratio"],
        waste=watch.waste,
        mixed_share=watch.num_mixed / watch.num_prefill if watch.num_prefill else 0.0,
        peak_running=summary["peak_running"],
        ttft_p50_s=summary["ttft_s"]["p50"] or 0.0,
        ttft_p95_s=summary["ttft_s"]["p95"] or 0.0,
        worst_gap_s=summary["itl_s"]["max"] or 0.0,
        output_tokens_per_s=summary["output_tokens_per_s"],
        watch=watch,
        scheduler=scheduler,
        totals=totals,
    )


class _Enough(Exception):
    pass


class _StopWhenWaiting(RunRecorder):
    def __init__(self, num_waiting: int):
        super().__init__()
        self.num_waiting = num_waiting

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        if self.num_live - plan.num_running >= self.num_waiting:
            raise _Enough


def until_waiting(
    name: str, requests: Sequence[RequestSpec], capacity_tokens: int, *, num_waiting: int = 5, **own: Any
) -> Scheduler:
    """The scheduler as it stands after the first step in which `num_waiting` requests wait (or at the end)."""
    scheduler = system(name, capacity_tokens, **own)
    with contextlib.suppress(_Enough):
        simulate(scheduler, LinearStepCost(**STEP_COST), requests, _StopWhenWaiting(num_waiting))
    return scheduler


def three_load(
    num_requests: int, rng: np.random.Generator, *, output_tokens_per_s: float = 870.0
) -> tuple[list[RequestSpec], str]:
    """The conversation load of section 9, from clients that allow 1,024 output tokens, so fast that it asks for
    `output_tokens_per_s` (the trace three times as fast as recorded)."""
    requests, origin = shared_load(num_requests, rng)
    return at_rate(with_client_limit(requests), output_tokens_per_s), origin


def at_rate(requests: Sequence[RequestSpec], output_tokens_per_s: float) -> list[RequestSpec]:
    """The same requests in the same rhythm, asking for `output_tokens_per_s` on average."""
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    asked = sum(r.num_output_tokens for r in requests) / span_s
    return faster(requests, output_tokens_per_s / asked)


def side_by_side(requests: Sequence[RequestSpec], capacity_tokens: int) -> dict[str, SystemRun]:
    """The three, with their defaults, and the contiguous ancestor."""
    names = {
        "vLLM": "vllm",
        "SGLang": "sglang",
        "TensorRT-LLM": "tensorrt_llm",
        "contiguous, reserved": "contiguous",
    }
    return {label: run_system(name, requests, capacity_tokens, label=label) for label, name in names.items()}


def table(runs: Sequence[SystemRun]) -> pd.DataFrame:
    """One row a run, without its insides."""
    import pandas as pd

    columns = [
        f.name for f in dataclasses.fields(SystemRun) if f.name not in ("watch", "scheduler", "totals")
    ]
    return pd.DataFrame([[getattr(run, c) for c in columns] for run in runs], columns=columns).round(3)


def three_ways(runs: Sequence[SystemRun]) -> bool:
    """All manageable, and no two treat a running request alike: the first half of claim 10.4."""
    return all(run.manageable() for run in runs) and len({run.signature() for run in runs}) == len(runs)
