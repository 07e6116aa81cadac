"""The engines' arithmetic, done again by hand; what binds; what would help; what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from labkit.errors import LabError
from labkit.models import get_gpu, get_model
from labkit.models.gpus import GPUSpec
from labkit.models.parallel import Parallel
from labkit.models.quantization import get_quantization
from labkit.planning.engines import batch_limits, rank_budget
from labkit.planning.kv_groups import kv_groups
from labkit.planning.planner import make_plan
from labkit.planning.request import ENGINES, PlanRequest
from labkit.planning.terms import activation_peak
from labkit.planning.whatif import what_if
from labkit.units import GIB

GIVEN = {"weights": 20 * GIB, "peak_activation": 3 * GIB, "non_torch": GIB, "cuda_graphs": 2 * GIB}
GPU = GPUSpec("G-100GB", 100 * GIB, 2e12, 1e15, 9.0)


def request(engine: str = "vllm", **changes) -> PlanRequest:
    base = PlanRequest(get_model("Llama-3.1-8B"), GPU, engine=engine, max_model_len=8192, given=dict(GIVEN))
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("engine", "fraction", "kv_gib"),
    [
        ("vllm", 0.9, 90 - 20 - 3 - 1 - 2),
        ("vllm-v1", 0.9, 90 - 20 - 3 - 1),
        ("vllm-v0", 0.9, 90 - 20 - 3 - 1),
        ("sglang", 0.88, (99 - 20) - 0.12 * 99),
        ("tensorrt_llm", 0.9, 0.9 * (99 - 20 - 3)),
    ],
)
def test_the_five_rules(engine, fraction, kv_gib):
    plan = make_plan(request(engine, memory_fraction=fraction))
    assert plan.kv_gib == pytest.approx(kv_gib, abs=1e-6)
    assert plan.num_blocks == plan.kv_bytes // (plan.block_size * 131072)
    assert plan.num_tokens == plan.num_blocks * plan.block_size
    assert plan.max_concurrency == pytest.approx(plan.num_tokens / 8192, rel=0.01)


def test_tensorrt_llm_takes_the_smaller_of_two_limits():
    small = make_plan(request("tensorrt_llm", max_tokens=10_000))
    assert small.num_tokens == 10_016, "whole blocks of 32"
    assert (
        make_plan(request("tensorrt_llm", max_tokens=10**9)).num_tokens
        == make_plan(request("tensorrt_llm")).num_tokens
    )


def test_the_activation_peak_of_printed_profiles():
    """vllm#10517: 17.06 and 17.98 GiB in all at 20,000 and 29,000 tokens, of which 14.9888 are weights."""
    model = get_model("Llama-3.1-8B")
    assert activation_peak(model, 20000).num_bytes / GIB == pytest.approx(17.06 - 14.9888, rel=0.01)
    assert activation_peak(model, 29000).num_bytes / GIB == pytest.approx(17.98 - 14.9888, rel=0.01)
    assert activation_peak(model, 512).num_bytes * 2 == activation_peak(model, 1024).num_bytes


def test_default_batches_are_those_of_the_engine():
    model = get_model("Llama-3.1-8B")
    h100, a100 = get_gpu("H100-80GB"), get_gpu("A100-80GB")
    assert batch_limits(PlanRequest(model, h100)) == (8192, 1024)
    assert batch_limits(PlanRequest(model, a100)) == (2048, 256)
    assert batch_limits(PlanRequest(model, a100, engine="vllm-v0", max_model_len=30000)) == (30000, 256)


def test_hybrid_groups():
    oss = kv_groups(get_model("gpt-oss-20b"))
    assert (oss.num_groups, oss.num_full_groups, oss.bytes_per_token) == (2, 1, 24576)
    gemma = kv_groups(get_model("gemma-3-27B"))
    assert (gemma.num_groups, gemma.num_full_groups, gemma.bytes_per_token) == (7, 1, 81920)
    assert gemma.blocks_per_request(8192, 16, 2048) == 512 + 6 * ((1023 + 2048 + 15) // 16 + 1)
    states = kv_groups(get_model("Qwen3-Next-80B-A3B"))
    assert (states.num_groups, states.num_state_groups, states.block_size) == (4, 3, 1056)
    assert states.blocks_per_request(262144, 1056, 8192) == 249 + 3
    flat = kv_groups(get_model("gpt-oss-20b"), hybrid=False)
    assert (flat.num_groups, flat.bytes_per_token) == (1, 49152)


def test_a_hybrid_that_was_printed():
    """Qwen3.5-27B (vllm#40691): 48 linear and 16 full layers, blocks of 784 tokens, 33.04x for 32,768 tokens."""
    from labkit.models.config import from_config

    config = {
        "model_type": "qwen3_next",
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 17408,
    }
    config |= {"num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320}
    config |= {"linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128}
    config |= {"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "max_position_embeddings": 262144}
    groups = kv_groups(from_config(config))
    assert (groups.block_size, groups.num_groups) == (784, 4)
    assert groups.num_tokens(1487, 784) == 290864
    assert 1487 / groups.blocks_per_request(32768, 784, 8192) == pytest.approx(33.04, abs=0.005)


def test_the_binding_limit():
    assert make_plan(request()).binding_limit == "kv_blocks"
    assert make_plan(request(max_num_seqs=4)).binding_limit == "max_num_seqs"
    long = make_plan(request(max_model_len=131072, gpu=dataclasses.replace(GPU, total_bytes=40 * GIB)))
    assert (long.binding_limit, long.fits) == ("max_model_len", False)
    assert 70_000 < long.estimated_max_len < 90_000
    assert make_plan(request(max_model_len=long.estimated_max_len, gpu=long.request.gpu)).fits
    assert make_plan(request(max_model_len=200_000)).warnings


def test_parallel_plans():
    latent = request(model=get_model("DeepSeek-V3"))
    one, eight = (make_plan(dataclasses.replace(latent, parallel=Parallel(tp))) for tp in (1, 8))
    assert one.num_tokens == eight.num_tokens, "given the same terms, more ranks do not make a latent smaller"
    staged = make_plan(request(model=get_model("DeepSeek-V3"), parallel=Parallel(1, 4)))
    assert staged.groups.bytes_per_token == 16 * 1152, "the stage with 16 of 61 layers rules"
    assert staged.budget.stage == 2
    halves = make_plan(request(parallel=Parallel(2)))
    assert halves.num_tokens == pytest.approx(2 * make_plan(request()).num_tokens, rel=0.001)


def test_what_if_is_recomputed():
    plan = make_plan(request())
    for change in what_if(plan):
        if change.plan is not None:
            assert change.plan == make_plan(change.plan.request), change.change
            assert change.gain == pytest.approx(change.plan.max_concurrency / plan.max_concurrency - 1)
    by_name = {c.change: c for c in what_if(plan)}
    assert by_name["one more GiB of GPU memory"].plan.kv_gib == pytest.approx(plan.kv_gib + 0.9)
    assert by_name["keys and values in fp8"].gain == pytest.approx(1.0, abs=0.001)
    assert by_name["block size 128"].plan.block_size == 128
    assert by_name["half the maximum length (4,096)"].gain == pytest.approx(1.0, abs=0.001)


def test_what_is_not_possible_says_why():
    plan = make_plan(request(model=get_model("Qwen2.5-7B"), parallel=Parallel(4)))
    wider = what_if(plan)[-1]
    assert wider.plan is None
    assert "num_attention_heads" in wider.reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_model_len": 0}, "--max-model-len is 0"),
        ({"max_model_len": -5}, "--max-model-len is -5"),
        ({"block_size": 0}, "--block-size"),
        ({"max_num_seqs": -1}, "--max-num-seqs"),
        ({"memory_fraction": 0.0}, "--memory-fraction"),
        ({"memory_fraction": 1.5}, "--memory-fraction"),
        ({"engine": "llama"}, f"choose one of: {', '.join(ENGINES)}"),
        ({"kv_dtype": "fp7"}, "unknown number format"),
        ({"parallel": Parallel(3)}, "num_attention_heads"),
    ],
)
def test_bad_requests(changes, said):
    with pytest.raises(LabError, match=said) as raised:
        request(**changes)
    assert "\n" not in str(raised.value)


def test_a_gpu_too_small():
    base = PlanRequest(get_model("Llama-3.1-70B"), get_gpu("H100-80GB"))
    with pytest.raises(LabError, match=r"the weights take 131.* 79.22 GiB \(field total_gib\)"):
        make_plan(base)
    tight = dataclasses.replace(base, quantization=get_quantization("fp8"), max_model_len=4096)
    with pytest.raises(LabError, match="no memory is left for keys and values"):
        make_plan(dataclasses.replace(tight, memory_fraction=0.8))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_catalogue_model_can_be_planned(engine):
    from labkit.models import model_names

    gpu = dataclasses.replace(get_gpu("B200-180GB"), total_bytes=2000 * GIB)
    for name in model_names():
        plan = make_plan(PlanRequest(get_model(name), gpu, engine=engine, max_model_len=2048))
        assert plan.num_blocks > 0
        assert plan.kv_bytes <= gpu.total_bytes
        assert rank_budget(plan.request).kv_bytes == plan.kv_bytes
