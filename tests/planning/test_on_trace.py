"""A plan on a load: footprints by hand, a replay that preempts when the pool is small, and the lifetime budget."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec

import numpy as np
import pytest

from labkit.cli.main import main
from labkit.errors import LabError
from labkit.models import get_gpu, get_model
from labkit.planning.lifetime import LifetimeLoad, lifetime_budget, load_of_trace
from labkit.planning.on_trace import plan_on_trace
from labkit.planning.planner import make_plan
from labkit.planning.request import PlanRequest
from labkit.units import GIB
from labkit.workload.base import RequestSpec
from labkit.workload.own_format import save_own
from labkit.workload.synthetic import synthetic_load


def plan(kv_gib: float = 20.0):
    given = {"weights": 15 * GIB, "peak_activation": GIB, "non_torch": GIB, "cuda_graphs": 1}
    total = round((17 + kv_gib) * GIB / 0.9)
    gpu = dataclasses.replace(get_gpu("H100-80GB"), total_bytes=total)
    return make_plan(PlanRequest(get_model("Llama-3.1-8B"), gpu, max_model_len=4096, given=given))


def test_footprints_by_hand():
    made = plan()
    load = [RequestSpec(f"r{i}", float(i), 160, 320) for i in range(50)]
    on_trace = plan_on_trace(made, load, replay=False)
    assert on_trace.concurrency_at_final_length == pytest.approx(made.num_usable_blocks / 30)
    assert on_trace.concurrency_at_mean_footprint == pytest.approx(made.num_usable_blocks / 20)
    assert on_trace.preempted_share is None
    assert on_trace.concurrency_at_final_length > made.max_concurrency


def test_a_small_pool_preempts_and_a_large_one_does_not():
    load = synthetic_load("azure-conv", 400, np.random.default_rng(3), rate_scale=20.0)
    small, large = plan_on_trace(plan(0.7), load), plan_on_trace(plan(90.0), load)
    assert small.preempted_share > 0.05
    assert large.preempted_share == 0.0
    assert small.summary["num_finished"] + small.summary["num_refused"] == 400
    too_long = sum(r.num_prompt_tokens >= 4096 for r in load)
    assert large.num_too_long == large.summary["num_refused"] == too_long


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_the_engines_own_scheduler(engine):
    """All three finish the load; each on the pool of its own arithmetic and with its own rules under pressure."""
    load = synthetic_load("azure-conv", 150, np.random.default_rng(3), rate_scale=20.0)
    made = make_plan(dataclasses.replace(plan(1.0).request, engine=engine, memory_fraction=0.9))
    if engine == "tensorrt_llm" and find_spec("labkit.serving.systems.tensorrt_llm") is None:
        pytest.skip("this version has no model of the TensorRT-LLM scheduler")
    on_trace = plan_on_trace(made, load, scheduler="engine")
    assert on_trace.summary["num_finished"] + on_trace.summary["num_refused"] == 150
    assert on_trace.preempted_share >= 0.0
    with pytest.raises(LabError, match="choose one of: engine, lab"):
        plan_on_trace(made, load, scheduler="mine")


def test_nothing_fits():
    with pytest.raises(LabError, match="no request of the trace"):
        plan_on_trace(plan(), [RequestSpec("r", 0.0, 99999, 1)])


def test_lifetime_budget():
    made = plan()
    load = LifetimeLoad(rate=10.0, mean_prompt_tokens=1000, mean_output_tokens=200, mean_residence_s=5.0)
    private = lifetime_budget(made, load)
    assert private.private_blocks == 10 * 5 * 69, "1,100 tokens on average are 69 blocks"
    everything = dataclasses.replace(
        load,
        session_rate=0.5,
        session_tokens=4000,
        session_idle_s=60,
        prefix_tokens=512,
        num_prefixes=3,
        shared_prompt_tokens=512,
    )
    everything = dataclasses.replace(everything, burst_prompts=4, burst_prompt_tokens=16000)
    budget = lifetime_budget(made, everything)
    assert (budget.session_blocks, budget.prefix_blocks, budget.burst_blocks) == (30 * 250, 96, 4000)
    assert budget.private_blocks == 10 * 5 * 37, "588 private tokens"
    assert budget.headroom < 0
    assert "does not fit" in budget.sentence()
    assert "fits" in private.sentence()
    with pytest.raises(LabError, match="session_idle_s is -1"):
        LifetimeLoad(1.0, 1, 1, 1, session_idle_s=-1)
    with pytest.raises(LabError, match="rate"):
        LifetimeLoad(0.0, 1, 1, 1)


def test_lifetimes_of_a_trace():
    """Two sessions of two turns, 10 s apart; blocks 1 and 2 are shared, 1 for 10 s and 2 for 5 s of 20."""
    load = [
        RequestSpec("a", 0.0, 100, 20, session_id="x", prefix_hashes=[1], prefix_block_size=64),
        RequestSpec("b", 5.0, 300, 20, session_id="y", prefix_hashes=[2, 3, 4, 5], prefix_block_size=64),
        RequestSpec("c", 10.0, 200, 20, session_id="x", prefix_hashes=[1, 2], prefix_block_size=64),
        RequestSpec("d", 20.0, 400, 20, session_id="y", prefix_hashes=[9], prefix_block_size=64),
    ]
    terms = load_of_trace(load, 2.0)
    assert (terms.rate, terms.mean_prompt_tokens, terms.session_rate) == (0.2, 250, 0.1)
    assert (terms.session_tokens, terms.session_idle_s) == (220, 12.5)
    assert (terms.shared_prompt_tokens, terms.prefix_tokens) == (2 * 64 / 4, 64 * 15 / 20)
    assert terms.burst_prompt_tokens == 400
    assert load_of_trace(load, 2.0, burst_window_s=5.0).burst_prompt_tokens == 500
    with pytest.raises(LabError, match="two requests"):
        load_of_trace(load[:1], 1.0)


def run(capsys, *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(["plan", *args])
    out = capsys.readouterr()
    return done.value.code or 0, out.out, out.err


def test_command_line(tmp_path, capsys):
    trace = tmp_path / "load.csv"
    save_own(synthetic_load("azure-conv", 100, np.random.default_rng(0)), trace)
    options = ["--gpu", "A100-80GB", "--max-model-len", "16384", "--kv-dtype", "fp8", "--trace", str(trace)]
    code, out, _ = run(capsys, "Llama-3.1-8B", *options, "--json")
    data = json.loads(out)
    assert code == 0
    assert data["printed"][1] == f"GPU KV cache size: {data['num_tokens']:,} tokens"
    assert data["trace"]["summary"]["num_finished"] == 100
    assert sum(row["bytes"] for row in data["ledger"]) == get_gpu("A100-80GB").total_bytes
    assert len(data["what_if"]) >= 10
    code, text, _ = run(capsys, "Llama-3.1-8B", *options)
    assert f"{data['max_concurrency']:.2f}x" in text
    assert "what if" in text
    for engine, line in (
        ("sglang", "#tokens"),
        ("tensorrt-llm", "max tokens in paged KV"),
        ("vllm-v0", "# GPU blocks"),
    ):
        assert line in run(capsys, "--engine", engine, "Llama-3.1-8B", "--max-model-len", "4096")[1]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["Llama-3.1-8B", "--max-model-len", "0"], "--max-model-len is 0"),
        (["Llama-3.1-8B", "--tp", "-1"], "--tp is -1"),
        (["GPT-9"], "unknown model"),
        (["Llama-3.1-8B", "--gpu", "H800"], "unknown GPU"),
        (["Llama-3.1-70B"], "field total_gib"),
        (["none.json"], "none.json: no such file"),
        (["Llama-3.1-8B", "--trace", "none.csv"], "none.csv: no such file"),
        (["Llama-3.1-8B", "--quantization", "q9"], "unknown weight quantisation"),
        (["check", "none.json"], "none.json: no such file"),
    ],
)
def test_mistakes_are_one_sentence(capsys, args, said):
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
