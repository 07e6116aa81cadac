"""How much room there is for keys and values, and why the number moves: budget terms, windows, states, neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError
from labkit.experiments.scenarios import SCENARIOS
from labkit.kv.paged import PagedKVCache
from labkit.models import get_gpu, get_model
from labkit.planning.planner import make_plan
from labkit.planning.request import PlanRequest
from labkit.planning.terms import activation_peak
from labkit.units import GIB


@SCENARIOS.register("non-monotonic-context")
def non_monotonic_context(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A longer maximum costs KV memory, since prompts are profiled whole, until chunked prefill is switched on with it."""
    model, gpu = get_model(inputs["model"]), get_gpu(inputs["gpu"])
    weights = round(inputs["weights_gib"] * GIB)
    figures = {}
    for case in inputs["cases"]:
        length = case["max_model_len"]
        request = PlanRequest(
            model,
            gpu,
            engine="vllm-v0",
            max_model_len=length,
            memory_fraction=inputs["utilisation"],
            given={
                "weights": weights,
                "peak_activation": round(case["peak_gib"] * GIB) - weights,
                "non_torch": round(inputs["non_torch_gib"] * GIB),
            },
        )
        plan = make_plan(request)
        profiled = activation_peak(model, case["profiled_tokens"])
        figures[str(length)] = {
            "kv_gib": plan.kv_gib,
            "concurrency": plan.max_concurrency,
            "refused": not plan.fits,
            "estimated_peak_gib": (weights + profiled.num_bytes) / GIB,
        }
    return figures


@SCENARIOS.register("sliding-window-accounts")
def sliding_window_accounts(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The least that the sequences need, and what they take where every layer keeps every token."""
    model, seqs, length = get_model(inputs["model"]), inputs["num_seqs"], inputs["num_tokens"]
    kv_dtype = inputs["kv_dtype"]
    return {
        "ideal_gib": seqs * model.kv_bytes_of_sequence(length, kv_dtype) / GIB,
        "unified_gib": seqs * length * model.kv_bytes_per_token(kv_dtype) / GIB,
        "num_sliding_layers": model.num_layers_of("sliding"),
    }


@SCENARIOS.register("fp8-small-gain")
def fp8_small_gain(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Requests are admitted until the pool is full; fp8 halves the KV part of each, and the state part stays."""
    total, share = inputs["request_blocks"], inputs["state_share"]
    state = round(total * share)
    kv = total - state
    before = _admitted(inputs["pool_blocks"], state + kv)
    after = _admitted(inputs["pool_blocks"], state + -(-kv // 2))
    return {
        "num_before": before,
        "num_after": after,
        "gain_percent": 100 * (after / before - 1),
        "formula_percent": 100 * (1 / (share + (1 - share) / 2) - 1),
    }


def _admitted(pool_blocks: int, request_blocks: int) -> int:
    kv = PagedKVCache(pool_blocks, 1, block_size=1)
    count = 0
    while kv.admit(f"r{count}", request_blocks, max_tokens=request_blocks).admitted:
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class _Server:
    """GiB that a server takes, in this order: driver context, weights, activation peak of its profile."""

    name: str
    utilisation: float
    context_gib: float
    weights_gib: float
    peak_gib: float


@SCENARIOS.register("starts-together")
def starts_together(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Each server takes a snapshot of the device's free memory, loads, profiles, and charges the whole difference to
    itself. `order` says when each step of each server happens."""
    servers = {name: _Server(name, **terms) for name, terms in inputs["servers"].items()}
    total = inputs["total_gib"]
    return {
        mode: _kv_by_free_memory(servers, total, [tuple(step.split(".")) for step in order])
        for mode, order in inputs["orders"].items()
    }


def _kv_by_free_memory(
    servers: Mapping[str, _Server], total_gib: float, order: Sequence[tuple[str, ...]]
) -> dict[str, float]:
    """KV GiB of each server: its budget less its context and what the device lost since its snapshot."""
    free, snapshot, kv = total_gib, {}, {}
    for name, step in order:
        server = servers[name]
        if step == "snapshot":
            snapshot[name] = free
        elif step == "context":
            free -= server.context_gib
        elif step == "weights":
            free -= server.weights_gib
        elif step == "profile":
            free -= server.peak_gib
        elif step == "measure":
            kv[f"{name}_kv_gib"] = server.utilisation * total_gib - (snapshot[name] - free)
        else:
            raise LabError(
                f"unknown step {step!r}; choose one of: snapshot, context, weights, profile, measure"
            )
    return kv
