"""The server of a soak: a scheduler, its cache, an allocator for activations beside it, and a fault where one is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.experiments.soak_faults import FAULTS, SoakFault
from labkit.experiments.soak_result import SoakOptions, Window, contiguity_loss
from labkit.experiments.system_memory import kv_memory
from labkit.kv import KV_CACHES, make_kv_cache
from labkit.kv.base import KVCacheManager, KVStats
from labkit.memory import make_allocator
from labkit.serving.base import Scheduler, StepOutcome, StepPlan
from labkit.serving.engine import simulate
from labkit.serving.fast_loop import LinearStepTime, LoadSummary, SummaryRecorder, summarize_load
from labkit.serving.schedulers import make_scheduler
from labkit.units import GIB
from labkit.workload.base import RequestSpec

#: activations of a prefill: two buffers of 14,336 values a token in 16 bits, from an allocator with this much of the device
WORKSPACE_BYTES_PER_TOKEN, WORKSPACE_DEVICE_BYTES = 2 * 14_336 * 2, 4 * GIB
#: prefills a window for which the workspace is asked
NUM_WORKSPACE = 64


def build_policy(options: SoakOptions) -> Scheduler:
    """A fresh scheduler under `options.policy`."""
    name, tokens = options.policy, options.capacity_tokens
    limits: dict[str, Any] = {
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
    }
    if name in ("vllm", "vllm-no-cache"):
        return make_scheduler(
            "vllm", num_gpu_blocks=tokens // 16 + 1, block_size=16, enable_prefix_caching=name == "vllm", **limits
        )  # fmt: skip
    if name == "sglang":
        return make_scheduler(
            "sglang", max_total_tokens=tokens, chunked_prefill_size=options.max_num_batched_tokens,
            max_running_requests=options.max_num_seqs,
        )  # fmt: skip
    if name == "tensorrt_llm":
        return make_scheduler(
            "tensorrt_llm", num_blocks=tokens // 32, tokens_per_block=32, max_batch_size=options.max_num_seqs,
            max_num_tokens=options.max_num_batched_tokens, enable_chunked_prefill=True,
        )  # fmt: skip
    extra = {"max_model_len": options.max_model_len} if name == "reserve-max" else {}
    kv = make_kv_cache(name, capacity_tokens=tokens, bytes_per_token=options.bytes_per_token, **extra)
    return make_scheduler("lab", kv, max_model_len=options.max_model_len, **limits)


class Server:
    """One life: scheduler, cache, workspace allocator, fault."""

    def __init__(self, options: SoakOptions):
        self.options, self.scheduler = options, build_policy(options)
        self.workspace = make_allocator("caching", WORKSPACE_DEVICE_BYTES)
        self.fault: SoakFault | None = None
        if options.fault is not None:
            self.fault = FAULTS[options.fault](**options.fault_options)
            self.fault.attach(self._kv())

    def _kv(self) -> KVCacheManager:
        kv = getattr(self.scheduler, "kv", None)
        if not isinstance(kv, KVCacheManager):
            raise LabError(
                f"a fault needs a cache of the lab, and policy {self.options.policy!r} brings its own; choose one of: "
                f"{', '.join(KV_CACHES)}"
            )
        return kv

    def memory(self) -> KVStats:
        """The KV pool now, in bytes."""
        stats = kv_memory(self.scheduler, self.options.bytes_per_token)
        if stats is None:
            raise LabError(f"policy {self.options.policy!r} does not show its memory; choose another")
        return stats

    def serve(
        self,
        load: Iterator[RequestSpec],
        life: int,
        end_h: float,
        prompts: np.ndarray,
        rng: np.random.Generator,
    ) -> Window:
        """One window, drained to the last request."""
        if self.fault is None:
            summary = summarize_load(self.scheduler, load, LinearStepTime())
        else:
            recorder = _FaultRecorder(self.fault)
            simulate(self.scheduler, LinearStepTime(), load, recorder)
            summary = recorder.summary
        for tokens in rng.choice(prompts, NUM_WORKSPACE).tolist():
            size = min(int(tokens), self.options.max_num_batched_tokens) * WORKSPACE_BYTES_PER_TOKEN
            self.workspace.free(self.workspace.malloc(size, lifetime="workspace"))
        return self._row(summary, life, end_h)

    def _row(self, summary: LoadSummary, life: int, end_h: float) -> Window:
        memory = self.memory()
        return Window(
            life=life,
            end_h=end_h,
            num_requests=summary.num_requests,
            num_refused=summary.num_refused,
            num_preempted=summary.num_preempted,
            ttft_p50_s=summary.quantile("ttft", 0.5),
            ttft_p95_s=summary.quantile("ttft", 0.95),
            itl_p95_s=summary.quantile("itl", 0.95),
            e2e_p95_s=summary.quantile("e2e", 0.95),
            live_bytes=memory.reserved_bytes,
            cached_bytes=memory.cached_bytes,
            free_bytes=memory.free_bytes,
            fragmentation=contiguity_loss(memory),
            reserved_bytes=memory.capacity_bytes + self.workspace.stats().reserved_bytes,
            rss_bytes=rss_bytes(),
        )

    def check(self) -> None:
        """The cache's own conservation laws, at the end of a life."""
        kv = getattr(self.scheduler, "kv", None)
        (kv if isinstance(kv, KVCacheManager) else self.scheduler).check_integrity()


class _FaultRecorder(SummaryRecorder):
    def __init__(self, fault: SoakFault):
        super().__init__()
        self.fault = fault

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        for _ in outcome.finished:
            self.fault.finished()


def rss_bytes() -> int:
    """Resident memory of this process now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0
