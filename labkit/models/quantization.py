"""How many bytes a quantised weight takes, scales and zero points included.

Only the matrices inside the layers are quantised; embeddings, output matrix, norms and routers stay in 16 bit
(and with mxfp4 everything but the experts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from labkit.errors import InputError, LabError, shown

if TYPE_CHECKING:
    from labkit.models.weights import Weight


@dataclass(frozen=True)
class Quantization:
    """`bits` a weight. `group_size` input values share a scale of `scale_bytes` and a zero point of `zero_bits`;
    group_size 0 is one scale a row (output channel), -1 one scale a matrix. `block` (rows, columns) shares one scale,
    as in DeepSeek's fp8."""

    name: str
    bits: float = 16.0
    group_size: int = -1
    scale_bytes: int = 0
    zero_bits: float = 0.0
    block: tuple[int, int] | None = None
    scope: Literal["none", "linear", "experts"] = "none"

    def covers(self, weight: Weight) -> bool:
        """Whether `weight` is stored in the quantised format."""
        if self.scope == "none" or not weight.quantizable:
            return False
        return self.scope == "linear" or weight.num_experts > 1

    def weight_bytes(self, weight: Weight, bytes_16bit: float = 2.0) -> float:
        """Bytes of one weight tensor (all its experts)."""
        if not self.covers(weight):
            return weight.numel * bytes_16bit
        rows, cols = weight.out_features, weight.in_features
        if self.block is not None:
            scales = -(-rows // self.block[0]) * -(-cols // self.block[1])
        elif self.group_size > 0:
            scales = rows * -(-cols // self.group_size)
        else:
            scales = rows if self.group_size == 0 else 1
        per_expert = rows * cols * self.bits / 8 + scales * (self.scale_bytes + self.zero_bits / 8)
        return per_expert * weight.num_experts


UNQUANTIZED = Quantization("none")
_SCHEMES = {
    "none": UNQUANTIZED,
    "fp8": Quantization("fp8", 8, -1, 4, scope="linear"),
    "fp8-block": Quantization("fp8-block", 8, -1, 4, block=(128, 128), scope="linear"),
    "int8": Quantization("int8", 8, 0, 4, scope="linear"),
    "awq": Quantization("awq", 4, 128, 2, 4, scope="linear"),
    "gptq": Quantization("gptq", 4, 128, 2, 4, scope="linear"),
    "mxfp4": Quantization("mxfp4", 4, 32, 1, scope="experts"),
}


def get_quantization(name: str) -> Quantization:
    """A usual scheme by name: fp8, fp8-block, int8 (w8a8), awq, gptq (4 bit, groups of 128), mxfp4, none."""
    if name not in _SCHEMES:
        raise LabError(f"unknown weight quantisation {name!r}; choose one of: {', '.join(sorted(_SCHEMES))}")
    return _SCHEMES[name]


def read_quantization(config: Mapping[str, Any], where: object) -> Quantization:
    """The `quantization_config` of a config.json. Raises `InputError` for a method the lab does not know."""
    method = str(config.get("quant_method", config.get("quantization", ""))).lower().replace("-", "_")
    if method == "fp8":
        block = config.get("weight_block_size")
        if block is None:
            return _SCHEMES["fp8"]
        if not (isinstance(block, list) and len(block) == 2 and all(type(b) is int and b > 0 for b in block)):
            raise InputError(
                where, f"is {shown(block)}; expected two positive numbers", field="weight_block_size"
            )
        return Quantization("fp8-block", 8, -1, 4, block=(block[0], block[1]), scope="linear")
    if method in ("awq", "gptq"):
        bits = config.get("bits", config.get("w_bit", 4))
        group = config.get("group_size", config.get("q_group_size", 128))
        if bits not in (2, 3, 4, 8):
            raise InputError(
                where, f"is {shown(bits)}; accepted are 2, 3, 4, 8", field="quantization_config.bits"
            )
        if not isinstance(group, int) or group < -1 or group == 0:
            raise InputError(
                where, f"is {shown(group)}; accepted is -1 or a positive number", field="group_size"
            )
        return Quantization(method, bits, 0 if group == -1 else group, 2, bits, scope="linear")
    if method == "mxfp4":
        return _SCHEMES["mxfp4"]
    if method in ("compressed_tensors", "fbgemm_fp8", "modelopt", "w8a8_int8", "bitsandbytes"):
        return _other(method, config, where)
    raise InputError(
        where,
        f"is {shown(method)}; known are awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8, gptq, modelopt, mxfp4",
        field="quantization_config.quant_method",
    )


def _other(method: str, config: Mapping[str, Any], where: object) -> Quantization:
    if method == "fbgemm_fp8":
        return Quantization("fp8", 8, 0, 4, scope="linear")
    if method == "w8a8_int8":
        return _SCHEMES["int8"]
    if method == "modelopt":
        return _SCHEMES["fp8"]
    if method == "bitsandbytes":
        if config.get("load_in_4bit"):
            return Quantization("bnb-4bit", 4, 64, 4, scope="linear")
        return Quantization("bnb-8bit", 8, 0, 4, scope="linear")
    groups = config.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping) or weights.get("num_bits") not in (2, 3, 4, 6, 8, 16):
        raise InputError(
            where,
            "has no weights.num_bits of 2 to 16; expected a compressed-tensors group",
            field="config_groups",
        )
    bits, size = weights["num_bits"], weights.get("group_size")
    per_channel = weights.get("strategy") == "channel"
    group_size = size if isinstance(size, int) and size > 0 else (0 if per_channel else -1)
    return Quantization(f"compressed-{bits}bit", bits, group_size, 2, scope="linear")
