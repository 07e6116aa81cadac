"""`ModelSpec` from config.json files as people have them, and one sentence with the field where they are wrong."""

from __future__ import annotations

import json

import pytest

from labkit.errors import InputError, LabError
from labkit.models import get_gpu, get_model
from labkit.models.config import from_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_attention_heads": 32,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "vocab_size": 262144,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 27,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 102400,
}


def test_as_published():
    assert from_config(LLAMA).num_params == get_model("Llama-3.1-8B").num_params
    assert from_config(QWEN3_MOE).num_params == 30532122624
    gemma = from_config(GEMMA3)
    assert (gemma.num_params, gemma.kv_bytes_per_token(full_attention_only=True)) == (27009002240, 81920)
    lite = from_config(DEEPSEEK_V2_LITE)
    assert lite.num_params == 15706484224, "DeepSeek-V2-Lite has 15.7 B"
    assert lite.kv_bytes_per_token() == 27 * 1152


def test_a_file_or_a_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    by_file, by_folder = get_model(tmp_path / "config.json"), get_model(tmp_path)
    assert by_file.num_params == by_folder.num_params == 8030261248
    assert by_file.name == tmp_path.name


def test_biases_ties_and_layer_types_are_read():
    base = from_config(LLAMA).num_params
    assert from_config({**LLAMA, "tie_word_embeddings": True}).num_params == base - 128256 * 4096
    assert from_config({**LLAMA, "attention_bias": True}).num_params == base + 32 * (4096 + 2 * 1024 + 4096)
    assert from_config({**LLAMA, "mlp_bias": True}).num_params == base + 32 * (2 * 14336 + 4096)
    kinds = ["full_attention", "sliding_attention"] * 16
    model = from_config({**LLAMA, "layer_types": kinds, "sliding_window": 512})
    assert model.kv_bytes_of_sequence(4096) == 4096 * 16 * (4096 + 512)


def test_router_bias_and_qwen2_bias():
    v3 = {**DEEPSEEK_V2_LITE, "model_type": "deepseek_v3"}
    with_bias = from_config({**v3, "topk_method": "noaux_tc"}).num_params
    assert with_bias - from_config({**v3, "topk_method": "greedy"}).num_params == 26 * 64
    assert from_config({**v3, "router_bias": False}).num_params == with_bias - 26 * 64
    qwen2 = {
        **LLAMA,
        "architectures": ["Qwen2ForCausalLM"],
        "sliding_window": 131072,
        "use_sliding_window": False,
    }
    assert from_config(qwen2).num_params == from_config(LLAMA).num_params + 32 * (4096 + 2 * 1024)
    assert from_config(qwen2).sliding_window is None, "a window that is switched off is none"


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**LLAMA, "num_key_value_heads": 64}, "num_key_value_heads"),
        ({**LLAMA, "num_key_value_heads": 5}, "num_key_value_heads"),
        ({**LLAMA, "hidden_size": 4097}, "head_dim"),
        ({**LLAMA, "head_dim": -1}, "head_dim"),
        ({**LLAMA, "head_dim": "128"}, "head_dim"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "hidden_size"),
        ({k: v for k, v in LLAMA.items() if k != "architectures"}, "model_type"),
        ({**LLAMA, "architectures": ["MambaForCausalLM"]}, "model_type"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers"),
        ({**LLAMA, "vocab_size": 1.5}, "vocab_size"),
        ({**LLAMA, "tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({**LLAMA, "layer_types": ["full_attention"]}, "layer_types"),
        ({**LLAMA, "layer_types": ["banana"] * 32}, "layer_types"),
        ({**LLAMA, "layer_types": ["sliding_attention"] * 32}, "sliding_window"),
        ({k: v for k, v in QWEN3_MOE.items() if k != "head_dim"}, "head_dim"),
        ({k: v for k, v in QWEN3_MOE.items() if k != "num_experts"}, "num_experts"),
        ({**QWEN3_MOE, "num_experts_per_tok": 200}, "num_experts_per_tok"),
        ({k: v for k, v in DEEPSEEK_V2_LITE.items() if k != "kv_lora_rank"}, "kv_lora_rank"),
        ({**LLAMA, "quantization_config": {"quant_method": "magic"}}, "quantization_config.quant_method"),
        ({**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 5}}, "quantization_config.bits"),
        ({**GEMMA3, "text_config": 3}, "text_config"),
    ],
)
def test_a_wrong_config_names_the_field(config, field):
    with pytest.raises(InputError) as raised:
        from_config(config, where="config.json")
    assert raised.value.field == field
    assert str(raised.value).startswith(f"config.json, field {field}: ")
    assert "\n" not in str(raised.value)


def test_files_that_are_not_configs(tmp_path):
    for name, text in {"a.json": "{", "b.json": "[1]", "c.json": "\x00"}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=name):
            get_model(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        get_model(tmp_path / "none.json")


def test_a_gpu_of_ones_own(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"total_gib": 10.0, "bandwidth_gb_s": 500, "bf16_dense_tflops": 100}))
    assert get_gpu(str(path)).total_bytes == 10 * 2**30
    assert get_gpu("h100").name == "H100-80GB"
    path.write_text(json.dumps({"total_gib": -1, "bandwidth_gb_s": 500, "bf16_dense_tflops": 100}))
    with pytest.raises(InputError, match="field total_gib"):
        get_gpu(str(path))
    with pytest.raises(LabError, match="choose one of: T4-16GB"):
        get_gpu("A100")  # two of them


def test_multimodal_and_renamed_families():
    flat = {
        **LLAMA,
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vision_config": {},
    }
    assert from_config(flat).model_type == "qwen2"
    nested = {"model_type": "llava", "text_config": {**LLAMA, "model_type": "llama"}, "vision_config": {}}
    assert from_config(nested).num_params == 8030261248
    kimi = {**DEEPSEEK_V2_LITE, "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    assert from_config(kimi).model_type == "deepseek_v3"


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**LLAMA, "num_hidden_layers": 1_000_000_000}, "num_hidden_layers"),
        ({**LLAMA, "vocab_size": 10**4000}, "vocab_size"),
        ({**QWEN3_MOE, "num_experts": 1_000_000}, "num_experts"),
        ({**QWEN3_MOE, "mlp_only_layers": "all"}, "mlp_only_layers"),
        ({**QWEN3_MOE, "decoder_sparse_step": "2"}, "decoder_sparse_step"),
        ({**LLAMA, "layer_types": [["full_attention"]] * 32}, "layer_types"),
        ({**LLAMA, "torch_dtype": "float128"}, "torch_dtype"),
        ({**LLAMA, "dtype": ["bfloat16"]}, "dtype"),
        ({**LLAMA, "quantization_config": "fp8"}, "quantization_config"),
        ({**LLAMA, "architectures": {"LlamaForCausalLM": 1}, "model_type": None}, "architectures"),
        ({**LLAMA, "model_type": "x" * 5000, "architectures": []}, "model_type"),
    ],
)
def test_absurd_values_are_one_short_sentence(config, field):
    config = {k: v for k, v in config.items() if not (k == "torch_dtype" and field == "dtype")}
    with pytest.raises(InputError) as raised:
        from_config(config, where="config.json")
    assert raised.value.field == field
    assert len(str(raised.value)) < 500
    assert "\n" not in str(raised.value)


def test_one_class_name_is_a_list_of_one():
    config = {k: v for k, v in LLAMA.items() if k != "model_type"}
    assert from_config({**config, "architectures": "LlamaForCausalLM"}).model_type == "llama"


def test_texts_that_no_parser_likes(tmp_path):
    """Nesting beyond the parser's stack and numbers beyond its digits; GPU files too."""
    for text in ('{"a":' * 100_000 + "1" + "}" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"):
        path = tmp_path / "config.json"
        path.write_text(text)
        for read in (get_model, lambda p: get_gpu(str(p))):
            with pytest.raises(InputError, match=r"config\.json: (is nested|has a whole)") as raised:
                read(path)
            assert len(str(raised.value)) < 500
    path.write_text(json.dumps({"total_gib": 1e300, "bandwidth_gb_s": 500, "bf16_dense_tflops": 100}))
    with pytest.raises(InputError, match=r"field total_gib: is 1e\+300; expected at most"):
        get_gpu(str(path))
