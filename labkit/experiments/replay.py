"""A trace under several KV caches or schedulers, side by side: the same requests, the same GPU, one row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labkit.errors import LabError
from labkit.experiments.replay_recorder import MemoryRecorder
from labkit.experiments.system_memory import kv_memory
from labkit.kv import KV_CACHES, make_kv_cache
from labkit.models import GPUSpec, ModelSpec
from labkit.observe.exposition import RunExporter
from labkit.observe.live import PacedRecorder
from labkit.observe.tee import Tee
from labkit.planning.engines import rank_budget
from labkit.planning.request import PlanRequest
from labkit.serving.base import Recorder, Scheduler
from labkit.serving.cost_model import CostModelExecutor
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler, scheduler_names
from labkit.units import GIB, format_bytes
from labkit.workload.base import RequestSpec


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What is the same for every row. `block_size` in tokens; a contiguous cache has none. `prefix` ("off", "hash" or
    "radix") is for the lab's paged cache; systems bring their own, which "off" switches off and the others switch on. None
    is everyone's own default: off for the lab's cache, on for the systems."""

    kv_bytes: int
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One row of the table. Waste and fragmentation are means over time, of what was reserved and of what was free.

    waste           1 - tokens held / slots reserved: kept by requests and empty
    fragmentation   1 - longest free run / free: there, and out of reach for one request (0 in blocks)
    """

    scheduler: str
    kv: str
    num_requests: int
    num_admitted: int
    num_refused: int
    num_preempted: int
    num_finished: int
    hit_ratio: float
    waste: float | None
    fragmentation: float | None
    peak_bytes: int | None
    peak_running: int
    ttft_s: dict[str, float | None]
    tpot_s: dict[str, float | None]
    output_tokens_per_s: float
    elapsed_s: float
    num_steps: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def kv_budget(
    model: ModelSpec,
    gpu: GPUSpec,
    utilization: float = 0.9,
    *,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    block_size: int | None = None,
) -> int:
    """Bytes left for keys and values under vLLM's rule (`planning.engines.rank_budget`), the same for every row.

    `utilization` is the share of the GPU that the engine takes; lengths in tokens, None for vLLM's defaults. Raises
    `LabError` when nothing is left.
    """
    if not 0 < utilization <= 1:
        raise LabError(
            f"memory utilization {utilization} is not a share of the GPU; write a number above 0, at most 1"
        )
    asked = PlanRequest(
        model,
        gpu,
        memory_fraction=utilization,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
    )
    budget = rank_budget(asked)
    if budget.kv_bytes <= 0:
        raise LabError(
            f"{model.name} does not fit {gpu.name}: {budget.rule} leaves {budget.kv_bytes / GIB:.2f} GiB for keys and "
            "values; choose another pair"
        )
    return budget.kv_bytes


def check_options(options: ReplayOptions, model: ModelSpec) -> None:
    """Raises `LabError` for what no row could use."""
    if options.prefix not in (None, "off", "hash", "radix"):
        raise LabError(f"unknown prefix cache {options.prefix!r}; choose one of: off, hash, radix")
    if model.max_position is not None and options.max_model_len > model.max_position:
        raise LabError(
            f"max_model_len {options.max_model_len} is longer than {model.name} was made for; at most {model.max_position}"
        )


def check_row(scheduler: str, kv: str, prefix: str | None = None) -> None:
    """Is there such a combination? Raises `LabError` that lists what there is."""
    if scheduler not in scheduler_names():
        raise LabError(f"unknown scheduler {scheduler!r}; choose one of: {', '.join(scheduler_names())}")
    KV_CACHES[kv]
    if scheduler != "lab" and kv != "paged":
        raise LabError(
            f"the scheduler {scheduler!r} brings its own paged cache; choose --kv paged, not {kv!r}"
        )
    if kv != "paged" and prefix not in (None, "off"):
        raise LabError(
            f"--kv {kv} has no blocks that requests could share; --prefix {prefix} needs --kv paged"
        )


def replay(
    requests: Sequence[RequestSpec],
    model: ModelSpec,
    gpu: GPUSpec,
    options: ReplayOptions,
    *,
    kv: str = "paged",
    scheduler: str = "lab",
    on_progress: Callable[[int], object] | None = None,
    watcher: Recorder | None = None,
) -> ReplayRow:
    """All requests through one scheduler on one cache, timed by the cost model. `watcher` sees the run as it goes."""
    check_row(scheduler, kv, options.prefix)
    subject = build(scheduler, kv, model, options)
    recorder = MemoryRecorder(model.kv_bytes_per_token())
    observer = recorder if watcher is None else Tee(recorder, watcher)
    totals = simulate(subject, CostModelExecutor(model, gpu), requests, observer, on_progress=on_progress)
    summary = recorder.summary()
    return ReplayRow(
        scheduler=scheduler,
        kv=kv,
        num_requests=totals.num_requests,
        num_admitted=totals.num_admitted,
        num_refused=totals.num_refused,
        num_preempted=totals.num_preempted,
        num_finished=totals.num_finished,
        hit_ratio=summary["prefix_hit_ratio"],
        waste=recorder.waste,
        fragmentation=recorder.fragmentation,
        peak_bytes=recorder.peak_bytes,
        peak_running=recorder.peak_running,
        ttft_s=summary["ttft_s"],
        tpot_s=summary["tpot_s"],
        output_tokens_per_s=summary["output_tokens_per_s"],
        elapsed_s=summary["elapsed_s"],
        num_steps=totals.num_steps,
    )


def live_watcher(scheduler: str, model: ModelSpec, speed: float) -> PacedRecorder:
    """A recorder that keeps to the wall clock and publishes `/metrics` under SGLang's names for SGLang, else vLLM's."""
    per_token = model.kv_bytes_per_token()

    def usage(subject: Scheduler) -> float | None:
        stats = kv_memory(subject, per_token)
        return None if stats is None else stats.reserved_bytes / stats.capacity_bytes

    exporter = RunExporter("sglang" if scheduler == "sglang" else "vllm", model_name=model.name)
    return PacedRecorder(exporter, speed, usage=usage)


def build(scheduler: str, kv: str, model: ModelSpec, options: ReplayOptions) -> Scheduler:
    """A fresh scheduler with `options` under its own names."""
    per_token = model.kv_bytes_per_token()
    num_blocks = options.kv_bytes // (per_token * options.block_size)
    if num_blocks < 2:
        raise LabError(
            f"a KV budget of {format_bytes(options.kv_bytes)} is smaller than two blocks of {options.block_size} tokens "
            f"({format_bytes(2 * per_token * options.block_size)}); give more memory or smaller blocks"
        )
    shared: dict[str, Any] = {
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
    }
    if scheduler == "vllm":
        return make_scheduler(
            "vllm",
            num_gpu_blocks=num_blocks,
            block_size=options.block_size,
            max_model_len=min(options.max_model_len, (num_blocks - 1) * options.block_size),
            enable_prefix_caching=options.prefix != "off",
            **shared,
        )
    if scheduler == "sglang":
        return make_scheduler(
            "sglang",
            max_total_tokens=num_blocks * options.block_size,
            context_length=options.max_model_len,
            max_running_requests=options.max_num_seqs,
            chunked_prefill_size=options.max_num_batched_tokens,
            disable_radix_cache=options.prefix == "off",
        )
    if scheduler == "tensorrt_llm":
        return make_scheduler(
            "tensorrt_llm",
            num_blocks=num_blocks,
            tokens_per_block=options.block_size,
            max_seq_len=options.max_model_len,
            max_batch_size=options.max_num_seqs,
            max_num_tokens=options.max_num_batched_tokens,
            enable_chunked_prefill=True,
            enable_block_reuse=options.prefix != "off",
        )
    extra: dict[str, Any] = {}
    if kv == "paged":
        extra = {"block_size": options.block_size, "prefix": options.prefix or "off"}
    if kv == "reserve-max":
        extra = {"max_model_len": options.max_model_len}
    cache = make_kv_cache(kv, bytes_per_token=per_token, capacity_bytes=options.kv_bytes, **extra)
    return make_scheduler("lab", cache, max_model_len=options.max_model_len, **shared)
