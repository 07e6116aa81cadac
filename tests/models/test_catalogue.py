"""Parameters and KV bytes of the catalogue, derived from shapes, against the published counts."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.models import get_model, model_names
from labkit.models.catalogue import find_in_text
from labkit.models.weights import Weight

#: name -> (parameters, KV bytes a token: all layers, full-attention layers only; one layer), 16 bit
EXPECTED = {
    "Llama-2-7B": (6738415616, 524288, 524288, 16384),
    "Llama-2-13B": (13015864320, 819200, 819200, 20480),
    "OPT-13B": (12853473280, 819200, 819200, 20480),
    "Llama-3.1-8B": (8030261248, 131072, 131072, 4096),
    "Llama-3.1-70B": (70553706496, 327680, 327680, 4096),
    "Llama-3.1-405B": (405853388800, 516096, 516096, 4096),
    "Qwen2.5-7B": (7615616512, 57344, 57344, 2048),
    "Qwen3-8B": (8190735360, 147456, 147456, 4096),
    "Qwen3-30B-A3B": (30532122624, 98304, 98304, 2048),
    "Qwen3-235B-A22B": (235093634560, 192512, 192512, 2048),
    "Mistral-7B": (7241732096, 131072, 131072, 4096),
    "Mixtral-8x7B": (46702792704, 131072, 131072, 4096),
    "gemma-2-27B": (27227128320, 376832, 188416, 8192),
    "gemma-3-27B": (27009002240, 507904, 81920, 8192),
    "DeepSeek-V3": (671026419200, 70272, 70272, 1152),
    "gpt-oss-20b": (20914757184, 49152, 24576, 2048),
    "gpt-oss-120b": (116829156672, 73728, 36864, 2048),
    "Qwen3-Next-80B-A3B": (79674391296, 24576, 24576, 2048),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_parameters_and_kv_bytes_are_exact(name):
    model = get_model(name)
    assert (
        model.num_params,
        model.kv_bytes_per_token(),
        model.kv_bytes_per_token(full_attention_only=True),
        model.kv_bytes_per_token_per_layer(),
    ) == EXPECTED[name]


def test_nothing_is_stored():
    """The catalogue holds shapes: none of its values is a parameter count."""
    import json
    from importlib import resources

    text = resources.files("labkit").joinpath("data/models.json").read_text()
    numbers = {v for entry in json.loads(text)["models"] for v in entry.values() if isinstance(v, int)}
    for expected in EXPECTED.values():
        assert expected[0] not in numbers


def test_every_entry_has_a_source_and_weights():
    for name in model_names():
        model = get_model(name)
        assert model.source
        assert all(isinstance(w, Weight) and w.numel > 0 for w in model.weights)


def test_fixed_states_of_linear_layers():
    model = get_model("Qwen3-Next-80B-A3B")
    assert (model.ssm_state_bytes, model.conv_state_bytes) == (75497472, 1769472)
    assert model.num_layers_of("full") == 12
    assert model.kv_bytes_of_sequence(1000) == 1000 * 24576 + 75497472 + 1769472


def test_sliding_layers_keep_a_window():
    model = get_model("gpt-oss-20b")
    assert model.kv_bytes_of_sequence(8192) == 24576 * (8192 + 128)
    assert model.kv_bytes_of_sequence(100) == 49152 * 100


def test_active_parameters():
    for name, billions in {"DeepSeek-V3": 37.55, "Mixtral-8x7B": 12.88, "Qwen3-30B-A3B": 3.35}.items():
        assert get_model(name).num_active_params / 1e9 == pytest.approx(billions, abs=0.01)
    dense = get_model("Llama-3.1-8B")
    assert dense.num_active_params == dense.num_params
    assert dense.linear_flops_per_token == 2 * (dense.num_params - 2 * 128256 * 4096)


def test_names():
    assert get_model("meta-llama/Llama-3.1-8B-Instruct") is get_model("llama-3.1-8b")
    with pytest.raises(LabError, match="choose one of: Llama-2-7B"):
        get_model("GPT-5")


def test_names_in_free_text():
    named = {
        "DeepSeek-R1-Distill-Qwen-32B": "Qwen2.5-32B",
        "Llama-3 70B (PPO rollout)": "Llama-3-70B",
        "Qwen3-235B-A22B-FP8 on SGLang": "Qwen3-235B-A22B",
        "DeepSeek-V3.2-Exp": None,
        "DeepSeek-R1-Distill-Something": None,
        "Qwen3.5-27B hybrid": None,
    }
    for text, name in named.items():
        found = find_in_text(text)
        assert (found.name if found else None) == name, text


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen2.5-72B", 72.71),
        ("Llama-3.2-3B", 3.21),
        ("Mixtral-8x22B", 140.6),
        ("gemma-2-9B", 9.24),
        ("Qwen3-4B", 4.02),
    ]
    + [
        ("Qwen3-Coder-480B-A35B", 480.2),
        ("Llama-2-70B", 68.98),
        ("Mistral-Small-24B", 23.57),
        ("Qwen2.5-0.5B", 0.494),
    ],
)
def test_published_sizes_of_the_others(name, billions):
    assert get_model(name).num_params / 1e9 == pytest.approx(billions, rel=0.001)
