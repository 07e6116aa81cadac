"""How tensor, pipeline and expert parallelism cut the weights: bytes on each rank.

Tensor parallelism (TP) cuts matrices by output or input and copies norms, routers and MLA's low-rank inputs. KV heads
fewer than ranks are copied. Pipeline parallelism (PP) gives each stage whole layers; where they do not divide evenly
the extra ones go to the stages before the last, which already has the output matrix (vLLM,
`distributed/utils.py::get_pp_indices`). Expert parallelism (EP) gives the TP ranks whole experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.errors import LabError
from labkit.models.dtypes import dtype_bytes
from labkit.models.quantization import Quantization
from labkit.models.spec import ModelSpec
from labkit.models.weights import Weight

#: vLLM pads the vocabulary to this before cutting it (`vocab_parallel_embedding.py`)
VOCAB_PADDING = 64


@dataclass(frozen=True, slots=True)
class Parallel:
    """`tp` ranks a stage, `pp` stages; with `expert_parallel` the ranks of a stage hold whole experts."""

    tp: int = 1
    pp: int = 1
    expert_parallel: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "pp"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise LabError(f"--{name} is {value!r}; it must be a whole number of at least 1")

    @property
    def num_ranks(self) -> int:
        return self.tp * self.pp


def stage_layers(num_layers: int, pp: int) -> list[range]:
    """Layers of each stage: `stage_layers(61, 4) -> 15, 15, 16, 15`. Raises `LabError` for more stages than layers."""
    if pp > num_layers:
        raise LabError(f"--pp is {pp}, more than the {num_layers} layers (field num_hidden_layers)")
    counts = [num_layers // pp] * pp
    remaining = num_layers % pp
    for i in range(2, remaining + 2):
        counts[-i] += 1
    starts = [sum(counts[:i]) for i in range(pp)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


def rank_weight_bytes(
    model: ModelSpec, parallel: Parallel, stage: int = 0, quantization: Quantization | None = None
) -> int:
    """Weight bytes of the heaviest rank of a stage (rank 0: it has the odd rows and experts)."""
    check_split(model, parallel)
    scheme = model.quantization if quantization is None else quantization
    layers = stage_layers(model.num_layers, parallel.pp)[stage]
    last = stage == parallel.pp - 1
    total = 0.0
    for weight in model.weights:
        here = (
            weight.layer in layers
            if isinstance(weight.layer, int)
            else _edge(weight, stage, last, model.tied)
        )
        if here:
            total += _rank_bytes(weight, model, parallel, scheme)
    return round(total)


def stage_kv_bytes_per_token(model: ModelSpec, parallel: Parallel, stage: int, kv_dtype: str = "auto") -> int:
    """Bytes one more token takes on a rank of this stage."""
    layers = stage_layers(model.num_layers, parallel.pp)[stage]
    num = sum(1 for layer in layers if model.layer_kinds[layer] != "linear")
    return round(num * model.kv_bytes_per_token_per_layer(kv_dtype, parallel.tp))


def check_split(model: ModelSpec, parallel: Parallel) -> None:
    """Raise `LabError`, with the field, where the model cannot be cut like this."""
    tp = parallel.tp
    if model.num_heads % tp:
        raise LabError(
            f"{model.name}: field num_attention_heads is {model.num_heads}, which --tp {tp} does not divide"
        )
    if model.mla is None:
        model.kv_heads_per_rank(tp)
    if model.experts is not None and parallel.expert_parallel:
        if model.experts.num_experts < tp:
            raise LabError(
                f"{model.name}: field num_experts is {model.experts.num_experts}, fewer than --tp {tp} ranks"
            )
    elif model.experts is not None and model.experts.intermediate_size % tp:
        raise LabError(
            f"{model.name}: field moe_intermediate_size is {model.experts.intermediate_size}, which --tp {tp} does not "
            "divide; use expert parallelism"
        )
    stage_layers(model.num_layers, parallel.pp)


def _edge(weight: Weight, stage: int, last: bool, tied: bool) -> bool:
    if weight.layer == "first":
        return stage == 0 or (last and tied and weight.name == "embed_tokens")
    return last


def _rank_bytes(weight: Weight, model: ModelSpec, parallel: Parallel, scheme: Quantization) -> float:
    tp, size = parallel.tp, dtype_bytes(model.dtype)
    whole = scheme.weight_bytes(weight, size)
    if tp == 1:
        return whole
    if weight.split == "vocab":
        rows = -(-weight.out_features // VOCAB_PADDING) * VOCAB_PADDING
        return -(-rows // tp) * weight.in_features * size
    if weight.num_experts > 1 and parallel.expert_parallel:
        return whole * -(-weight.num_experts // tp) / weight.num_experts
    if weight.split in ("out", "in"):
        return whole / tp
    if weight.split == "kv":
        return whole * model.kv_heads_per_rank(tp) / model.num_kv_heads
    return whole
