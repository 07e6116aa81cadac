"""The ledger: what is on the card beside keys and values, and what one more GiB buys."""

from __future__ import annotations

from typing import Any

from labkit.experiments.proofs import Proof
from labkit.experiments.scenarios import run_scenario
from labkit.memory.caching import CachingAllocator
from labkit.models import get_gpu, get_model
from labkit.models.quantization import get_quantization
from labkit.planning.ledger import make_ledger
from labkit.planning.planner import Plan, make_plan
from labkit.planning.request import PlanRequest
from labkit.units import GIB, MIB


def plan_of(model: str, gpu: str, **options: Any) -> Plan:
    """A plan under vLLM's arithmetic; `quantization` and `engine` by name."""
    name = options.pop("quantization", None)
    quantization = None if name is None else get_quantization(name)
    return make_plan(PlanRequest(get_model(model), get_gpu(gpu), quantization=quantization, **options))


def budget_is_too_high(
    subtract: str, model: str = "Llama-3.1-8B", gpu: str = "A100-80GB", max_model_len: int = 16_384
) -> Proof:
    """Does a budget that subtracts only these promise at least a tenth more requests than the engine will admit?
    `subtract`: "weights", or "every line" of the ledger."""
    plan = plan_of(model, gpu, max_model_len=max_model_len)
    ledger = make_ledger(plan)
    if subtract == "weights":
        left = ledger.total_bytes - ledger.bytes_of("weights")
    else:
        left = ledger.total_bytes - max(0, ledger.unused_bytes)
        left -= ledger.used_bytes - ledger.bytes_of("kv_cache")
    promised = left / get_model(model).kv_bytes_of_sequence(max_model_len)
    return Proof(
        promised > 1.1 * plan.max_concurrency, {"promised": promised, "admitted": plan.max_concurrency}
    )


def kv_bytes_per_token(claimed: int, model: str = "Llama-3.1-8B") -> Proof:
    """Is `claimed` what one token costs: 2 (K and V) x layers x KV heads x head size x bytes a value?"""
    spec = get_model(model)
    return Proof(spec.kv_bytes_per_token() == claimed, {"bytes_per_token": spec.kv_bytes_per_token()})


def larger_step_costs_kv(
    larger: int, smaller: int = 2048, model: str = "Llama-3.1-8B", gpu: str = "RTX4090-24GB"
) -> Proof:
    """Does a budget of `larger` tokens a step leave at least a twentieth less KV memory than one of `smaller`?"""
    low, high = (
        plan_of(model, gpu, max_model_len=4096, max_batched_tokens=tokens).kv_gib
        for tokens in (smaller, larger)
    )
    return Proof(high < 0.95 * low, {"kv_gib_small_steps": low, "kv_gib_large_steps": high})


def reserved_stays(empty_cache: bool, size_mib: int = 512) -> Proof:
    """Everything was freed. Does the process still hold most of it from the device (which is what nvidia-smi shows)?"""
    memory = CachingAllocator(4096 * MIB)
    tensors = [memory.malloc(size_mib * MIB // 8) for _ in range(8)]
    for tensor in tensors:
        memory.free(tensor)
    if empty_cache:
        memory.empty_cache()
    stats = memory.stats()
    return Proof(
        stats.allocated_bytes == 0 and stats.reserved_bytes >= size_mib * MIB // 2,
        {"allocated_mib": stats.allocated_bytes / MIB, "reserved_mib": stats.reserved_bytes / MIB},
    )


def weight_quantisation_disappoints(
    gpu: str, model: str = "Llama-3.1-8B", quantization: str = "fp8", max_model_len: int = 8192
) -> Proof:
    """Do 8-bit weights raise the number of requests that fit by less than a quarter? The gain is (bytes freed) / (KV
    bytes there were), whatever the share of the weights that was saved."""
    before = plan_of(model, gpu, max_model_len=max_model_len)
    after = plan_of(model, gpu, max_model_len=max_model_len, quantization=quantization)
    gain = after.max_concurrency / before.max_concurrency - 1
    freed = (after.kv_bytes - before.kv_bytes) / GIB
    return Proof(0 < gain < 0.25, {"gain": gain, "freed_gib": freed, "kv_gib_before": before.kv_gib})


def kv_quantisation_disappoints(state_share: float) -> Proof:
    """Do 8-bit keys and values raise concurrency by less than a tenth? `state_share`: part of a request's blocks that
    holds something else (states, a draft model's cache, a window)."""
    figures = run_scenario("fp8-small-gain", state_share=state_share).figures
    return Proof(figures["gain_percent"] < 10, {"gain_percent": figures["gain_percent"]})


def longer_context_leaves_more(chunked: bool) -> Proof:
    """Can a *longer* maximum leave more KV memory than a shorter one? Yes, when chunked prefill is switched on with it,
    because prompts are then no longer profiled whole (`chunked`)."""
    figures = run_scenario("non-monotonic-context").figures
    short, middle, long = (figures[key]["kv_gib"] for key in ("20000", "29000", "35000"))
    after = long if chunked else middle
    return Proof(after > short, {"kv_gib_20k": short, "kv_gib_longer": after})


def window_saves(model: str) -> Proof:
    """Does an engine that keeps every token in every layer take at least half as much again as this model needs? Layers
    with a sliding window need the last tokens only."""
    figures = run_scenario("sliding-window-accounts", model=model).figures
    return Proof(
        figures["unified_gib"] > 1.5 * figures["ideal_gib"],
        {"least_gib": figures["ideal_gib"], "taken_gib": figures["unified_gib"]},
    )
