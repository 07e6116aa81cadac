"""The shape of a Llama-style model, and how it is read from a Hugging Face `config.json`.

Three architectures share one forward pass: Llama (optional attention bias), Qwen2 (bias on q, k and v), Qwen3 (RMSNorm on
each head's q and k). What would silently compute something else (another activation, a sliding window, an unknown rotary
scaling) is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.json_text import read_json

MODEL_TYPES = ("llama", "qwen2", "qwen3")
_ABSENT = object()


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's rule: wavelengths above `original_max_len / low_freq_factor` are stretched by `factor`, those below
    `original_max_len / high_freq_factor` are kept, in between it is blended. `kind="linear"` stretches all."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 8192


@dataclass(frozen=True)
class MLAShape:
    """Latent attention: a head's query has `nope_dim` plain and `rope_dim` rotary elements, its value `value_dim`."""

    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int

    @property
    def scale(self) -> float:
        """Softmax scale: query and key have `nope_dim + rope_dim` entries a head."""
        return float((self.nope_dim + self.rope_dim) ** -0.5)


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes in elements. `num_heads` must be a multiple of `num_kv_heads`: 1 KV head is MQA, as many as heads is MHA."""

    vocab_size: int = 1024
    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 704
    max_model_len: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    #: sliding attention window in tokens, all layers
    window: int | None = None
    #: latent attention instead of grouped queries (`num_kv_heads` and `head_dim` then say nothing)
    mla: MLAShape | None = None

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
        for field in (*sizes, "intermediate_size", "max_model_len"):
            _positive_int("model config", field, getattr(self, field))
        if self.num_kv_heads > self.num_heads or self.num_heads % self.num_kv_heads:
            raise InputError(
                "model config",
                f"is {self.num_kv_heads}; num_heads ({self.num_heads}) must be a multiple of it",
                field="num_kv_heads",
            )
        if self.head_dim % 2:
            raise InputError(
                "model config", f"is {self.head_dim}; rotary embedding needs an even one", field="head_dim"
            )
        if self.mla is not None and self.window is not None:
            raise InputError(
                "model config", "is set; latent attention has no sliding window here", field="window"
            )

    @property
    def rotary_dim(self) -> int:
        """Entries of a head that are rotated."""
        return self.head_dim if self.mla is None else self.mla.rope_dim

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @classmethod
    def from_json(cls, path: Path) -> LlamaConfig:
        """Read a Hugging Face `config.json`. Raises `InputError` naming file and field."""
        fields = read_json(path, "a directory with config.json and safetensors")
        if not isinstance(fields, dict):
            raise InputError(path, "is not a JSON object")
        return cls.from_fields(fields, where=str(path))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], where: str = "config") -> LlamaConfig:
        """The same from fields already read."""
        kind = fields.get("model_type", _ABSENT)
        if kind not in MODEL_TYPES:
            shown = "is missing" if kind is _ABSENT else f"is {kind!r}"
            raise InputError(where, f"{shown}; accepted are {', '.join(MODEL_TYPES)}", field="model_type")
        if fields.get("hidden_act", "silu") != "silu":
            raise InputError(where, f"is {fields['hidden_act']!r}; accepted is 'silu'", field="hidden_act")
        for field in ("mlp_bias", "use_sliding_window", "quantization_config"):
            if fields.get(field):
                raise InputError(where, "is set; this model does not support it", field=field)

        def integer(field: str, default: object = _ABSENT) -> int:
            value = fields.get(field, default)
            if value is None and default is not _ABSENT:
                value = default
            if value is _ABSENT:
                raise InputError(where, "is missing; a positive integer is needed", field=field)
            return _positive_int(where, field, value)

        hidden, heads = integer("hidden_size"), integer("num_attention_heads")
        kv_heads = integer("num_key_value_heads", heads)
        if kv_heads > heads or heads % kv_heads:
            raise InputError(
                where,
                f"is {kv_heads}; num_attention_heads ({heads}) must be a multiple of it",
                field="num_key_value_heads",
            )
        if fields.get("head_dim") is None and hidden % heads:
            raise InputError(
                where,
                f"is missing, and hidden_size {hidden} is not a multiple of num_attention_heads {heads}",
                field="head_dim",
            )
        has_bias = bool(fields.get("attention_bias", False))
        theta, scaling = _rope(fields, where)
        return cls(
            vocab_size=integer("vocab_size"),
            hidden_size=hidden,
            num_layers=integer("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=integer("head_dim", hidden // heads),
            intermediate_size=integer("intermediate_size"),
            max_model_len=integer("max_position_embeddings", 2048),
            rms_norm_eps=_positive_float(where, "rms_norm_eps", fields.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            qkv_bias=has_bias or kind == "qwen2",
            output_bias=has_bias,
            qk_norm=kind == "qwen3",
            tie_embeddings=bool(fields.get("tie_word_embeddings", False)),
        )


def _rope(fields: Mapping[str, Any], where: str) -> tuple[float, RopeScaling | None]:
    """Both spellings: `rope_theta` with `rope_scaling`, or both inside `rope_parameters`."""
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    if not isinstance(scaling, Mapping):
        raise InputError(where, "is not an object", field=name)
    theta = fields.get("rope_theta", scaling.get("rope_theta", 10_000.0))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    theta = _positive_float(where, "rope_theta", theta)
    if kind == "default":
        return theta, None
    if kind not in ("linear", "llama3"):
        raise InputError(where, f"has type {kind!r}; accepted are default, linear, llama3", field=name)
    if "factor" not in scaling:
        raise InputError(where, "has no factor", field=name)
    factor = _positive_float(where, f"{name}.factor", scaling["factor"])
    if kind == "linear":
        return theta, RopeScaling("linear", factor)
    given = {}
    for ours, theirs in (
        ("low_freq_factor", "low_freq_factor"),
        ("high_freq_factor", "high_freq_factor"),
        ("original_max_len", "original_max_position_embeddings"),
    ):
        if theirs not in scaling:
            raise InputError(where, f"has no {theirs}", field=name)
        given[ours] = _positive_float(where, f"{name}.{theirs}", scaling[theirs])
    return theta, RopeScaling(
        "llama3", factor, given["low_freq_factor"], given["high_freq_factor"], int(given["original_max_len"])
    )


def _positive_int(where: str, field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(where, f"is {value!r}; a positive integer is needed", field=field)
    return value


def _positive_float(where: str, field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InputError(where, f"is {value!r}; a positive number is needed", field=field)
    return float(value)
