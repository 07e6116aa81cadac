"""Mixture-of-experts fields: every family has its own names for the same five numbers."""

from __future__ import annotations

from labkit.models.fields import Fields
from labkit.models.spec import Experts

#: a router with more outputs is a mistake in the file
MOST_EXPERTS = 10_000


def read_experts(fields: Fields, model_type: str, num_layers: int) -> Experts | None:
    """None for a dense model. Raises `InputError` with the field."""
    count = next(
        (n for n in ("num_local_experts", "num_experts", "n_routed_experts") if fields.get(n) is not None),
        None,
    )
    if count is None:
        if model_type in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"):
            fields.fail(
                "num_experts", "is missing; a mixture-of-experts model needs the number of its experts"
            )
        return None
    num_experts = fields.count(count, maximum=MOST_EXPERTS)
    chosen = "num_experts_per_tok" if fields.get("num_experts_per_tok") is not None else "experts_per_token"
    per_token = fields.count(chosen)
    if per_token > num_experts:
        fields.fail(chosen, f"is {per_token}, more than the {num_experts} experts")
    size = fields.count("moe_intermediate_size", default=None) or fields.count("intermediate_size")
    shared, gate = _shared(fields, model_type, size)
    return Experts(
        num_experts=num_experts,
        num_experts_per_tok=per_token,
        intermediate_size=size,
        shared_intermediate_size=shared,
        shared_gate=gate,
        layers=frozenset(_expert_layers(fields, model_type, num_layers)),
    )


def _shared(fields: Fields, model_type: str, size: int) -> tuple[int, bool]:
    """Width of the shared expert, and whether a gate (one row) weighs it (Qwen)."""
    if fields.get("shared_expert_intermediate_size"):
        return fields.count("shared_expert_intermediate_size"), True
    for name in ("n_shared_experts", "shared_experts"):
        if fields.get(name):
            return fields.count(name, maximum=MOST_EXPERTS) * size, model_type.startswith("qwen")
    return 0, False


def _expert_layers(fields: Fields, model_type: str, num_layers: int) -> list[int]:
    """DeepSeek: from `first_k_dense_replace` on, every `moe_layer_freq`-th. Qwen: every `decoder_sparse_step`-th but
    those in `mlp_only_layers`. Others: all."""
    dense = set(fields.layers("mlp_only_layers"))
    first = fields.count("first_k_dense_replace", default=0, minimum=0) or fields.count(
        "first_dense_layers", default=0, minimum=0
    )
    every = fields.count("moe_layer_freq", default=1)
    step = fields.count("decoder_sparse_step", default=1)
    layers = range(num_layers)
    if model_type.startswith("deepseek"):
        return [layer for layer in layers if layer >= first and layer % every == 0]
    return [layer for layer in layers if layer not in dense and (layer + 1) % step == 0]
