"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): the cache keeps one latent row a token.

    row = [latent, rotary key]                               what is cached: latent_dim + rope_dim
    key of head h   = [key_up[h] @ latent, rotary key]       value of head h = value_up[h] @ latent

Expanding keys and values from the cache would cost what MHA costs. Instead `key_up` is moved to the query's side
("absorbed"): q_nope . (key_up @ latent) = (key_up^T @ q_nope) . latent, so that heads attend to latents directly, and
`value_up` is applied to the result. `plain_mla_attend` expands, as the definition says: the two must agree.
"""

from __future__ import annotations

import torch

from labkit.serving.llama import Attend, LayerWeights, Llama
from labkit.serving.llama_config import MLAShape


def absorb(layer: LayerWeights, shape: MLAShape, q: torch.Tensor) -> torch.Tensor:
    """`q [n, heads, nope_dim + rope_dim] -> [n, heads, latent_dim + rope_dim]`: queries on latent rows."""
    assert layer.key_up is not None
    nope, rope = q.split((shape.nope_dim, shape.rope_dim), -1)
    return torch.cat((torch.einsum("nhd,hdl->nhl", nope, layer.key_up), rope), -1)


def expand(layer: LayerWeights, attended: torch.Tensor) -> torch.Tensor:
    """`attended [n, heads, latent_dim] -> [n, heads, value_dim]`."""
    assert layer.value_up is not None
    return torch.einsum("nhl,hdl->nhd", attended, layer.value_up)


def plain_mla_attend(model: Llama) -> Attend:
    """Causal attention over the rows given, keys and values expanded head by head, nothing kept."""
    shape = model.config.mla
    assert shape is not None

    def attend(index: int, q: torch.Tensor, row: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        layer = model.weights.layers[index]
        assert layer.key_up is not None
        assert layer.value_up is not None
        latent, rotary = row[:, 0].split((shape.latent_dim, shape.rope_dim), -1)
        keys = torch.einsum("nl,hdl->nhd", latent, layer.key_up)
        keys = torch.cat((keys, rotary[:, None].expand(-1, q.shape[1], -1)), -1)
        values = torch.einsum("nl,hdl->nhd", latent, layer.value_up)
        scores = torch.einsum("qhd,khd->hqk", q, keys) * shape.scale
        rows = torch.arange(len(q))
        weights = scores.masked_fill(rows[None, :] > rows[:, None], float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)

    return attend
