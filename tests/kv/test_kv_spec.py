"""Bytes per token by kind of attention and dtype."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.kv.spec import KVSpec, supported_dtypes


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (KVSpec(40, 40, 128, "fp16"), 819_200),  # OPT-13B, MHA: the paper's 800 KB
        (KVSpec(32, 8, 128, "bf16"), 131_072),  # Llama-3.1-8B, GQA
        (KVSpec(32, 1, 128, "bf16"), 16_384),  # the same with one KV head, MQA
        (KVSpec(32, 8, 128, "fp32"), 262_144),
        (KVSpec(32, 8, 128, "int8"), 65_536 + 32 * 2 * 8 * 4),
        (KVSpec(32, 8, 128, "fp8"), 65_536 + 32 * 2 * 8 * 4),
        (KVSpec.mla(61, 512, 64), 70_272),  # DeepSeek-V3
    ],
)
def test_bytes_per_token(spec, expected):
    assert spec.bytes_per_token == expected


def test_fp8_needs_a_gpu_that_knows_it():
    assert supported_dtypes((8, 0)) == {"fp32": True, "bf16": True, "fp16": True, "int8": True, "fp8": False}
    assert supported_dtypes((8, 9))["fp8"]
    assert supported_dtypes(None)["fp8"]


def test_wrong_specs_are_one_sentence():
    with pytest.raises(LabError, match="unknown KV dtype 'fp4'"):
        KVSpec(1, 1, 64, "fp4")
    with pytest.raises(LabError, match="num_kv_heads must be a positive integer"):
        KVSpec(1, 0, 64)
    with pytest.raises(LabError, match="a latent cache is not kept in int8"):
        KVSpec.mla(1, 512, 64, "int8")
