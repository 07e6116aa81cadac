"""Quantised weights and how parallelism cuts them."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.models import get_model
from labkit.models.config import from_config
from labkit.models.dtypes import dtype_bytes, dtype_in_text
from labkit.models.parallel import Parallel, rank_weight_bytes, stage_kv_bytes_per_token, stage_layers
from labkit.models.quantization import UNQUANTIZED, get_quantization, read_quantization
from labkit.units import GIB


def test_quantised_sizes_that_were_printed():
    """vLLM logs: 70B w8a8 67.7229 GiB; gpt-oss-20b 12.88 GiB; DeepSeek-V3 fp8 with 128 x 128 scales, one byte a weight."""
    int8 = get_model("Llama-3.1-70B").weight_bytes(get_quantization("int8")) / GIB
    assert int8 == pytest.approx(67.7229, rel=0.001)
    assert get_model("gpt-oss-20b").weight_bytes() / GIB == pytest.approx(12.88, rel=0.006)
    v3 = get_model("DeepSeek-V3")
    assert 1.0 < v3.weight_bytes() / v3.num_params < 1.01


def test_group_overhead():
    """4 bit in groups of 128 with a 16-bit scale and a 4-bit zero point: 4.15625 bits a quantised weight."""
    model, awq = get_model("Llama-2-7B"), get_quantization("awq")
    inside = sum(w.numel for w in model.weights if awq.covers(w))
    outside = model.num_params - inside
    assert model.weight_bytes(awq) == round(inside * 4.15625 / 8 + outside * 2)
    finer = read_quantization({"quant_method": "gptq", "bits": 4, "group_size": 32}, "c")
    assert model.weight_bytes(finer) > model.weight_bytes(awq)
    assert model.weight_bytes(UNQUANTIZED) == 2 * model.num_params


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8),
        ({"quant_method": "mxfp4"}, 4),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 128}}},
            },
            4,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "strategy": "channel"}}},
            },
            8,
        ),
    ],
)
def test_quantization_configs(config, bits):
    assert read_quantization(config, "config.json").bits == bits


def test_ranks_hold_everything_once_and_copies_of_the_rest():
    model = get_model("Llama-3.1-8B")
    whole = rank_weight_bytes(model, Parallel())
    assert whole == model.weight_bytes()
    halves = 2 * rank_weight_bytes(model, Parallel(2))
    norms = sum(w.numel for w in model.weights if w.split == "none")
    assert halves == whole + 2 * norms
    stages = [rank_weight_bytes(model, Parallel(1, 3), s) for s in range(3)]
    assert sum(stages) == whole


def test_fewer_kv_heads_than_ranks_are_copied():
    model = get_model("Llama-3.1-8B")
    assert [model.kv_bytes_per_token(tp=tp) for tp in (1, 8, 16)] == [131072, 16384, 16384]
    extra = 16 * rank_weight_bytes(model, Parallel(16)) - 8 * rank_weight_bytes(model, Parallel(8))
    kv = sum(2 * w.numel for w in model.weights if w.split == "kv")
    norms = sum(2 * w.numel for w in model.weights if w.split == "none")
    assert extra == kv + 8 * norms


def test_a_latent_is_on_every_rank():
    model = get_model("DeepSeek-V3")
    assert model.kv_bytes_per_token(tp=8) == model.kv_bytes_per_token() == 70272
    assert model.kv_bytes_per_token("fp8") == 35136


def test_uneven_stages():
    assert [len(r) for r in stage_layers(61, 4)] == [15, 15, 16, 15]
    assert [len(r) for r in stage_layers(80, 8)] == [10] * 8
    assert [len(r) for r in stage_layers(7, 3)] == [2, 3, 2]
    model = get_model("DeepSeek-V3")
    per_stage = [stage_kv_bytes_per_token(model, Parallel(1, 4), s) for s in range(4)]
    assert per_stage == [15 * 1152, 15 * 1152, 16 * 1152, 15 * 1152]
    hybrid = get_model("Qwen3-Next-80B-A3B")
    assert sum(stage_kv_bytes_per_token(hybrid, Parallel(1, 5), s) for s in range(5)) == 24576


def test_tied_embeddings_are_on_both_ends():
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    config |= {
        "num_hidden_layers": 4,
        "vocab_size": 640,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    model = from_config(config)
    stages = [rank_weight_bytes(model, Parallel(1, 2), s) for s in (0, 1)]
    assert sum(stages) == model.weight_bytes() + 2 * 640 * 64


def test_expert_parallel_keeps_whole_experts():
    model = get_model("Mixtral-8x7B")
    assert rank_weight_bytes(model, Parallel(4, 1, True)) == rank_weight_bytes(model, Parallel(4))
    uneven = from_config(
        {"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
        | {
            "num_key_value_heads": 4,
            "num_hidden_layers": 2,
            "vocab_size": 640,
            "max_position_embeddings": 128,
        }
        | {"num_local_experts": 6, "num_experts_per_tok": 2}
    )
    assert rank_weight_bytes(uneven, Parallel(4, 1, True)) > rank_weight_bytes(uneven, Parallel(4))


@pytest.mark.parametrize(
    ("name", "parallel", "field"),
    [
        ("Llama-3.1-8B", (3, 1), "num_attention_heads"),
        ("Qwen3-30B-A3B", (32, 1, True), None),
        ("gpt-oss-20b", (64, 1, True), "num_experts"),
        ("Llama-3.1-8B", (1, 64), "num_hidden_layers"),
    ],
)
def test_cuts_that_are_not_possible(name, parallel, field):
    if field is None:
        rank_weight_bytes(get_model(name), Parallel(*parallel))
        return
    with pytest.raises(LabError, match=field):
        rank_weight_bytes(get_model(name), Parallel(*parallel))


def test_number_formats():
    assert [dtype_bytes(n) for n in ("bf16", "torch.float16", "fp8_e4m3", "q8_0")] == [2, 2, 1, 34 / 32]
    assert dtype_in_text("FP8 (e4m3)") == "fp8"
    assert dtype_in_text("not shown") == "bfloat16"
    with pytest.raises(LabError, match="choose one of"):
        dtype_bytes("int3")
    with pytest.raises(LabError, match="--tp"):
        Parallel(0)
