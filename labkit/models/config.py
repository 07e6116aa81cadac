"""`ModelSpec` from a Hugging Face `config.json`: which field means what, and one sentence where it does not fit.

Multimodal configs are read through their nested text config (the vision part is a weight the ledger lists apart).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.errors import InputError, LabError, shown
from labkit.json_text import read_json
from labkit.models.architectures import ARCHITECTURES, CLASS_NAMES, SAME_AS, Architecture, LayerKind
from labkit.models.dtypes import dtype_bytes
from labkit.models.experts import read_experts
from labkit.models.fields import Fields
from labkit.models.quantization import UNQUANTIZED, read_quantization
from labkit.models.spec import MLA, LinearAttention, ModelSpec

#: layers are kept one by one; the largest published model has 126
MOST_LAYERS = 10_000
#: numbers that only some architectures look at, with the least value that each may have
_PATTERNS = {
    "sliding_window_pattern": 1,
    "_sliding_window_pattern": 1,
    "full_attention_interval": 1,
    "max_window_layers": 0,
}

_LAYER_TYPES: dict[str, LayerKind] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "linear_attention": "linear",
}


def read_config(path: str | Path, name: str | None = None) -> ModelSpec:
    """A config.json, or a folder that holds one. Raises `InputError` with the field."""
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    config = read_json(path, "a Hugging Face config.json or a model's name")
    if not isinstance(config, dict):
        raise InputError(path, "is not a JSON object; expected a Hugging Face config.json")
    return from_config(
        config, name=name or str(config.get("name") or "") or path.parent.name or path.stem, where=path
    )


def from_config(config: Mapping[str, Any], name: str = "", where: object = "config") -> ModelSpec:
    """A parsed config. `where` stands in error messages. Raises `InputError` with the field."""
    outer = dict(config)
    inner = _text_config(outer, where)
    model_type = _model_type(inner, outer, where)
    arch = _traits(ARCHITECTURES[model_type], inner, where)
    fields = Fields({**arch.defaults, **_gemma3_defaults(model_type, inner), **inner}, where)

    num_layers = fields.count("num_hidden_layers", maximum=MOST_LAYERS)
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    mla = _read_mla(fields) if arch.mla else None
    kv_heads = heads if mla is not None else fields.count("num_key_value_heads", default=heads)
    if kv_heads > heads:
        fields.fail("num_key_value_heads", f"is {kv_heads}, more than num_attention_heads {heads}")
    if heads % kv_heads:
        fields.fail(
            "num_key_value_heads", f"is {kv_heads}, which does not divide num_attention_heads {heads}"
        )
    for pattern, least in _PATTERNS.items():
        fields.count(pattern, default=None, minimum=least)
    kinds = _layer_kinds(fields, arch, num_layers)
    windowed = "sliding" in kinds
    if windowed and not fields.get("sliding_window"):
        fields.fail("sliding_window", "is missing, and some layers are sliding; give the window in tokens")
    scheme = inner.get("quantization_config") or outer.get("quantization_config")
    if scheme is not None and not isinstance(scheme, Mapping):
        fields.fail("quantization_config", f"is {shown(scheme)}; expected an object with quant_method")
    dtype = _dtype(inner, outer, where)
    return ModelSpec(
        name=name or str(outer.get("_name_or_path") or model_type),
        model_type=model_type,
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(fields, arch, mla, hidden, heads),
        intermediate_size=_dense_size(fields, model_type),
        vocab_size=fields.count("vocab_size"),
        max_position=fields.count("max_position_embeddings", default=None),
        layer_kinds=kinds,
        architecture=arch,
        tied=fields.flag("tie_word_embeddings", default=bool(outer.get("tie_word_embeddings", arch.tied))),
        dtype=dtype,
        sliding_window=fields.count("sliding_window") if windowed else None,
        mla=mla,
        experts=read_experts(fields, model_type, num_layers),
        linear=_read_linear(fields) if "linear" in kinds else None,
        quantization=UNQUANTIZED if scheme is None else read_quantization(scheme, where),
        cross_attention_layers=frozenset(fields.layers("cross_attention_layers")),
        source=str(outer.get("source") or (where if isinstance(where, Path) else "")),
        note=str(outer.get("note", "")),
    )


def _text_config(outer: dict[str, Any], where: object) -> dict[str, Any]:
    """The innermost text config; real ones are nested at most twice."""
    for _ in range(8):
        keys = ("text_config", "language_config", "llm_config", "thinker_config")
        key = next((key for key in keys if outer.get(key) is not None), None)
        if key is None:
            return outer
        if not isinstance(outer[key], Mapping):
            raise InputError(where, "is not an object; expected the nested text config", field=key)
        outer = dict(outer[key])
        if "hidden_size" in outer:
            return outer
    raise InputError(where, "is nested too deeply; expected the text config", field="text_config")


def _model_type(inner: Mapping[str, Any], outer: Mapping[str, Any], where: object) -> str:
    candidates = [inner.get("model_type"), outer.get("model_type")]
    for config in (inner, outer):
        candidates += [CLASS_NAMES.get(str(c)) for c in _class_names(config, where)]
    for candidate in candidates:
        candidate = SAME_AS.get(str(candidate), str(candidate))
        if candidate in ARCHITECTURES:
            return candidate
    given = inner.get("model_type") or outer.get("model_type") or outer.get("architectures")
    known = ", ".join(sorted(ARCHITECTURES))
    if not given:
        raise InputError(where, f"is missing; known architectures are {known}", field="model_type")
    raise InputError(where, f"unknown architecture {shown(given)}; known are {known}", field="model_type")


def _class_names(config: Mapping[str, Any], where: object) -> list[str]:
    """`architectures`: a list of class names; a single name is taken as one."""
    names = config.get("architectures") or []
    if isinstance(names, str):
        return [names]
    if not isinstance(names, list):
        raise InputError(where, f"is {shown(names)}; expected a list of class names", field="architectures")
    return [str(name) for name in names]


def _dtype(inner: Mapping[str, Any], outer: Mapping[str, Any], where: object) -> str:
    for config in (inner, outer):
        for name in ("torch_dtype", "dtype"):
            if config.get(name):
                try:
                    dtype_bytes(str(config[name]))
                except LabError as error:
                    raise InputError(where, str(error), field=name) from None
                return str(config[name])
    return "bfloat16"


def _traits(arch: Architecture, inner: Mapping[str, Any], where: object) -> Architecture:
    """Fields that a config may say itself override what its architecture implies. Qwen2's bias is on q, k and v only."""
    fields = Fields(inner, where)
    bias = fields.flag("attention_bias", default=None)
    if bias is not None and not (arch.qkv_bias and not arch.output_bias):
        arch = replace(arch, qkv_bias=bias, output_bias=bias)
    if (qkv := fields.flag("qkv_bias", default=None)) is not None:
        arch = replace(arch, qkv_bias=qkv)
    if (enable := fields.flag("enable_bias", default=None)) is not None:
        arch = replace(arch, qkv_bias=enable, output_bias=enable, mlp_bias=enable)
    if (mlp := fields.flag("mlp_bias", default=None)) is not None:
        arch = replace(arch, mlp_bias=mlp)
    if arch.mla and "topk_method" in inner:
        arch = replace(arch, router_bias=inner["topk_method"] == "noaux_tc")
    if (router := fields.flag("router_bias", default=None)) is not None:
        arch = replace(arch, router_bias=router)
    return arch


def _gemma3_defaults(model_type: str, inner: Mapping[str, Any]) -> dict[str, Any]:
    """Published small Gemma 3 configs leave out the heads altogether; `Gemma3TextConfig` then means 8, 4 and 256."""
    if model_type.startswith("gemma3") and "num_attention_heads" not in inner and "head_dim" not in inner:
        return {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    return {}


def _head_dim(fields: Fields, arch: Architecture, mla: MLA | None, hidden: int, heads: int) -> int:
    if mla is not None:
        return mla.qk_nope_head_dim + mla.qk_rope_head_dim
    head_dim = fields.count("head_dim", default=None)
    if head_dim is not None:
        return head_dim
    if arch.needs_head_dim:
        fields.fail(
            "head_dim", f"is missing; this architecture sets it itself ({hidden}/{heads} would be a guess)"
        )
    if hidden % heads:
        fields.fail(
            "head_dim", f"is missing, and hidden_size {hidden} is not a multiple of the {heads} heads"
        )
    return hidden // heads


def _dense_size(fields: Fields, model_type: str) -> int:
    if model_type == "opt":
        return fields.count("ffn_dim" if "ffn_dim" in fields.values else "intermediate_size")
    if "intermediate_size" not in fields.values and fields.get("moe_intermediate_size"):
        return fields.count("moe_intermediate_size")
    return fields.count("intermediate_size")


def _layer_kinds(fields: Fields, arch: Architecture, num_layers: int) -> tuple[LayerKind, ...]:
    given = fields.get("layer_types")
    if given is None:
        return tuple(arch.layer_kind(fields.values, layer) for layer in range(num_layers))
    if not isinstance(given, list) or len(given) != num_layers:
        fields.fail("layer_types", f"does not have one entry for each of the {num_layers} layers")
    for kind in given:
        if not isinstance(kind, str) or kind not in _LAYER_TYPES:
            fields.fail("layer_types", f"has {shown(kind)}; known are {', '.join(_LAYER_TYPES)}")
    return tuple(_LAYER_TYPES[kind] for kind in given)


def _read_mla(fields: Fields) -> MLA:
    return MLA(
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_rope_head_dim=fields.count("qk_rope_head_dim"),
        qk_nope_head_dim=fields.count("qk_nope_head_dim"),
        v_head_dim=fields.count("v_head_dim"),
        q_lora_rank=fields.count("q_lora_rank", default=None),
    )


def _read_linear(fields: Fields) -> LinearAttention:
    return LinearAttention(
        num_key_heads=fields.count("linear_num_key_heads"),
        num_value_heads=fields.count("linear_num_value_heads"),
        key_head_dim=fields.count("linear_key_head_dim"),
        value_head_dim=fields.count("linear_value_head_dim"),
        conv_kernel_dim=fields.count("linear_conv_kernel_dim"),
    )
