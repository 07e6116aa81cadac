"""A plan on a real load: how many of *its* requests fit at once, and how many are preempted when it is replayed.

The printed concurrency assumes that every request is as long as it may be. Real ones are shorter and grow while they
live, so the pool holds more of them at rest; whether it does so without preemption only a replay tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.kv.paged import PagedKVCache
from labkit.observe.recorder import RunRecorder
from labkit.planning.engines import batch_limits
from labkit.planning.lifetime import LifetimeBudget, lifetime_budget, load_of_trace
from labkit.planning.planner import Plan
from labkit.serving.base import Scheduler
from labkit.serving.cost_model import CostModelExecutor
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


@dataclass(frozen=True)
class TracePlan:
    """Blocks that the trace's requests hold at the end (`final`) and on average over their life (`mean`)."""

    num_requests: int
    num_too_long: int
    mean_prompt_tokens: float
    mean_output_tokens: float
    concurrency_at_final_length: float
    concurrency_at_mean_footprint: float
    concurrency_at_p95_length: float
    preempted_share: float | None = None
    summary: dict[str, Any] | None = None
    lifetime: LifetimeBudget | None = None

    def as_dict(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return data | {"lifetime": None if self.lifetime is None else self.lifetime.as_dict()}


def plan_on_trace(
    plan: Plan,
    requests: Sequence[RequestSpec],
    *,
    replay: bool = True,
    scheduler: str = "lab",
) -> TracePlan:
    """Concurrency on the load's own lengths; with `replay` also the share of requests that get preempted, under the
    lab's scheduler or the model of the engine's own.

    Requests above `max_model_len` are left out of the footprint and refused in the replay, as servers do.
    """
    model_len = plan.request.model_len
    fitting = [r for r in requests if r.num_prompt_tokens < model_len]
    if not fitting:
        raise LabError(f"no request of the trace has a prompt below --max-model-len {model_len:,}")
    prompts = np.array([r.num_prompt_tokens for r in fitting], dtype=float)
    outputs = np.minimum(np.array([r.num_output_tokens for r in fitting], dtype=float), model_len - prompts)
    final = _blocks(plan, prompts + outputs)
    # life is measured in decode steps: a request of many outputs is resident for longer
    mean = float((_blocks(plan, prompts + outputs / 2) * outputs).sum() / outputs.sum())
    pool = max(0, plan.num_usable_blocks)
    shares: dict[str, Any] = {}
    if replay:
        recorder = replay_plan(plan, requests, scheduler)
        admitted = sum(r.admission_s is not None for r in recorder.requests.values())
        preempted = sum(r.num_preemptions > 0 for r in recorder.requests.values())
        shares = {"preempted_share": preempted / admitted if admitted else 0.0, "summary": recorder.summary()}
        lives = [
            r.finish_s - r.admission_s
            for r in recorder.requests.values()
            if r.finish_s and r.admission_s is not None
        ]
        if len(fitting) > 1 and lives:
            shares["lifetime"] = lifetime_budget(plan, load_of_trace(fitting, float(np.mean(lives))))
    return TracePlan(
        num_requests=len(requests),
        num_too_long=len(requests) - len(fitting),
        mean_prompt_tokens=float(prompts.mean()),
        mean_output_tokens=float(outputs.mean()),
        concurrency_at_final_length=pool / float(final.mean()),
        concurrency_at_mean_footprint=pool / mean,
        concurrency_at_p95_length=pool / float(np.percentile(final, 95)),
        **shares,
    )


def _blocks(plan: Plan, num_tokens: np.ndarray) -> np.ndarray:
    """Blocks that requests of `num_tokens` hold, over all groups."""
    batched = batch_limits(plan.request)[0]
    return np.array(
        [plan.groups.blocks_per_request(int(n), plan.block_size, batched) for n in np.ceil(num_tokens)]
    )


def replay_blocks(plan: Plan, requests: Sequence[RequestSpec]) -> int:
    """Blocks of one full-attention group that the replay may use. The other groups' blocks (windows, states) come out of
    the same pool: their mean share is taken off."""
    lengths = np.array([r.num_prompt_tokens + r.num_output_tokens / 2 for r in requests])
    full = float(np.ceil(lengths / plan.block_size).mean())
    return int(plan.num_usable_blocks * full / float(_blocks(plan, lengths).mean()))


def replay_plan(plan: Plan, requests: Sequence[RequestSpec], scheduler: str = "lab") -> RunRecorder:
    """Replay on the plan's pool; time is the cost model's, for one rank's share of the work.

    "lab" is block-budget admission with chunked prefill and preemption by recompute; "engine" the model of the plan's
    engine (`labkit.serving.systems`) with its own admission and pressure rules.
    """
    if scheduler not in ("lab", "engine"):
        raise LabError(f"unknown scheduler {scheduler!r}; choose one of: engine, lab")
    blocks = replay_blocks(plan, requests)
    if blocks < 2:
        raise LabError("the pool has no two blocks to replay a trace on; see the plan's sentence")
    executor = CostModelExecutor(plan.request.model, plan.request.gpu, kv_dtype=plan.request.kv_dtype)
    recorder = RunRecorder()
    decides = _engine_scheduler(plan, blocks) if scheduler == "engine" else _lab_scheduler(plan, blocks)
    simulate(decides, executor, requests, recorder)
    return recorder


def _lab_scheduler(plan: Plan, blocks: int) -> Scheduler:
    tokens, seqs = batch_limits(plan.request)
    kv = PagedKVCache(blocks, max(1, plan.groups.bytes_per_token), block_size=plan.block_size)
    return make_scheduler(
        "lab", kv, max_num_batched_tokens=tokens, max_num_seqs=seqs, max_model_len=plan.request.model_len
    )


def _engine_scheduler(plan: Plan, blocks: int) -> Scheduler:
    """The engine's own option names."""
    tokens, seqs = batch_limits(plan.request)
    size = plan.block_size
    longest = min(plan.request.model_len, (blocks - 1) * size)
    if plan.request.engine == "sglang":
        return make_scheduler(
            "sglang",
            max_total_tokens=blocks * size,
            context_length=longest,
            max_running_requests=seqs,
            chunked_prefill_size=tokens,
        )
    if plan.request.engine == "tensorrt_llm":
        return make_scheduler(
            "tensorrt_llm",
            num_blocks=blocks,
            tokens_per_block=size,
            max_seq_len=longest,
            max_batch_size=seqs,
            max_num_tokens=tokens,
        )
    return make_scheduler(
        "vllm",
        num_gpu_blocks=blocks + 1,  # the null block comes on top
        block_size=size,
        max_model_len=longest,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
    )
