"""A Llama-style decoder in plain torch: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

The model does not know where keys and values live. It hands each layer's q, k and v to `attend`, which returns the
attention output: an executor writes a cache there and reads it; `plain_attend` keeps nothing and is what every cache is
compared with. Shapes: n tokens of the batch in a row, whoever they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from labkit.serving.llama_config import LlamaConfig

#: (layer, q [n, num_heads, head_dim], k and v [n, num_kv_heads, head_dim]) -> [n, num_heads, head_dim]
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Scratch(Protocol):
    """Where intermediate results live: `TensorMemory`, or plain torch memory."""

    def borrowed(
        self, kind: str, shape: tuple[int, ...], dtype: torch.dtype, tag: str = ""
    ) -> AbstractContextManager[torch.Tensor]: ...


@dataclass(slots=True)
class LayerWeights:
    """Matrices are [out, in]. `qkv` stacks q, k and v; `gate_up` stacks gate and up."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    # latent attention: `qkv` stacks the queries and the latent row then
    latent_norm: torch.Tensor | None = None
    key_up: torch.Tensor | None = None
    value_up: torch.Tensor | None = None


@dataclass(slots=True)
class Weights:
    """All tensors of a model, layers in order."""

    embedding: torch.Tensor
    layers: list[LayerWeights]
    final_norm: torch.Tensor
    #: the embedding itself where the two are tied
    head: torch.Tensor


class Llama:
    """`forward` computes the final hidden state of every row; `logits` of chosen rows."""

    def __init__(self, config: LlamaConfig, weights: Weights):
        self.config, self.weights = config, weights
        self.dtype = weights.embedding.dtype
        device = weights.embedding.device
        angles = torch.outer(torch.arange(config.max_model_len).double(), inverse_frequencies(config))
        self.cos, self.sin = angles.cos().float().to(device), angles.sin().float().to(device)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        scratch: Scratch,
        x: torch.Tensor,
        reduced: torch.Tensor,
    ) -> torch.Tensor:
        """token_ids, positions [n] int64; `x [n, hidden_size]` is the residual stream, written and returned; `reduced
        [>= n, hidden_size]` takes the row-parallel results, which an all-reduce would sum over ranks."""
        config, weights, dtype, n = self.config, self.weights, self.dtype, len(token_ids)
        cos, sin = self.cos[positions][:, None].to(dtype), self.sin[positions][:, None].to(dtype)
        y, eps, size = reduced[:n], config.rms_norm_eps, (config.hidden_size,)
        torch.index_select(weights.embedding, 0, token_ids, out=x)
        q_size, kv_size = config.q_size, config.kv_size
        for index, layer in enumerate(weights.layers):
            with scratch.borrowed("workspace", (n, len(layer.qkv)), dtype, "qkv") as qkv:
                _linear(F.rms_norm(x, size, layer.input_norm, eps), layer.qkv, layer.qkv_bias, qkv)
                if config.mla is not None:
                    q, row = latent_rows(qkv, layer, config, cos, sin)
                    out = attend(index, q, row, row)
                    _linear(out.flatten(1), layer.output, None, y)
                else:
                    q, k, v = qkv.split((q_size, kv_size, kv_size), 1)
                    q, k, v = (t.unflatten(1, (-1, config.head_dim)) for t in (q, k, v))
                    if layer.q_norm is not None and layer.k_norm is not None:
                        q = F.rms_norm(q, (config.head_dim,), layer.q_norm, eps)
                        k = F.rms_norm(k, (config.head_dim,), layer.k_norm, eps)
                    out = attend(index, rotate(q, cos, sin), rotate(k, cos, sin), v)
                    _linear(out.flatten(1), layer.output, layer.output_bias, y)
            x += y
            with scratch.borrowed("workspace", (n, 2 * config.intermediate_size), dtype, "gate_up") as both:
                _linear(F.rms_norm(x, size, layer.post_norm, eps), layer.gate_up, None, both)
                gate, up = both.chunk(2, 1)
                _linear(F.silu(gate).mul_(up), layer.down, None, y)
            x += y
        return x

    def logits(self, hidden: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        """`hidden [m, hidden_size]` -> [m, vocab_size] float32."""
        config = self.config
        normed = F.rms_norm(hidden, (config.hidden_size,), self.weights.final_norm, config.rms_norm_eps)
        with scratch.borrowed("workspace", (len(hidden), config.vocab_size), self.dtype, "logits") as out:
            return torch.mm(normed, self.weights.head.t(), out=out).float().clone()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `x [n, heads, head_dim]`: element i is paired with i + head_dim / 2 (the layout of Hugging
    Face checkpoints); `cos, sin [n, 1, head_dim / 2]`."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def latent_rows(
    qkv: torch.Tensor, layer: LayerWeights, config: LlamaConfig, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries `[n, num_heads, nope_dim + rope_dim]` and what is cached, `[n, 1, latent_dim + rope_dim]`."""
    shape = config.mla
    assert shape is not None
    assert layer.latent_norm is not None
    row_dim = shape.latent_dim + shape.rope_dim
    q, row = qkv.split((qkv.shape[1] - row_dim, row_dim), 1)
    nope, rope = q.unflatten(1, (config.num_heads, -1)).split((shape.nope_dim, shape.rope_dim), -1)
    latent, key = row.split((shape.latent_dim, shape.rope_dim), 1)
    latent = F.rms_norm(latent, (shape.latent_dim,), layer.latent_norm, config.rms_norm_eps)
    q = torch.cat((nope, rotate(rope, cos, sin)), -1)
    return q, torch.cat((latent[:, None], rotate(key[:, None], cos, sin)), -1)


def inverse_frequencies(config: LlamaConfig) -> torch.Tensor:
    """[head_dim / 2] float64, Llama 3.1's stretching applied where the config asks for it."""
    steps = torch.arange(0, config.rotary_dim, 2).double() / config.rotary_dim
    frequencies = config.rope_theta**-steps
    rule = config.rope_scaling
    if rule is None:
        return frequencies
    if rule.kind == "linear":
        return frequencies / rule.factor
    wavelengths = 2 * torch.pi / frequencies
    blend = (rule.original_max_len / wavelengths - rule.low_freq_factor) / (
        rule.high_freq_factor - rule.low_freq_factor
    )
    blend = blend.clamp(0, 1)  # 0: stretched, 1: kept
    return frequencies * (blend + (1 - blend) / rule.factor)


def random_weights(
    config: LlamaConfig, rng: np.random.Generator, dtype: torch.dtype = torch.float32
) -> Weights:
    """Gaussian with variance 1 / fan-in, so that activations stay near 1; norms are 1, biases small."""

    def draw(*shape: int, std: float | None = None) -> torch.Tensor:
        scale = shape[-1] ** -0.5 if std is None else std
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)).to(dtype)

    hidden, heads, mla = config.hidden_size, config.num_heads, config.mla
    qkv, out = config.q_size + 2 * config.kv_size, config.q_size
    if mla is not None:
        row = mla.latent_dim + mla.rope_dim
        qkv, out = heads * (mla.nope_dim + mla.rope_dim) + row, heads * mla.value_dim
    layers = [
        LayerWeights(
            input_norm=1 + draw(hidden, std=0.1),
            qkv=draw(qkv, hidden),
            output=draw(hidden, out),
            post_norm=1 + draw(hidden, std=0.1),
            gate_up=draw(2 * config.intermediate_size, hidden),
            down=draw(hidden, config.intermediate_size),
            qkv_bias=draw(qkv, std=0.1) if config.qkv_bias else None,
            output_bias=draw(hidden, std=0.1) if config.output_bias else None,
            q_norm=1 + draw(config.head_dim, std=0.1) if config.qk_norm else None,
            k_norm=1 + draw(config.head_dim, std=0.1) if config.qk_norm else None,
            latent_norm=1 + draw(mla.latent_dim, std=0.1) if mla else None,
            key_up=draw(heads, mla.nope_dim, mla.latent_dim) if mla else None,
            value_up=draw(heads, mla.value_dim, mla.latent_dim) if mla else None,
        )
        for _ in range(config.num_layers)
    ]
    embedding = draw(config.vocab_size, hidden, std=1.0)
    head = embedding if config.tie_embeddings else draw(config.vocab_size, hidden)
    return Weights(embedding, layers, 1 + draw(hidden, std=0.1), head)


# --- the forward pass without a cache ----------------------------------------------------------------------------------


class HeapScratch:
    """Plain torch memory."""

    @contextmanager
    def borrowed(self, kind: str, shape: tuple[int, ...], dtype: torch.dtype, tag: str = "") -> Any:
        yield torch.empty(shape, dtype=dtype)


def plain_attend(config: LlamaConfig) -> Attend:
    """Causal attention of one request over exactly the rows given, nothing kept."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        group = config.num_heads // config.num_kv_heads
        keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        rows = torch.arange(len(q))
        visible = rows[None, :] <= rows[:, None]
        if config.window is not None:
            visible &= rows[None, :] > rows[:, None] - config.window
        scores = torch.einsum("qhd,khd->hqk", q, keys).float() * config.head_dim**-0.5
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1).to(v.dtype)
        return torch.einsum("hqk,khd->qhd", weights, values)

    return attend


@torch.inference_mode()
def plain_logits(model: Llama, token_ids: Sequence[int], attend: Attend | None = None) -> torch.Tensor:
    """Logits of every position of one request, computed in one pass without a cache: [len(token_ids), vocab_size]."""
    ids = torch.tensor(token_ids, dtype=torch.int64)
    scratch = HeapScratch()
    x, reduced = torch.empty((2, len(ids), model.config.hidden_size), dtype=model.dtype)
    model.forward(ids, torch.arange(len(ids)), attend or plain_attend(model.config), scratch, x, reduced)
    return model.logits(x, scratch)


def plain_generate(model: Llama, prompt: Sequence[int], num_tokens: int) -> tuple[list[int], float]:
    """Greedy continuation without any cache: every token from a full forward pass over all before it. Returns the tokens
    and the smallest margin between the best and the second best logit on the way."""
    known, margin = list(prompt), float("inf")
    for _ in range(num_tokens):
        best = plain_logits(model, known)[-1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        known.append(int(best.indices[0]))
    return known[len(prompt) :], margin


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)
