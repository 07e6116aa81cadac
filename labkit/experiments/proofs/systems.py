"""The three systems: one situation, three answers."""

from __future__ import annotations

from typing import Any

from labkit.errors import LabError
from labkit.experiments.proofs import Proof
from labkit.observe.recorder import RunRecorder
from labkit.serving.base import Scheduler
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import SimulationResult, simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


def small_server(system: str, pool_tokens: int, **options: Any) -> Scheduler:
    """A server of `pool_tokens` token slots under its own option names, blocks of 16 tokens."""
    blocks, longest = pool_tokens // 16, pool_tokens - 16
    if system == "vllm":
        return make_scheduler("vllm", num_gpu_blocks=blocks + 1, max_model_len=longest, **options)
    if system == "sglang":
        return make_scheduler("sglang", max_total_tokens=pool_tokens, context_length=longest, **options)
    if system == "tensorrt_llm":
        return make_scheduler(
            "tensorrt_llm", num_blocks=blocks, tokens_per_block=16, max_seq_len=longest, **options
        )
    raise LabError(f"unknown system {system!r}; choose one of: vllm, sglang, tensorrt_llm")


def run_small(system: str, load: list[RequestSpec], pool_tokens: int, **options: Any) -> SimulationResult:
    """`load` through one server; arrivals are step numbers."""
    server = small_server(system, pool_tokens, **options)
    return simulate(server, LinearStepCost(), load, RunRecorder(), clock="step", max_steps=5000)


def twins_share(system: str) -> Proof:
    """Two equal prompts of 320 tokens arrive in one step. Does the second find what the first is only about to compute?"""
    ids = list(range(320))
    load = [RequestSpec(name, 0.0, 320, 4, 4, ids) for name in ("first", "second")]
    totals = run_small(system, load, 4096)
    return Proof(totals.num_hit_tokens > 0, {"hit_tokens": totals.num_hit_tokens})


def somebody_is_preempted(system: str, policy: str = "") -> Proof:
    """Twelve requests (64 in, 400 out) start together in a pool that holds five of them at the end. Is anybody preempted?
    `policy` is TensorRT-LLM's capacity policy."""
    load = [RequestSpec(f"r{i}", 0.0, 64, 400, 400) for i in range(12)]
    options = {"capacity_scheduler_policy": policy} if policy else {}
    totals = run_small(system, load, 2400, **options)
    return Proof(
        totals.num_preempted > 0,
        {"preempted": totals.num_preempted, "steps": totals.num_steps, "finished": totals.num_finished},
    )


def finishes_sooner(pool_tokens: int) -> Proof:
    """TensorRT-LLM: clients allow 400 tokens and the answers have 40. Does MAX_UTILIZATION serve them in less than half the
    steps of GUARANTEED_NO_EVICT, which sets 400 aside for each?"""
    load = [RequestSpec(f"r{i}", 0.0, 64, 40, 400) for i in range(24)]
    steps = {
        policy: run_small("tensorrt_llm", load, pool_tokens, capacity_scheduler_policy=policy).num_steps
        for policy in ("MAX_UTILIZATION", "GUARANTEED_NO_EVICT")
    }
    return Proof(steps["MAX_UTILIZATION"] < steps["GUARANTEED_NO_EVICT"] / 2, dict(steps))
