"""Move a model's weights into the arena: one allocation each, kept for the whole run."""

from __future__ import annotations

from dataclasses import fields, replace

import torch

from labkit.serving.llama import LayerWeights, Weights
from labkit.serving.tensor_memory import TensorMemory


def weight_bytes(weights: Weights) -> int:
    """What the parameters need; a tied head counts once."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in _named(weights))


def place_weights(weights: Weights, memory: TensorMemory) -> Weights:
    """A copy of `weights` whose tensors lie in `memory` ("weights")."""

    def place(tensor: torch.Tensor, tag: str) -> torch.Tensor:
        block = memory.new("weights", tuple(tensor.shape), tensor.dtype, tag)
        return block.tensor.copy_(tensor)

    placed = {name: place(tensor, name) for name, tensor in _named(weights)}
    layers = [
        replace(
            layer,
            **{
                field.name: placed[f"layers.{i}.{field.name}"]
                for field in fields(layer)
                if getattr(layer, field.name) is not None
            },
        )
        for i, layer in enumerate(weights.layers)
    ]
    return Weights(placed["embedding"], layers, placed["final_norm"], placed.get("head", placed["embedding"]))


def _named(weights: Weights) -> list[tuple[str, torch.Tensor]]:
    rows = [("embedding", weights.embedding)]
    for i, layer in enumerate(weights.layers):
        for field in fields(LayerWeights):
            tensor = getattr(layer, field.name)
            if tensor is not None:
                rows.append((f"layers.{i}.{field.name}", tensor))
    rows.append(("final_norm", weights.final_norm))
    if weights.head is not weights.embedding:
        rows.append(("head", weights.head))
    return rows
