"""What a plan is asked for. Every number that is not positive is refused with the option's name."""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit.errors import InputError, LabError
from labkit.models.dtypes import dtype_bytes
from labkit.models.gpus import GPUSpec
from labkit.models.parallel import Parallel, check_split
from labkit.models.quantization import Quantization
from labkit.models.spec import ModelSpec

#: fields whose option on the command line has another name
_OPTIONS = {"max_batched_tokens": "max_num_batched_tokens"}
ENGINES = ("vllm", "vllm-v1", "vllm-v0", "sglang", "tensorrt_llm")


@dataclass(frozen=True)
class PlanRequest:
    """A model on GPUs under an engine. `memory_fraction` is the engine's own: `gpu_memory_utilization`,
    `mem_fraction_static` or `free_gpu_memory_fraction`; None takes its default. `given` holds terms in bytes that are
    known from a log and replace the estimates: weights, peak_activation, non_torch, cuda_graphs."""

    model: ModelSpec
    gpu: GPUSpec
    engine: str = "vllm"
    parallel: Parallel = field(default_factory=Parallel)
    max_model_len: int | None = None
    kv_dtype: str = "auto"
    block_size: int | None = None
    memory_fraction: float | None = None
    max_num_seqs: int | None = None
    max_batched_tokens: int | None = None
    quantization: Quantization | None = None
    max_tokens: int | None = None
    hybrid: bool = True
    extra_bytes: int = 0
    given: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise LabError(f"unknown engine {self.engine!r}; choose one of: {', '.join(ENGINES)}")
        dtype_bytes(self.model.dtype if self.kv_dtype == "auto" else self.kv_dtype)
        check_split(self.model, self.parallel)
        for name in ("max_model_len", "block_size", "max_num_seqs", "max_batched_tokens", "max_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise LabError(
                    f"--{_OPTIONS.get(name, name).replace('_', '-')} is {value}; it must be a whole number of at least 1"
                )
        fraction = self.memory_fraction
        if fraction is not None and not 0.0 < fraction <= 1.0:
            raise LabError(f"--memory-fraction is {fraction}; it must be above 0 and at most 1")
        if self.model.max_position is None and self.max_model_len is None:
            where = self.model.source if self.model.source.endswith(".json") else self.model.name
            raise InputError(
                where, "is missing; give it, or --max-model-len", field="max_position_embeddings"
            )

    @property
    def model_len(self) -> int:
        """The longest sequence: as asked, else the model's own maximum."""
        return self.max_model_len or self.model.max_position or 0
