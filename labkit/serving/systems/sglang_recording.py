"""Replays a recording of SGLang's scheduler, field by field (`tests/golden/sglang/README.md` says what a row means)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.errors import InputError, shown
from labkit.recording import Comparison
from labkit.serving.base import StepPlan, StepResult
from labkit.serving.systems.recorded import check_parts, check_workload, compare_header
from labkit.serving.systems.sglang import SglangScheduler
from labkit.serving.systems.sglang_options import SglangOptions
from labkit.serving.systems.sglang_state import SglangState
from labkit.workload.base import RequestSpec

#: options that a recording's `config` names as the server does
_SAME_NAMES = (
    "page_size", "max_total_tokens", "max_running_requests", "chunked_prefill_size", "max_prefill_tokens",
    "schedule_policy", "schedule_conservativeness", "enable_mixed_chunk", "disable_radix_cache", "ignore_eos",
    "radix_eviction_policy", "retraction_policy", "prefill_max_requests", "prefill_decode_interval",
    "prefill_decode_interval_min_bs", "disable_priority_preemption", "radix_eviction_policy_config",
    "schedule_low_priority_values_first", "priority_scheduling_preemption_threshold",
)  # fmt: skip
#: read under another name, or about the cache and the model
_OTHER_NAMES = ("cache", "enable_priority", "enable_priority_scheduling", "max_context_len", "context_length")
#: the server's other options about scheduling and memory, with the values at which they change no decision
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "max_queued_requests": (None,),
    "mem_fraction_static": (None,),
    "disable_overlap_schedule": (False, True),  # the recordings' loop is one step at a time either way
    "enable_hierarchical_cache": (False,),
    "enable_lora": (False,),
    "enable_dynamic_chunking": (False,),
    "enable_prefill_delayer": (False,),
    "enable_dp_attention": (False,),
    "enable_streaming_session": (False,),
    "enable_eic_cache": (False,),
    "enable_lmcache": (False,),
    "abort_on_priority_when_disabled": (False,),
    "disable_chunked_prefix_cache": (False, True),
    "disable_hybrid_swa_memory": (False, True),
    "swa_full_tokens_ratio": (None, 0.8),
    "sliding_window_size": (None,),
    "is_hybrid_swa": (False,),
    "speculative_algorithm": (None,),
    "disaggregation_mode": ("null", None),
    "stream_interval": (1,),
    "tp_size": (1,),
    "pp_size": (1,),
    "dp_size": (1,),
    "random_seed": (None, 0, 1, 42),
    "default_priority_value": (None,),
}
CACHES = ("unified", "radix")
WHAT = "SGLang recording"
BODY = {"config": dict, "workload": list, "steps": list, "totals": dict}
HEADER = {
    "system": "sglang",
    "version": "0.5.23",
    "output_token_rule": "token j of request index i = 1000000+10000*i+j",
}
#: the tree behind `config.cache` "unified"; recordings of the other one name theirs in their own words
UNIFIED = {"tree_core_backend": "rust", "cache_class": "UnifiedRadixCache(FULL)"}
#: what a request without a priority gets when lower means more urgent
_LEAST_URGENT = (1 << 63) - 1
#: `config` says nothing about these; the recordings ran with them
_ALWAYS = {"schedule_low_priority_values_first": True, "priority_scheduling_preemption_threshold": 0}


def replay(recording: Mapping[str, Any]) -> Comparison:
    """Compare every recorded field of every step, and the totals. Raises `InputError` for what is no such recording."""
    comparison = Comparison("sglang")
    check_parts(recording, BODY, WHAT)
    unified = recording["config"].get("cache", "unified") == "unified"
    remarks = () if unified else ("tree_core_backend", "cache_class")
    compare_header(
        comparison, recording, {**HEADER, **(UNIFIED if unified else {})}, body=BODY, remarks=remarks
    )
    totals = replay_steps(recording, comparison)
    replayed_totals = {**totals, "steps": comparison.num_ops, "deterministic": True}
    comparison.compare("totals", recording["totals"], replayed_totals)
    return comparison


def replay_steps(recording: Mapping[str, Any], comparison: Comparison) -> dict[str, int]:
    """Compare the steps alone (config, workload and steps are needed) and return the replayed totals."""
    workload, steps, config = recording["workload"], recording["steps"], recording["config"]
    check_workload(workload, WHAT)
    scheduler = _scheduler(config)
    specs = _specs(workload)
    arrivals = sorted(range(len(workload)), key=lambda i: workload[i]["arrival_step"])
    totals = {
        "steps": 0,
        "hit_tokens_at_admission": 0,
        "extend_tokens": 0,
        "retractions": 0,
        "evicted_tokens": 0,
    }
    at = 0
    for number, recorded in enumerate(steps):
        added = []
        while at < len(arrivals) and workload[arrivals[at]]["arrival_step"] <= number:
            spec, first_token = specs[arrivals[at]]
            scheduler.add(spec)
            scheduler.state.requests[spec.request_id].first_output_token = first_token
            added.append(spec.request_id)
            at += 1
        replayed = _run_step(scheduler, number, added, totals)
        comparison.compare(f"steps[{number}]", recorded, replayed)
        comparison.num_ops += 1
    return totals


def _scheduler(config: Mapping[str, Any]) -> SglangScheduler:
    for name in config:
        if name not in (*_SAME_NAMES, *_OTHER_NAMES, *_WITHOUT_EFFECT):
            known = ", ".join(sorted((*_SAME_NAMES, *_OTHER_NAMES, *_WITHOUT_EFFECT)))
            raise InputError(WHAT, f"is not known; accepted: {known}", field=f"config.{name}")
    for name, value in config.items():
        defaults = _WITHOUT_EFFECT.get(name)
        if defaults is not None and value not in defaults:
            accepted = ", ".join(map(repr, defaults))
            raise InputError(
                WHAT,
                f"is {shown(value)}, which is not modelled; accepted: {accepted}",
                field=f"config.{name}",
            )
    if config.get("cache", "unified") not in CACHES:
        raise InputError(
            WHAT, f"is {shown(config['cache'])}; choose one of: {', '.join(CACHES)}", field="config.cache"
        )
    values = {**_ALWAYS, **{name: config[name] for name in _SAME_NAMES if config.get(name) is not None}}
    values["enable_priority_scheduling"] = config.get(
        "enable_priority", config.get("enable_priority_scheduling", False)
    )
    if config.get("chunked_prefill_size") is None:
        values["chunked_prefill_size"] = -1
    options = SglangOptions.from_dict(values)
    return SglangScheduler(
        options, as_recorded=True, split_keeps_age=config.get("cache", "unified") == "unified"
    )


def _specs(workload: list[dict[str, Any]]) -> list[tuple[RequestSpec, int]]:
    """Output token j of the request at index i is 1000000 + 10000*i + j."""
    return [
        (
            RequestSpec(
                request_id=w["id"],
                arrival_s=float(w["arrival_step"]),
                num_prompt_tokens=len(w["prompt_token_ids"]),
                num_output_tokens=w["output_len"],
                max_output_tokens=w["output_len"],
                prompt_token_ids=w["prompt_token_ids"],
                priority=_LEAST_URGENT if w.get("priority") is None else w["priority"],
            ),
            1_000_000 + 10_000 * i,
        )
        for i, w in enumerate(workload)
    ]


def _run_step(
    scheduler: SglangScheduler, number: int, added: list[str], totals: dict[str, int]
) -> dict[str, Any]:
    """One step of the scheduler, as the recorder wrote it down."""
    state = scheduler.state
    record: dict[str, Any] = {
        "step": number,
        "added": added,
        "new_token_ratio_before": state.ratio.current,
    }
    queued = {r.request_id for r in state.waiting}
    plan = scheduler.schedule()
    record["mode"] = state.mode
    record["new_token_ratio_after"] = state.ratio.current
    if state.mode is not None:
        record["batch"] = _batch(state, queued)
        record["chunked_req"] = state.chunked.request_id if state.chunked else None
        record["available_after_alloc"] = state.pool.available
        record["evictable_after_alloc"] = state.tree.num_evictable
    record["retracted"] = [
        {"id": r.request_id, "prompt": r.num_prompt, "outputs": r.num_outputs} for r in state.retracted
    ]
    record["evictions"] = state.memory.evictions
    record["running"] = [r.request_id for r in state.running]
    _count(state, plan, totals)
    record["finished"] = list(scheduler.update(plan, StepResult(0.0)).finished)
    record["waiting"] = [r.request_id for r in state.waiting]
    record["batch_is_full"] = state.batch_is_full
    record["available"] = state.pool.available
    record["evictable"] = state.tree.num_evictable
    record["protected"] = state.tree.num_protected
    return record


def _batch(state: SglangState, queued: set[str]) -> list[Any]:
    if state.mode == "decode":
        return [r.request_id for r in state.decode_rows]
    rows: list[Any] = [
        [r.request_id, r.prefix_len, r.extend_end - r.prefix_len, r.request_id in queued]
        for r in state.extend_rows
    ]
    return rows + [[r.request_id, "decode"] for r in state.decode_rows]


def _count(state: SglangState, plan: StepPlan, totals: dict[str, int]) -> None:
    totals["hit_tokens_at_admission"] += sum(admitted.num_hit_tokens for admitted in plan.admitted)
    totals["extend_tokens"] += plan.num_prefill_tokens
    totals["retractions"] += len(state.retracted)
    totals["evicted_tokens"] += sum(evicted for _, evicted in state.memory.evictions)
