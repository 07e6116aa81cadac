"""`ModelSpec` from a Hugging Face `config.json`: which field means what, and one sentence where it does not fit.

Multimodal configs are read through their nested text config (the vision part is a weight the ledger lists apart).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.models.architectures import ARCHITECTURES, CLASS_NAMES, SAME_AS, Architecture, LayerKind
from labkit.models.dtypes import dtype_bytes
from labkit.models.experts import read_experts
from labkit.models.fields import Fields
from labkit.models.quantization import UNQUANTIZED, read_quantization
from labkit.models.spec import MLA, LinearAttention, ModelSpec

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
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(path, "no such file; give a Hugging Face config.json or a model's name") from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise InputError(path, "is not JSON; expected a Hugging Face config.json") from None
    if not isinstance(config, dict):
        raise InputError(path, "is not a JSON object; expected a Hugging Face config.json")
    return from_config(config, name=name or config.get("name") or path.parent.name or path.stem, where=path)


def from_config(config: Mapping[str, Any], name: str = "", where: object = "config") -> ModelSpec:
    """A parsed config. `where` stands in error messages. Raises `InputError` with the field."""
    outer = dict(config)
    inner = _text_config(outer, where)
    model_type = _model_type(inner, outer, where)
    arch = _traits(ARCHITECTURES[model_type], inner, where)
    fields = Fields({**arch.defaults, **_gemma3_defaults(model_type, inner), **inner}, where)

    num_layers = fields.count("num_hidden_layers")
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
    kinds = _layer_kinds(fields, arch, num_layers)
    windowed = "sliding" in kinds
    if windowed and not fields.get("sliding_window"):
        fields.fail("sliding_window", "is missing, and some layers are sliding; give the window in tokens")
    scheme = inner.get("quantization_config") or outer.get("quantization_config")
    dtype = str(
        inner.get("torch_dtype")
        or inner.get("dtype")
        or outer.get("torch_dtype")
        or outer.get("dtype")
        or "bfloat16"
    )
    dtype_bytes(dtype)
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
        quantization=read_quantization(scheme, where) if isinstance(scheme, Mapping) else UNQUANTIZED,
        cross_attention_layers=frozenset(inner.get("cross_attention_layers") or ()),
        source=str(outer.get("source", "")),
        note=str(outer.get("note", "")),
    )


def _text_config(outer: dict[str, Any], where: object) -> dict[str, Any]:
    for key in ("text_config", "language_config", "llm_config", "thinker_config"):
        nested = outer.get(key)
        if nested is None:
            continue
        if not isinstance(nested, Mapping):
            raise InputError(where, "is not an object; expected the nested text config", field=key)
        return _text_config(dict(nested), where) if "hidden_size" not in nested else dict(nested)
    return outer


def _model_type(inner: Mapping[str, Any], outer: Mapping[str, Any], where: object) -> str:
    candidates = [inner.get("model_type"), outer.get("model_type")]
    for config in (inner, outer):
        candidates += [CLASS_NAMES.get(str(c)) for c in config.get("architectures") or ()]
    for candidate in candidates:
        candidate = SAME_AS.get(str(candidate), candidate)
        if candidate in ARCHITECTURES:
            return str(candidate)
    given = inner.get("model_type") or outer.get("model_type") or outer.get("architectures")
    known = ", ".join(sorted(ARCHITECTURES))
    if not given:
        raise InputError(where, f"is missing; known architectures are {known}", field="model_type")
    raise InputError(where, f"unknown architecture {given!r}; known are {known}", field="model_type")


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
        if kind not in _LAYER_TYPES:
            fields.fail("layer_types", f"has {kind!r}; known are {', '.join(_LAYER_TYPES)}")
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
