"""How long a step takes, without running it: a roofline from model and GPU facts, or a straight line.

    step = launch + max(compute, memory) + swap

    compute   (linear FLOPs of the scheduled tokens + attention FLOPs of their query-key pairs) / (peak FLOP/s x MFU)
    memory    (weights read once + KV read for the batch + KV written + bytes moved twice) / (bandwidth x efficiency)
    swap      bytes over the host bus
    launch    what a step costs when it does nothing

Valid for one GPU, 16-bit dense or mixture-of-experts models, batches of tens to thousands of tokens. It knows nothing of
kernel shapes, communication, sampling or the CPU's share beyond `launch_s`; expect the order of magnitude and the shape
of curves, not the millisecond. Compare schedulers with it; do not size a purchase with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from labkit.errors import LabError
from labkit.models import get_gpu, get_model
from labkit.models.gpus import GPUSpec
from labkit.models.spec import ModelSpec
from labkit.registry import Registry
from labkit.serving.base import Executor, StepPlan, StepResult

EXECUTORS: Registry[type[Executor]] = Registry("executor")


@dataclass(frozen=True, slots=True)
class CostConstants:
    """The constants that no datasheet gives.

    | constant | value | source |
    | --- | --- | --- |
    | `mfu` | 0.6 | dense 16-bit matmul of 8192^3 reaches 769-798 of 989 TFLOP/s on an H200 (gpus.json, measured); whole prefill steps are usually reported between 0.4 and 0.7 |
    | `bandwidth_efficiency` | 0.85 | copies reach 4,300 of 4,800 GB/s on an H200 (gpus.json, measured) = 0.90; less for reads in pieces |
    | `launch_s` | 3 ms | CPU work of one engine step; an assumption, of the order that engines report for small models |
    | `host_bytes_s` | 25 GB/s | PCIe 4.0 x16 moves 31.5 GB/s at most; about 80 % of it in practice |
    """

    mfu: float = 0.6
    bandwidth_efficiency: float = 0.85
    launch_s: float = 3e-3
    host_bytes_s: float = 25e9

    def __post_init__(self) -> None:
        for constant in fields(self):
            if getattr(self, constant.name) < 0 or (
                constant.name != "launch_s" and not getattr(self, constant.name)
            ):
                raise LabError(f"{constant.name}={getattr(self, constant.name)} is not a positive number")


@EXECUTORS.register("cost-model")
class CostModelExecutor(Executor):
    """Roofline time of a decided step. `model` and `gpu` are names or specs."""

    def __init__(
        self,
        model: str | ModelSpec,
        gpu: str | GPUSpec,
        constants: CostConstants | None = None,
        *,
        kv_dtype: str = "auto",
    ):
        self.model = get_model(model) if isinstance(model, str) else model
        self.gpu = get_gpu(gpu) if isinstance(gpu, str) else gpu
        self.constants = constants or CostConstants()
        self.kv_bytes_per_token = self.model.kv_bytes_per_token(kv_dtype)
        flops = self.gpu.flops_16bit * self.constants.mfu
        bandwidth = self.gpu.bandwidth_bytes_s * self.constants.bandwidth_efficiency
        self._token_s = self.model.linear_flops_per_token / flops
        self._sample_s = self.model.head_flops_per_token / flops
        self._pair_s = self.model.attention_flops_per_pair / flops
        self._weights_s = self.model.weight_bytes() / bandwidth
        self._kv_s = self.kv_bytes_per_token / bandwidth

    def execute(self, plan: StepPlan) -> StepResult:
        constants = self.constants
        num_tokens = plan.num_scheduled_tokens
        seconds = constants.launch_s
        if num_tokens:
            decodes = plan.num_decode_requests
            pairs = plan.num_prefill_pairs or plan.num_prefill_tokens * plan.num_prefill_tokens / 2
            compute = num_tokens * self._token_s + decodes * self._sample_s
            compute += (pairs + plan.num_kv_tokens_read) * self._pair_s if decodes else pairs * self._pair_s
            memory = self._weights_s + (plan.num_kv_tokens_read + num_tokens) * self._kv_s
            seconds += compute if compute > memory else memory
        if plan.moves:
            seconds += 2 * sum(move.num_tokens for move in plan.moves) * self._kv_s
        if plan.swapped_bytes:
            seconds += plan.swapped_bytes / constants.host_bytes_s
        return StepResult(seconds)

    def prefill_s(self, num_tokens: int) -> float:
        """A prompt of `num_tokens` alone, in one step."""
        pairs = num_tokens * (num_tokens + 1) // 2
        return self.execute(
            StepPlan(0, num_tokens, num_tokens, num_running=1, num_prefill_pairs=pairs)
        ).duration_s

    def swap_s(self, num_bytes: float) -> float:
        return num_bytes / self.constants.host_bytes_s


@EXECUTORS.register("linear")
@dataclass(slots=True)
class LinearStepCost(Executor):
    """`base_ms + per_token_ms * scheduled tokens + per_kv_token_ns * KV tokens read`: scenarios and benchmarks, where
    the decisions are looked at and the time only has to be plain."""

    base_ms: float = 10.0
    per_token_ms: float = 0.05
    per_kv_token_ns: float = 0.0
    _base_s: float = field(init=False, repr=False)
    _token_s: float = field(init=False, repr=False)
    _kv_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._base_s, self._token_s = self.base_ms * 1e-3, self.per_token_ms * 1e-3
        self._kv_s = self.per_kv_token_ns * 1e-9

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(
            self._base_s + self._token_s * plan.num_scheduled_tokens + self._kv_s * plan.num_kv_tokens_read
        )
