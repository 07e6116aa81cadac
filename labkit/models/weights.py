"""The weight tensors of a model, one by one: what a checkpoint holds and how tensor parallelism cuts it.

Shapes follow the modelling code of `transformers`; the cut follows Megatron: q, k, v, gate and up by output, o and down
by input, vocabulary matrices by row; norms, routers and MLA's low-rank inputs on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from labkit.models.spec import ModelSpec

#: "kv" is cut by KV heads (copied when there are fewer heads than ranks); "none" is on every rank
Split = Literal["out", "in", "kv", "vocab", "none"]


@dataclass(frozen=True, slots=True)
class Weight:
    """`num_experts` matrices of `[out_features, in_features]` (a vector has in_features 1). `layer` is an index, or
    "first" and "last" for what lies before and after the layers. `quantizable`: a matrix of a linear layer."""

    name: str
    layer: int | Literal["first", "last"]
    out_features: int
    in_features: int = 1
    split: Split = "none"
    quantizable: bool = False
    num_experts: int = 1

    @property
    def numel(self) -> int:
        """Elements, over all experts."""
        return self.num_experts * self.out_features * self.in_features


def list_weights(model: ModelSpec) -> Iterator[Weight]:
    """All weights, in the order of a forward pass. Tied embeddings appear once."""
    arch, hidden = model.architecture, model.hidden_size
    norm = 2 * hidden if arch.layer_norm else hidden
    extra_rows = 8 if model.model_type == "mllama_text_model" else 0
    yield Weight("embed_tokens", "first", model.vocab_size + extra_rows, hidden, "vocab")
    if arch.learned_positions:
        yield Weight("embed_positions", "first", (model.max_position or 0) + 2, hidden)
    for layer, kind in enumerate(model.layer_kinds):
        if kind == "linear":
            yield from _linear_attention(model, layer)
        elif model.mla is not None:
            yield from _latent_attention(model, layer)
        else:
            yield from _attention(model, layer)
        if model.experts is not None and layer in model.experts.layers:
            yield from _experts(model, layer)
        else:
            yield from _mlp(model, layer, "mlp", model.intermediate_size)
        for index in range(arch.norms_per_layer):
            yield Weight(f"norm_{index}", layer, norm)
    yield Weight("final_norm", "last", norm)
    if not model.tied:
        yield Weight("lm_head", "last", model.vocab_size, hidden, "vocab")


def _attention(model: ModelSpec, layer: int) -> Iterator[Weight]:
    arch, hidden = model.architecture, model.hidden_size
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    yield Weight("q_proj", layer, query * (2 if arch.attention_gate else 1), hidden, "out", True)
    yield Weight("k_proj", layer, key, hidden, "kv", True)
    yield Weight("v_proj", layer, key, hidden, "kv", True)
    yield Weight("o_proj", layer, hidden, query, "in", True)
    if arch.qkv_bias:
        yield Weight("q_bias", layer, query, split="out")
        yield Weight("k_bias", layer, key, split="kv")
        yield Weight("v_bias", layer, key, split="kv")
    if arch.output_bias:
        yield Weight("o_bias", layer, hidden)
    if arch.qk_norm or layer in model.cross_attention_layers:
        yield Weight("qk_norm", layer, 2 * model.head_dim)
    if arch.sinks:
        yield Weight("sinks", layer, model.num_heads, split="out")
    if layer in model.cross_attention_layers:
        yield Weight("cross_attention_gates", layer, 2)


def _latent_attention(model: ModelSpec, layer: int) -> Iterator[Weight]:
    """DeepSeek V2/V3 (`modeling_deepseek.py`, `DeepseekV3Attention`)."""
    mla, hidden, heads = model.mla, model.hidden_size, model.num_heads
    assert mla is not None
    query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if mla.q_lora_rank:
        yield Weight("q_a_proj", layer, mla.q_lora_rank, hidden, "none", True)
        yield Weight("q_a_norm", layer, mla.q_lora_rank)
        yield Weight("q_b_proj", layer, query, mla.q_lora_rank, "out", True)
    else:
        yield Weight("q_proj", layer, query, hidden, "out", True)
    yield Weight("kv_a_proj", layer, mla.kv_lora_rank + mla.qk_rope_head_dim, hidden, "none", True)
    yield Weight("kv_a_norm", layer, mla.kv_lora_rank)
    wide = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    yield Weight("kv_b_proj", layer, wide, mla.kv_lora_rank, "out", True)
    yield Weight("o_proj", layer, hidden, heads * mla.v_head_dim, "in", True)


def _linear_attention(model: ModelSpec, layer: int) -> Iterator[Weight]:
    """Gated DeltaNet (`modeling_qwen3_next.py`, `Qwen3NextGatedDeltaNet`)."""
    la, hidden = model.linear, model.hidden_size
    assert la is not None
    key, value = la.num_key_heads * la.key_head_dim, la.num_value_heads * la.value_head_dim
    yield Weight("in_proj_qkvz", layer, 2 * key + 2 * value, hidden, "out", True)
    yield Weight("in_proj_ba", layer, 2 * la.num_value_heads, hidden, "out", True)
    yield Weight("conv1d", layer, 2 * key + value, la.conv_kernel_dim, "out")
    yield Weight("dt_bias", layer, la.num_value_heads, split="out")
    yield Weight("A_log", layer, la.num_value_heads, split="out")
    yield Weight("state_norm", layer, la.value_head_dim)
    yield Weight("out_proj", layer, hidden, value, "in", True)


def _mlp(model: ModelSpec, layer: int, name: str, size: int, num_experts: int = 1) -> Iterator[Weight]:
    hidden, arch = model.hidden_size, model.architecture
    rows = 2 * size if arch.gated_mlp else size
    yield Weight(f"{name}.gate_up", layer, rows, hidden, "out", True, num_experts)
    yield Weight(f"{name}.down", layer, hidden, size, "in", True, num_experts)
    if arch.mlp_bias:
        yield Weight(f"{name}.gate_up_bias", layer, rows, split="out", num_experts=num_experts)
        yield Weight(f"{name}.down_bias", layer, hidden, num_experts=num_experts)


def _experts(model: ModelSpec, layer: int) -> Iterator[Weight]:
    experts, hidden = model.experts, model.hidden_size
    assert experts is not None
    yield Weight("router", layer, experts.num_experts, hidden)
    if model.architecture.router_bias:
        yield Weight("router_bias", layer, experts.num_experts)
    yield from _mlp(model, layer, "experts", experts.intermediate_size, experts.num_experts)
    if experts.shared_intermediate_size:
        yield from _mlp(model, layer, "shared_expert", experts.shared_intermediate_size)
    if experts.shared_gate:
        yield Weight("shared_expert_gate", layer, 1, hidden)
