"""Real weights from a Hugging Face directory: three shapes, written here, and what is said about broken ones.

The expected logits come from a second forward pass in this file, written from the checkpoint's own names and layout
(separate projections, one token and one head at a time, float64), so that a mistake in stacking or pairing shows.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from labkit.errors import InputError
from labkit.kv import make_kv_cache
from labkit.serving.base import Chunk, StepPlan
from labkit.serving.llama import Llama, inverse_frequencies, plain_logits
from labkit.serving.llama_config import LlamaConfig
from labkit.serving.llama_weights import load_hugging_face
from labkit.serving.tensor_executor import TensorExecutor
from labkit.serving.tensor_memory import TensorMemory
from labkit.units import MIB

HIDDEN, HEADS, KV_HEADS, INNER, VOCAB, LAYERS = 24, 4, 2, 40, 50, 2
CONFIGS = {
    "llama": {"model_type": "llama", "rope_theta": 500000.0},
    "llama-bias": {"model_type": "llama", "attention_bias": True, "tie_word_embeddings": True},
    "llama-3.1-rope": {
        "model_type": "llama",
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "qwen2": {"model_type": "qwen2", "rope_theta": 1000000.0, "use_sliding_window": False},
    "qwen3": {
        "model_type": "qwen3",
        "head_dim": 10,
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    },
}


def fields(name: str) -> dict:
    return {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": INNER,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        **CONFIGS[name],
    }


def write(directory, name: str, *, shards: int = 1):
    """A checkpoint of that shape with the field's own tensor names; returns its tensors."""
    rng, config = np.random.default_rng(3), fields(name)
    dim = config.get("head_dim", HIDDEN // HEADS)
    tensors = {}

    def add(key: str, *shape: int, about: float = 0.0):
        drawn = about + rng.standard_normal(shape) * (shape[-1] ** -0.5 if about == 0.0 else 0.1)
        tensors[key] = torch.from_numpy(drawn.astype(np.float32))

    add("model.embed_tokens.weight", VOCAB, HIDDEN)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for side, size in (("q", HEADS * dim), ("k", KV_HEADS * dim), ("v", KV_HEADS * dim)):
            add(f"{at}self_attn.{side}_proj.weight", size, HIDDEN)
            if config["model_type"] == "qwen2" or config.get("attention_bias"):
                add(f"{at}self_attn.{side}_proj.bias", size)
        add(f"{at}self_attn.o_proj.weight", HIDDEN, HEADS * dim)
        if config.get("attention_bias"):
            add(f"{at}self_attn.o_proj.bias", HIDDEN)
        if config["model_type"] == "qwen3":
            add(f"{at}self_attn.q_norm.weight", dim, about=1.0)
            add(f"{at}self_attn.k_norm.weight", dim, about=1.0)
        add(f"{at}mlp.gate_proj.weight", INNER, HIDDEN)
        add(f"{at}mlp.up_proj.weight", INNER, HIDDEN)
        add(f"{at}mlp.down_proj.weight", HIDDEN, INNER)
        add(f"{at}input_layernorm.weight", HIDDEN, about=1.0)
        add(f"{at}post_attention_layernorm.weight", HIDDEN, about=1.0)
    add("model.norm.weight", HIDDEN, about=1.0)
    if not config.get("tie_word_embeddings"):
        add("lm_head.weight", VOCAB, HIDDEN)
    (directory / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, directory / "model.safetensors")
    else:
        names = list(tensors)
        files = {key: f"model-{names.index(key) % shards}.safetensors" for key in names}
        for file in set(files.values()):
            save_file({key: tensors[key] for key in names if files[key] == file}, directory / file)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return tensors


def logits_by_hand(tensors, config: LlamaConfig, token_ids):
    """Token by token, head by head, in float64."""
    w = {key: value.double() for key, value in tensors.items()}
    dim = config.head_dim

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean() + config.rms_norm_eps) * weight

    def rotated(x, position):
        out = x.clone()
        for j, frequency in enumerate(inverse_frequencies(config).tolist()):
            angle, a, b = position * frequency, x[j], x[j + dim // 2]
            out[j] = a * math.cos(angle) - b * math.sin(angle)
            out[j + dim // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    keys = [[[] for _ in range(config.num_kv_heads)] for _ in range(config.num_layers)]
    values = [[[] for _ in range(config.num_kv_heads)] for _ in range(config.num_layers)]
    rows = []
    for position, token in enumerate(token_ids):
        x = w["model.embed_tokens.weight"][token]
        for i in range(config.num_layers):
            at = f"model.layers.{i}."
            h = norm(x, w[at + "input_layernorm.weight"])

            def project(side, h=h, at=at):
                out = w[f"{at}self_attn.{side}_proj.weight"] @ h
                return out + w.get(f"{at}self_attn.{side}_proj.bias", torch.zeros(()).double())

            q, k, v = (project(side).split(dim) for side in "qkv")
            for head in range(config.num_kv_heads):
                key = norm(k[head], w[at + "self_attn.k_norm.weight"]) if config.qk_norm else k[head]
                keys[i][head].append(rotated(key, position))
                values[i][head].append(v[head])
            outs = []
            for head in range(config.num_heads):
                query = norm(q[head], w[at + "self_attn.q_norm.weight"]) if config.qk_norm else q[head]
                group = head // (config.num_heads // config.num_kv_heads)
                scores = torch.stack(keys[i][group]) @ rotated(query, position) / math.sqrt(dim)
                outs.append(scores.softmax(0) @ torch.stack(values[i][group]))
            o = w[at + "self_attn.o_proj.weight"] @ torch.cat(outs)
            x = x + o + w.get(at + "self_attn.o_proj.bias", torch.zeros(()).double())
            h = norm(x, w[at + "post_attention_layernorm.weight"])
            gate, up = w[at + "mlp.gate_proj.weight"] @ h, w[at + "mlp.up_proj.weight"] @ h
            x = x + w[at + "mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
        head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
        rows.append(head @ norm(x, w["model.norm.weight"]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", CONFIGS)
def test_loaded_model_computes_the_same_logits(name, tmp_path):
    tensors = write(tmp_path, name, shards=3 if name == "qwen2" else 1)
    config, weights = load_hugging_face(tmp_path)
    ids = np.random.default_rng(0).integers(0, VOCAB, 24).tolist()
    expected = logits_by_hand(tensors, config, ids)
    actual = plain_logits(Llama(config, weights), ids).double()
    assert float((actual - expected).norm() / expected.norm()) < 1e-5


def test_loaded_model_through_the_paged_cache(tmp_path):
    tensors = write(tmp_path, "qwen3")
    config, weights = load_hugging_face(tmp_path)
    kv = make_kv_cache(
        "paged", capacity_tokens=64, bytes_per_token=TensorExecutor.kv_spec(config).bytes_per_token
    )
    executor = TensorExecutor(config, kv, TensorMemory(2 * MIB), weights=weights, validate=True)
    executor.add_prompt("a", [1, 2, 3])
    kv.admit("a", 3, max_tokens=20)
    executor.execute(StepPlan(0, chunks=[Chunk("a", 0, 3, True, kv.block_table("a"))]))
    for _ in range(5):
        kv.append("a")
        stop = kv.num_tokens("a")
        executor.execute(StepPlan(0, chunks=[Chunk("a", stop - 1, 1, True, kv.block_table("a"))]))
    known = executor.known_ids["a"]
    assert logits_by_hand(tensors, config, known[:-1])[2:].argmax(-1).tolist() == known[3:]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "gemma2"}, "field model_type: is 'gemma2'; accepted are llama, qwen2, qwen3"),
        ({"hidden_size": None}, "field hidden_size: is None; a positive integer is needed"),
        (
            {"num_key_value_heads": 8},
            "field num_key_value_heads: is 8; num_attention_heads (4) must be a multiple",
        ),
        (
            {"num_attention_heads": 5, "num_key_value_heads": 5},
            "field head_dim: is missing, and hidden_size 24",
        ),
        ({"hidden_act": "gelu"}, "field hidden_act: is 'gelu'"),
        ({"use_sliding_window": True}, "field use_sliding_window: is set"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "field rope_scaling: has type 'yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "field rope_scaling: has no factor"),
        (
            {"vocab_size": 51},
            "field model.embed_tokens.weight: has shape [50, 24]; the config implies [51, 24]",
        ),
        ({"num_hidden_layers": 3}, "field model.layers.2.self_attn.q_proj.weight: is missing"),
        ({"num_hidden_layers": 1}, "is in the file, and the config has no place for it"),
        ({"model_type": "qwen2"}, "field model.layers.0.self_attn.q_proj.bias: is missing"),
        ({"rms_norm_eps": -1}, "field rms_norm_eps: is -1; a positive number is needed"),
    ],
)
def test_broken_checkpoint_is_named_in_one_sentence(change, says, tmp_path):
    write(tmp_path, "llama")
    (tmp_path / "config.json").write_text(json.dumps({**fields("llama"), **change}))
    with pytest.raises(InputError) as caught:
        load_hugging_face(tmp_path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(InputError, match=r"config\.json: no such file"):
        load_hugging_face(tmp_path)
    write(tmp_path, "llama")
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor file at all")
    with pytest.raises(InputError, match="is not a safetensors file"):
        load_hugging_face(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="has neither"):
        load_hugging_face(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../b.safetensors"}})
    )
    with pytest.raises(InputError, match="names a file outside the directory"):
        load_hugging_face(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        load_hugging_face(tmp_path)
