"""Replays a recording of the real vLLM scheduler and compares every recorded field of every step, block ids included.

The format: tests/golden/vllm/README.md. Token j of the request at list index i is `1000000 + 10000*i + j`; there is no
end-of-sequence token. In step s every request with `arrival_step <= s` is added first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.errors import InputError, LabError
from labkit.recording import Comparison
from labkit.serving.base import StepResult
from labkit.serving.systems.recorded import check_parts, check_workload, compare_header, left_out
from labkit.serving.systems.vllm import VllmScheduler
from labkit.workload.base import RequestSpec

OUTPUT_TOKEN_RULE = "token j of request index i = 1000000+10000*i+j"
BODY = {"config": dict, "workload": list, "steps": list, "totals": dict}
#: what recordings of the asynchronous scheduler may leave out
STEP_DETAILS = ("new_block_ids", "cached_blocks_in_map")
ADMITTED_DETAILS = ("cached_blocks", "table")


def replay(recording: Mapping[str, Any]) -> Comparison:
    """Raises `InputError` when the file is not such a recording."""
    check_parts(recording, BODY, "vLLM recording")
    model = _Model(recording["config"], recording["workload"])
    head = {
        "system": "vllm",
        "version": "0.33.0",
        "commit": "g4ba787ec9",
        "output_token_rule": OUTPUT_TOKEN_RULE,
    }
    head["scheduler"] = "AsyncScheduler" if model.scheduler.options.async_scheduling else "Scheduler"
    comparison = Comparison("vllm")
    compare_header(comparison, recording, head, body=BODY)
    replayed_steps = []
    details = _details_left_out(recording["steps"], model.scheduler.options.async_scheduling)
    for index, recorded in enumerate(recording["steps"]):
        replayed = _without(model.step(index), details)
        comparison.compare(f"steps[{index}]", recorded, replayed)
        comparison.num_ops += 1
        replayed_steps.append(replayed)
    comparison.compare("totals", recording["totals"], _totals(replayed_steps))
    return comparison


class _Model:
    """The lab's scheduler, fed with a recording's workload."""

    def __init__(self, config: Mapping[str, Any], workload: Sequence[Mapping[str, Any]]):
        if "num_blocks" not in config:
            raise InputError(
                "vLLM recording", "is missing; expected the size of the pool", field="config.num_blocks"
            )
        check_workload(workload, "vLLM recording")
        options = dict(config)
        options["num_gpu_blocks"] = options.pop("num_blocks")
        self.scheduler = VllmScheduler(record_chunks=True, refuse=False, **options)
        self.recorder = DecisionRecorder(self.scheduler, check_every=16)
        self.workload = workload
        self.index = {row["id"]: i for i, row in enumerate(workload)}
        self.order = sorted(range(len(workload)), key=lambda i: (workload[i]["arrival_step"], i))

    def step(self, step: int) -> dict[str, Any]:
        added = []
        while self.order and self.workload[self.order[0]]["arrival_step"] <= step:
            row = self.workload[self.order.pop(0)]
            prompt, num_outputs = row["prompt_token_ids"], row["output_len"]
            longest = row.get("max_output_len", num_outputs)  # above it: the request ends by itself
            priority = row.get("priority") or 0
            spec = RequestSpec(row["id"], 0.0, len(prompt), num_outputs, longest, prompt, priority=priority)
            self.scheduler.add(spec)
            added.append(row["id"])
        answer = lambda name, j: 1_000_000 + 10_000 * self.index[name] + j  # noqa: E731
        return {"step": step, "added": added} | self.recorder.step(answer)


class DecisionRecorder:
    """Runs a scheduler step by step and writes down all that it decides, in the words of the recordings."""

    def __init__(self, scheduler: VllmScheduler, check_every: int = 1):
        if not scheduler.record_chunks:
            raise LabError("decisions can be written down only with record_chunks=True")
        self.scheduler, self.check_every, self.num_steps = scheduler, check_every, 0
        self._num_blocks: dict[str, int] = {}
        self._num_sampled: Counter[str] = Counter()

    def step(self, answer: Callable[[str, int], int]) -> dict[str, Any]:
        """One step; `answer(request_id, j)` is output token j. Checks the scheduler's integrity every `check_every` steps."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        pool.evicted_ids = []
        plan = scheduler.schedule()
        chunks = plan.chunks or []
        tables = {c.request_id: list(c.block_table) for c in chunks}
        hit_blocks = {a.request_id: a.num_hit_tokens // scheduler.block_size for a in plan.admitted}
        decided: dict[str, Any] = {
            "scheduled": [[c.request_id, c.num_tokens] for c in chunks],
            "admitted": [
                {
                    "id": a.request_id,
                    "cached_tokens": a.num_hit_tokens,
                    "cached_blocks": hit_blocks[a.request_id],
                    "resumed": a.resumed,
                    "table": tables[a.request_id],
                }
                for a in plan.admitted
            ],
            "new_block_ids": {
                name: table[hit_blocks.get(name, self._num_blocks.get(name, 0)) :]
                for name, table in tables.items()
            },
            "preempted": [
                {
                    "id": victim.request.id,
                    "blocks": victim.num_blocks,
                    "num_computed_tokens": victim.num_computed_tokens,
                    "num_tokens": victim.num_tokens,
                }
                for victim in scheduler.preempted
            ],
            "evicted_block_ids": pool.evicted_ids,
            "free_blocks_after_schedule": pool.num_free,
        }
        tokens = {}
        for chunk in chunks:
            if chunk.samples:
                tokens[chunk.request_id] = answer(chunk.request_id, self._num_sampled[chunk.request_id])
                self._num_sampled[chunk.request_id] += 1
        outcome = scheduler.update(plan, StepResult(0.0, tokens))
        self.num_steps += 1
        if self.num_steps % self.check_every == 0:
            scheduler.check_integrity()
        self._num_blocks = {r.id: len(r.table) for r in scheduler.running}
        return decided | {
            "finished": list(outcome.finished),
            "free_blocks_end": pool.num_free,
            "running": [r.id for r in scheduler.running],
            "waiting": [r.id for r in scheduler.waiting],
            "cached_blocks_in_map": pool.num_findable,
        }


def _details_left_out(
    steps: Sequence[Mapping[str, Any]], async_scheduling: bool
) -> tuple[set[str], set[str]]:
    """Names that no step and no admitted row of an asynchronous recording has; every other one must be in all of them."""
    if not async_scheduling:
        return set(), set()
    rows = [row for step in steps for row in step.get("admitted", ())]
    return left_out(steps, STEP_DETAILS), left_out(rows, ADMITTED_DETAILS)


def _without(step: dict[str, Any], details: tuple[set[str], set[str]]) -> dict[str, Any]:
    kept = {name: value for name, value in step.items() if name not in details[0]}
    kept["admitted"] = [{k: v for k, v in row.items() if k not in details[1]} for row in step["admitted"]]
    return kept


def _totals(steps: list[dict[str, Any]]) -> dict[str, int]:
    admitted = [a for s in steps for a in s["admitted"]]
    return {
        "steps": len(steps),
        "preemptions": sum(len(s["preempted"]) for s in steps),
        "evicted_blocks": sum(len(s["evicted_block_ids"]) for s in steps),
        "hit_tokens_first_admission": sum(a["cached_tokens"] for a in admitted if not a["resumed"]),
        "hit_tokens_resumed": sum(a["cached_tokens"] for a in admitted if a["resumed"]),
        "scheduled_tokens": sum(n for s in steps for _, n in s["scheduled"]),
        "new_blocks": sum(len(ids) for s in steps for ids in s.get("new_block_ids", {}).values()),
        "min_free": min((s["free_blocks_after_schedule"] for s in steps), default=0),
    }
