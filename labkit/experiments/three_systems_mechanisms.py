"""Section 10: what vLLM and TensorRT-LLM are known for, measured on their models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from labkit.experiments.serve import STEP_COST
from labkit.experiments.three_systems import SystemRun, SystemWatch, run_system, system
from labkit.models import get_gpu, get_model
from labkit.planning.engines import rank_budget
from labkit.planning.request import PlanRequest
from labkit.serving.base import Executor, StepPlan, StepResult
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.workload.base import RequestSpec

# --- 10.1 vLLM: blocks, tables, a budget, and what sharing does to reclaim --------------------------------------------------


class _TableWatch(SystemWatch, Executor):
    """Stands between `schedule` and `update`, where vLLM's tables are complete, and looks at those that are about to leave."""

    def __init__(self) -> None:
        super().__init__()
        self.cost = LinearStepCost(**STEP_COST)
        self.scheduler: Any = None
        self.num_held = self.num_returned = self.num_tables = self.num_scattered = 0
        self.examples: list[tuple[str, list[int]]] = []
        #: (end_s, held block ids ascending, how many tables name each) now and then, for a player
        self.looks: list[tuple[float, np.ndarray, np.ndarray]] = []
        self._tables: dict[str, list[int]] = {}
        self._num_free = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self._tables = {r.id: list(r.table) for r in self.scheduler.running}
        self._num_free = self.scheduler.pool.num_free
        return self.cost.execute(plan)

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        if self.num_steps % 40 == 0 and len(self.looks) < 250:
            tables = [b for r in scheduler.running for b in r.table]
            self.looks.append((end_s, *np.unique(np.array(tables, dtype=np.int64), return_counts=True)))
        if not outcome.finished:
            return
        self.num_returned += scheduler.pool.num_free - self._num_free
        for request_id in outcome.finished:
            blocks = self._tables[request_id]
            self.num_held += len(blocks)
            self.num_tables += 1
            self.num_scattered += num_pieces(blocks) > 4
            if len(self.examples) < 400:
                self.examples.append((request_id, blocks))


def num_pieces(blocks: Sequence[int]) -> int:
    """Runs of consecutive block ids."""
    return 1 + sum(b != a + 1 for a, b in pairwise(blocks)) if blocks else 0


@dataclass(frozen=True)
class Blocks:
    """Of the requests that finished: the share whose blocks lie in more than four pieces, and of the blocks that they held the
    share that came back to the free queue when they left."""

    scattered: float
    returned: float
    all_served: bool
    watch: _TableWatch

    def anywhere(self) -> bool:
        """Most tables are scattered, and everybody is served all the same."""
        return self.all_served and self.scattered > 0.5

    def shared_reclaim(self) -> bool:
        """A leaving request gives back less than nine tenths of what it held: others hold the rest."""
        return self.returned < 0.9


def vllm_blocks(requests: Sequence[RequestSpec], capacity_tokens: int, **own: Any) -> Blocks:
    """Run vLLM and read its block tables at the moment when requests leave."""
    watch = _TableWatch()
    watch.scheduler = system("vllm", capacity_tokens, **own)
    totals = simulate(watch.scheduler, watch, requests, watch)
    return Blocks(
        scattered=watch.num_scattered / max(1, watch.num_tables),
        returned=watch.num_returned / max(1, watch.num_held),
        all_served=totals.num_finished == totals.num_requests,
        watch=watch,
    )


def one_at_a_time(requests: Sequence[RequestSpec]) -> list[RequestSpec]:
    """The control: the same requests far apart, so that nobody takes a block while another one grows."""
    return [dataclasses.replace(r, arrival_s=100.0 * i) for i, r in enumerate(requests)]


# --- 10.2 TensorRT-LLM: fixed shapes, workspaces, capacity policies ---------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """An engine built for `max_num_tokens` in a step and `max_batch_size` requests: what that takes beside the weights, and
    the KV tokens that are left on the GPU. Bytes."""

    max_num_tokens: int
    max_batch_size: int
    activation_bytes: int
    workspace_bytes: int
    kv_bytes: int
    kv_tokens: int


def built_for(
    max_num_tokens: int, max_batch_size: int = 256, *, model: str = "Llama-3.1-8B", gpu: str = "H100-80GB"
) -> Shape:
    """The budget in TensorRT-LLM's order: a profiling pass over the largest step, then a fraction of what is free."""
    spec = get_model(model)
    budget = rank_budget(
        PlanRequest(
            spec, get_gpu(gpu), engine="tensorrt_llm", max_model_len=8192, max_num_seqs=max_batch_size,
            max_batched_tokens=max_num_tokens,
        )
    )  # fmt: skip
    size = {
        kind: sum(t.num_bytes for t in budget.terms if t.kind == kind)
        for kind in ("activations", "workspace")
    }
    return Shape(
        max_num_tokens, max_batch_size, size["activations"], size["workspace"], budget.kv_bytes,
        budget.kv_bytes // spec.kv_bytes_per_token(),
    )  # fmt: skip


def costs_kv(large: Shape, small: Shape) -> bool:
    """The larger shape leaves a tenth less KV: the first half of claim 10.2."""
    return large.kv_tokens < 0.9 * small.kv_tokens


def step_fill(run: SystemRun, max_num_tokens: int) -> dict[str, float]:
    """How far steps fill the shape that they were built for: share of `max_num_tokens`, median and 95 % quantile; and the
    share of rows that are padding where decodes are rounded up to graphs of 1, 2, 4, 8, ... requests."""
    frame = run.watch.steps()
    tokens = (frame["prefill_tokens"] + frame["decodes"]).to_numpy()
    decodes = frame["decodes"].to_numpy()
    decodes = decodes[decodes > 0]
    captured = 2 ** np.ceil(np.log2(decodes))
    return {
        "median step": float(np.median(tokens)) / max_num_tokens,
        "95 % step": float(np.quantile(tokens, 0.95)) / max_num_tokens,
        "padding of decode graphs": float(1 - decodes.sum() / captured.sum()),
    }


CAPACITY_POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION")


def capacity_policies(requests: Sequence[RequestSpec], capacity_tokens: int) -> dict[str, SystemRun]:
    """TensorRT-LLM under the two policies that batch continuously (STATIC_BATCH admits only when
    nobody generates: a fifth of the speed on this load)."""
    return {
        policy: run_system(
            "tensorrt_llm", requests, capacity_tokens, label=policy, capacity_scheduler_policy=policy
        )
        for policy in CAPACITY_POLICIES
    }


def fastest_is_not_steadiest(runs: dict[str, SystemRun]) -> bool:
    """The policy with the shortest waits (P95 of TTFT) takes memory away from running requests; the one that takes least
    lets the others wait at least twice as long: the second half of claim 10.2."""
    fastest = min(runs.values(), key=lambda run: run.ttft_p95_s)
    steadiest = min(runs.values(), key=lambda run: run.num_preempted)
    return fastest.num_preempted > steadiest.num_preempted and steadiest.ttft_p95_s > 2 * fastest.ttft_p95_s
