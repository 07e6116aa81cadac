"""Requests that wait: for ever, in circles, or behind somebody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.experiments.scenarios import SCENARIOS
from labkit.kv.paged import PagedKVCache
from labkit.observe.recorder import RunRecorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.lab import LabScheduler
from labkit.serving.progress import NoProgress, ProgressGuard
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


@SCENARIOS.register("never-fits")
def never_fits(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Requests larger than the whole cache, with and without a check on arrival."""
    figures = {}
    for name, checks in (("without_check", False), ("with_check", True)):
        kv = PagedKVCache(inputs["num_blocks"], 1, block_size=inputs["block_size"])
        scheduler = make_scheduler("lab", kv, can_ever_fit=checks)
        load = [
            RequestSpec(
                f"r{i}", 0.0, inputs["prompt_tokens"], inputs["output_tokens"], inputs["output_tokens"]
            )
            for i in range(inputs["num_requests"])
        ]
        assert isinstance(scheduler, LabScheduler)
        reason = ""
        recorder = RunRecorder()
        try:
            simulate(scheduler, LinearStepCost(), load, recorder)
        except NoProgress as error:
            reason = str(error)
        figures[name] = {
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "num_refused": recorder.num_refused,
            "usage": scheduler.usage,
            "no_progress": bool(reason),
            "sentence": reason,
        }
    return figures


@SCENARIOS.register("fits-now-not-later")
def fits_now_not_later(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The prompt fits and the answer does not: a wall in the middle of decoding."""
    figures = {}
    for name, checks in (("without_check", False), ("with_check", True)):
        kv = PagedKVCache(inputs["num_blocks"], 1, block_size=inputs["block_size"])
        scheduler = make_scheduler(
            "lab",
            kv,
            can_ever_fit=checks,
            gate="chunk",
            max_num_batched_tokens=inputs["max_num_batched_tokens"],
        )
        assert isinstance(scheduler, LabScheduler)
        output = inputs["output_tokens"]
        recorder, sentence = RunRecorder(), ""
        try:
            simulate(
                scheduler,
                LinearStepCost(),
                [RequestSpec("r0", 0.0, inputs["prompt_tokens"], output, output)],
                recorder,
            )
        except NoProgress as error:
            sentence = str(error)
        live = scheduler.live.get("r0")
        figures[name] = {
            "num_outputs_at_wall": live.num_output_tokens if live else 0,
            "num_preemptions": recorder.num_preemptions,
            "retries_for_ever": bool(sentence),
            "num_refused": recorder.num_refused,
            "sentence": sentence,
        }
    return figures


@SCENARIOS.register("blocked-head")
def blocked_head(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A large request at the head of the queue, small ones behind it and more of them coming."""
    size = inputs["block_size"]
    rules: dict[str, dict[str, Any]] = {
        "stop": {"blocked": "stop"},
        "skip": {"blocked": "skip"},
        "ageing": {"blocked": "skip", "max_skips": inputs["max_skips"]},
    }
    figures: dict[str, Any] = {}
    for name, rule in rules.items():
        kv = PagedKVCache(inputs["num_blocks"], 1, block_size=size)
        scheduler = make_scheduler(
            "lab", kv, max_num_batched_tokens=1 << 20, pressure="recompute", reserve="all", **rule
        )
        held, each = inputs["num_blocks"] - inputs["free_blocks"], inputs["resident_blocks"]
        first, *rest = inputs["waiting_blocks"]
        load = [
            _blocks(
                f"resident{i}", 0, each, inputs["resident_steps"] + i * inputs["resident_gap_steps"], size
            )
            for i in range(held // each)
        ]
        load.append(_blocks("large", 1, first, inputs["small_steps"], size))
        load += [_blocks(f"waiting{i}", 1, n, inputs["small_steps"], size) for i, n in enumerate(rest)]
        for step in range(2, inputs["stream_steps"], inputs["stream_every"]):
            load.append(_blocks(f"small{step}", step, inputs["stream_blocks"], inputs["small_steps"], size))
        recorder = RunRecorder()
        simulate(
            scheduler,
            LinearStepCost(),
            load,
            recorder,
            clock="step",
            max_steps=inputs["num_steps"],
            guard=ProgressGuard(),
        )
        waits = {
            r.request_id: (r.admission_s if r.admission_s is not None else inputs["num_steps"]) - r.arrival_s
            for r in recorder.requests.values()
        }
        small = [wait for request_id, wait in waits.items() if request_id.startswith(("small", "waiting"))]
        figures[name] = {
            "small_go_at_once": max(waits[f"waiting{i}"] for i in range(len(rest))) == 0,
            "large_served": recorder.requests["large"].admission_s is not None,
            "large_wait_steps": waits["large"],
            "longest_small_wait_steps": max(small),
            "longest_wait_steps": max(waits.values()),
        }
    return figures


def _blocks(request_id: str, step: int, num_blocks: int, num_steps: int, block_size: int) -> RequestSpec:
    """A request that holds exactly `num_blocks` for `num_steps` steps."""
    prompt = num_blocks * block_size - num_steps
    return RequestSpec(request_id, float(step), prompt, num_steps, num_steps)
