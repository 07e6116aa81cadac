"""A step between two numbers of a printed line, when it passes, and what a token costs on that line's rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError
from labkit.models.parallel import Parallel, stage_kv_bytes_per_token
from labkit.models.spec import ModelSpec
from labkit.planning.kv_groups import KVGroups, kv_groups
from labkit.planning.printed import PrintedLine

ONE_RANK, ACROSS_RANKS = 0.002, 0.015


@dataclass(frozen=True, slots=True)
class Step:
    """`printed` and `planned` in the unit of `name`; `low` and `high` is what passes as equal to the printed one."""

    name: str
    printed: float | str
    planned: float | str
    formula: str
    tolerance: float = 0.0
    low: float | None = None
    high: float | None = None

    @property
    def deviation(self) -> float:
        """planned / printed - 1; 0 for words that agree."""
        if isinstance(self.printed, str) or isinstance(self.planned, str):
            return 0.0 if self.printed == self.planned else float("inf")
        return self.planned / self.printed - 1.0

    @property
    def holds(self) -> bool:
        """Equal texts, or a deviation within the tolerance or the range that rounding leaves."""
        if isinstance(self.printed, str) or isinstance(self.planned, str):
            return self.printed == self.planned
        if abs(self.deviation) <= self.tolerance:
            return True
        return self.low is not None and self.high is not None and self.low <= self.printed <= self.high

    @property
    def range(self) -> tuple[float, float] | None:
        """Planned less and plus the tolerance."""
        if isinstance(self.planned, str):
            return None
        return self.planned * (1 - self.tolerance), self.planned * (1 + self.tolerance)

    def as_dict(self) -> dict[str, Any]:
        return {
            "step": self.name,
            "printed": self.printed,
            "planned": self.planned,
            "deviation_percent": round(100 * self.deviation, 4) if abs(self.deviation) < 1e6 else None,
            "tolerance_percent": 100 * self.tolerance,
            "range": self.range,
            "holds": self.holds,
            "formula": self.formula,
        }


def tolerance(line: PrintedLine) -> float:
    """Relative: tighter on one rank than across several."""
    return ONE_RANK if line.num_ranks == 1 else ACROSS_RANKS


def printed_interval(value: float) -> tuple[float, float]:
    """A printed number stands for an interval: half a unit of its last decimal either way. JSON writes 54.10 as 54.1 and
    54.00 as 54.0, so one decimal is taken as one; a number without any as two."""
    decimals = len(str(value).partition(".")[2]) or 2
    half = 0.5 * 10.0**-decimals
    return value - half, value + half


def interval(planned: float, printed: float) -> tuple[float, float]:
    """What `planned` may be, given that `printed` was rounded to its digits; same unit as both."""
    low, high = printed_interval(printed)
    return planned - (high - low) / 2, planned + (high - low) / 2


def bytes_per_token(line: PrintedLine) -> float | None:
    """Bytes a token on one rank: derived from the model where it is known, else as the line says."""
    options = derived_bytes(line)
    printed = line.numbers.get("per_token_bytes")
    if not options:
        return printed
    return printed if printed in options.values() else next(iter(options.values()))


def derived_bytes(line: PrintedLine) -> dict[str, float]:
    """All layers; for models with sliding layers also what one hybrid group takes and full layers alone."""
    model = line.model
    if model is None:
        return {}
    try:
        per_layer = model.kv_bytes_per_token_per_layer(line.kv_dtype, line.tp)
    except LabError:  # ranks that this model cannot be cut into
        return {}
    if line.num_kv_layers is not None:
        layers = -(-line.num_kv_layers // line.pp)
        return {f"{layers} KV layers": layers * per_layer}
    if line.pp > 1:
        return _stage_bytes(line, model)
    options = {"all layers": float(model.kv_bytes_per_token(line.kv_dtype, line.tp))}
    if model.num_layers_of("sliding"):
        options["full-attention layers"] = float(
            model.kv_bytes_per_token(line.kv_dtype, line.tp, full_attention_only=True)
        )
        options["one hybrid group"] = float(kv_groups(model, line.kv_dtype, line.tp).bytes_per_token)
    if model.mla is not None and line.kv_dtype == "fp8":
        # vLLM's fp8_ds_mla: 512 fp8 values, four float32 scales, 64 rotary values in 16 bit
        options["fp8 latent, 16-bit rotary"] = 656.0 * model.num_layers
    return {name: value for name, value in options.items() if value}


def _stage_bytes(line: PrintedLine, model: ModelSpec) -> dict[str, float]:
    """A rank of a pipeline keeps the layers of its stage; the stage with the most comes first, since it fills up first."""
    parallel = Parallel(line.tp, line.pp)
    try:
        stages = [stage_kv_bytes_per_token(model, parallel, i, line.kv_dtype) for i in range(line.pp)]
    except LabError:  # more stages than layers
        return {}
    heaviest = sorted(set(stages), reverse=True)
    return {f"layers of stage {stages.index(size)} of {line.pp}": float(size) for size in heaviest if size}


def hybrid_groups(line: PrintedLine) -> KVGroups | None:
    """The hybrid groups of a model whose layers do not all keep the same, else None."""
    if line.model is None or not derived_bytes(line) or line.num_kv_layers is not None or line.pp > 1:
        return None
    groups = kv_groups(line.model, line.kv_dtype, line.tp)
    return groups if groups.num_groups > 1 else None
