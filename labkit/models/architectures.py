"""What a Hugging Face `model_type` implies without saying so in `config.json`: biases, norms, ties, layer pattern.

Read from the modelling code of `transformers` (`models/<type>/configuration_<type>.py` and `modeling_<type>.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

LayerKind = Literal["full", "sliding", "linear"]
Config = dict[str, Any]


def all_full(config: Config, layer: int) -> LayerKind:
    """Every layer sees the whole context."""
    return "full"


def mistral(config: Config, layer: int) -> LayerKind:
    """A window, when there is one, holds on every layer (v0.1); later versions set it to null."""
    return "sliding" if config.get("sliding_window") else "full"


def qwen2(config: Config, layer: int) -> LayerKind:
    """`sliding_window` counts only with `use_sliding_window`, and only from layer `max_window_layers` on."""
    windowed = config.get("use_sliding_window") and config.get("sliding_window")
    return "sliding" if windowed and layer >= config.get("max_window_layers", 28) else "full"


def every_other(config: Config, layer: int) -> LayerKind:
    """Even layers see the sliding window, odd ones everything (Gemma 2, gpt-oss)."""
    return "sliding" if layer % 2 == 0 else "full"


def gemma3(config: Config, layer: int) -> LayerKind:
    """One full layer after five sliding ones, or as the config says."""
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    return "full" if (layer + 1) % pattern == 0 else "sliding"


def qwen3_next(config: Config, layer: int) -> LayerKind:
    """One full layer after three linear ones, or as the config says."""
    return "full" if (layer + 1) % config.get("full_attention_interval", 4) == 0 else "linear"


@dataclass(frozen=True)
class Architecture:
    """Traits of one `model_type`. `needs_head_dim`: hidden_size / heads would be wrong, so the field must be there."""

    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    gated_mlp: bool = True
    qk_norm: bool = False
    sinks: bool = False
    router_bias: bool = False
    norms_per_layer: int = 2
    layer_norm: bool = False
    learned_positions: bool = False
    mla: bool = False
    attention_gate: bool = False
    needs_head_dim: bool = False
    layer_kind: Callable[[Config, int], LayerKind] = all_full
    #: fields that `transformers` fills in when config.json leaves them out
    defaults: Config = field(default_factory=dict)


_GEMMA3 = Architecture(
    tied=True,
    qk_norm=True,
    norms_per_layer=4,
    needs_head_dim=True,
    layer_kind=gemma3,
    defaults={"vocab_size": 262208, "sliding_window": 4096, "max_position_embeddings": 131072},
)
_DEEPSEEK_V3 = Architecture(mla=True, router_bias=True)
_QWEN3 = Architecture(qk_norm=True, needs_head_dim=True, layer_kind=qwen2)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "mllama_text_model": Architecture(),
    "mistral": Architecture(layer_kind=mistral),
    "mixtral": Architecture(layer_kind=mistral),
    "opt": Architecture(
        tied=True,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        gated_mlp=False,
        layer_norm=True,
        learned_positions=True,
    ),
    "qwen2": Architecture(qkv_bias=True, layer_kind=qwen2),
    "qwen2_moe": Architecture(qkv_bias=True, layer_kind=qwen2),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_next": Architecture(qk_norm=True, attention_gate=True, needs_head_dim=True, layer_kind=qwen3_next),
    "gemma": Architecture(tied=True, needs_head_dim=True),
    "gemma2": Architecture(
        tied=True,
        norms_per_layer=4,
        needs_head_dim=True,
        layer_kind=every_other,
        defaults={"sliding_window": 4096},
    ),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "deepseek_v2": Architecture(mla=True),
    "deepseek_v3": _DEEPSEEK_V3,
    "gpt_oss": Architecture(
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        sinks=True,
        router_bias=True,
        needs_head_dim=True,
        layer_kind=every_other,
        defaults={"sliding_window": 128},
    ),
}

#: multimodal and renamed families whose text part is one of the above
SAME_AS = {
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "kimi_k2": "deepseek_v3",
    "mllama": "mllama_text_model",
}

#: class name in `architectures` -> `model_type`, for configs that carry only the former
CLASS_NAMES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "OPTForCausalLM": "opt",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GptOssForCausalLM": "gpt_oss",
    "MllamaForConditionalGeneration": "mllama_text_model",
}
