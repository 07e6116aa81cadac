"""Replays a recording of TensorRT-LLM's Python schedulers and compares every recorded field of every step.

The format: tests/golden/trtllm/README.md. A step: arrivals, schedule, paused requests release their blocks, contexts and
decodes take theirs, everything runs, finished requests release, completed contexts store their blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.errors import InputError
from labkit.recording import Comparison
from labkit.serving.base import StepResult
from labkit.serving.systems.recorded import check_parts, check_workload, compare_header
from labkit.serving.systems.tensorrt_llm import TensorRtLlmScheduler
from labkit.serving.systems.tensorrt_llm_request import GENERATION
from labkit.workload.base import RequestSpec

BODY = {"config": dict, "workload": list, "steps": list, "totals": dict}
FORMAT = "trtllm-steps-1"
VERSION = "tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py@002f3cc3d0554c4ebd530d1354f96e89666d93b8"
OUTPUT_TOKEN_RULE = "token j of request index i = 1000000+10000*i+j"
#: words about the recording itself, which no model can reproduce
REMARKS = ("real", "stub", "fields")
#: recorded option -> TensorRT-LLM's name
OPTIONS = {
    "capacity_policy": "capacity_scheduler_policy",
    "chunking_policy": "context_chunking_policy",
    "kv_manager": "kv_cache_manager",
    **{
        name: name
        for name in (
            "tokens_per_block", "num_blocks", "max_num_requests", "max_batch_size", "max_num_tokens", "max_num_active_requests",
            "chunk_unit_size", "two_step_lookahead", "enable_block_reuse", "enable_prefix_aware_scheduling",
        )
    },
}  # fmt: skip
IGNORED_OPTIONS = ("max_attention_window",)


def replay(recording: Mapping[str, Any]) -> Comparison:
    """Raises `InputError` when the file is not such a recording."""
    check_parts(recording, BODY, "TensorRT-LLM recording")
    model = _Model(recording["config"], recording["workload"])
    head = {
        "system": "tensorrt_llm",
        "format": FORMAT,
        "version": VERSION,
        "output_token_rule": OUTPUT_TOKEN_RULE,
    }
    comparison = Comparison("trtllm")
    compare_header(comparison, recording, head, body=BODY, remarks=REMARKS)
    steps = []
    for index, recorded in enumerate(recording["steps"]):
        step = model.step(index)
        comparison.compare(f"steps[{index}]", recorded, step)
        comparison.num_ops += 1
        steps.append(step)
    comparison.compare("totals", recording["totals"], _totals(steps))
    return comparison


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recording's configuration as `TensorRtLlmOptions` has it. Raises `InputError` for a field that is not known."""
    options: dict[str, Any] = {"enable_chunked_prefill": config.get("chunking_policy") is not None}
    for name, value in config.items():
        if name in IGNORED_OPTIONS or (name == "chunking_policy" and value is None):
            continue
        if name not in OPTIONS:
            raise InputError(
                "TensorRT-LLM recording",
                f"is not known; accepted: {', '.join(sorted(OPTIONS))}",
                field=f"config.{name}",
            )
        options[OPTIONS[name]] = value
    return options


class _Model:
    def __init__(self, config: Mapping[str, Any], workload: Sequence[Mapping[str, Any]]):
        check_workload(workload, "TensorRT-LLM recording")
        self.scheduler = TensorRtLlmScheduler(options_of(config), record_chunks=True, refuse=False)
        self.workload = workload
        self.index = {row["id"]: i for i, row in enumerate(workload)}
        self.order = sorted(range(len(workload)), key=lambda i: (workload[i]["arrival_step"], i))
        self.num_sampled: Counter[str] = Counter()

    def step(self, step: int) -> dict[str, Any]:
        s = self.scheduler
        added = self._arrivals(step)
        free_before = s.pool.num_free
        held = {r.id: len(r.table) for r in s.requests.values()}
        s.activate()
        active = [r.id for r in s.active]
        before = [r for r in s.active if r.state == GENERATION]
        plan = s.schedule()
        fitting = s.fitting if s.fitting is not None else before + s.fitting_rest
        paused = [p.request.id for p in s.preempted]
        hit = {r.id: r.computed // s.block_size for r in s.admitted}
        held.update(dict.fromkeys(paused, 0))
        new = {r.id: len(r.table) - held[r.id] - hit.get(r.id, 0) for r in s.active}
        record: dict[str, Any] = {
            "step": step,
            "added": added,
            "active": active,
            "fitting": [r.id for r in fitting],
            "paused": paused,
            "paused_detail": [[p.request.id, p.num_blocks, p.num_generated, p.position] for p in s.preempted],
            "context": [[r.id, n, r.computed, s.decided[r]] for r, n in s.chunks.items()],
            "generation": [r.id for r in s.generating()],
            "admitted": [
                {
                    "id": r.id,
                    "prompt_len": r.prompt,
                    "reused_tokens": r.computed,
                    "blocks": len(r.table),
                    "restarts": r.num_pauses,
                }
                for r in (s.admitted if s.has_kv else ())
            ],
            "new_blocks": {name: n for name, n in new.items() if n},
            "tokens": plan.num_scheduled_tokens,
            "free_before": free_before,
            "free_after_pause": s.free_after_pause,
            "free_after_prepare": s.pool.num_free,
        }
        tokens = {}
        for chunk in plan.chunks or ():
            if chunk.samples:
                name = chunk.request_id
                tokens[name] = 1_000_000 + 10_000 * self.index[name] + self.num_sampled[name]
                self.num_sampled[name] += 1
        record["finished"] = list(s.update(plan, StepResult(0.0, tokens)).finished)
        record["free_end"] = s.pool.num_free
        if not s.has_kv:
            record.update({name: None for name in record if name.startswith("free_")})
        if step % 16 == 0:
            s.check_integrity()
        return record

    def _arrivals(self, step: int) -> list[str]:
        added = []
        while self.order and self.workload[self.order[0]]["arrival_step"] <= step:
            row = self.workload[self.order.pop(0)]
            prompt, num_outputs = row["prompt_token_ids"], row["output_len"]
            self.scheduler.add(RequestSpec(row["id"], 0.0, len(prompt), num_outputs, num_outputs, prompt))
            added.append(row["id"])
        return added


def _totals(steps: list[dict[str, Any]]) -> dict[str, Any]:
    free = [s["free_after_prepare"] for s in steps if s["free_after_prepare"] is not None]
    return {
        "steps": len(steps),
        "pauses": sum(len(s["paused"]) for s in steps),
        "context_tokens": sum(row[1] for s in steps for row in s["context"]),
        "reused_tokens": sum(a["reused_tokens"] for s in steps for a in s["admitted"]),
        "new_blocks": sum(sum(s["new_blocks"].values()) for s in steps),
        "stalled_steps": sum(1 for s in steps if s["active"] and not s["tokens"]),
        "min_free": min(free) if free else None,
        "max_running": max((len(s["context"]) + len(s["generation"]) for s in steps), default=0),
        "fit_not_run": sum(len(s["fitting"]) - len(s["context"]) - len(s["generation"]) for s in steps),
    }
