"""The shipped TensorRT-LLM scheduler decides like the plain one that walks the whole list in both stages."""

from __future__ import annotations

import random
from typing import Any

import pytest

from labkit.serving.base import StepResult
from labkit.serving.systems.tensorrt_llm import TensorRtLlmScheduler
from labkit.serving.systems.tensorrt_llm_capacity import Capacity
from labkit.serving.systems.tensorrt_llm_request import GENERATION
from labkit.serving.systems.tensorrt_llm_steps import Steps
from labkit.workload.base import RequestSpec
from tests.mutants.test_vllm_mutants import Mutant, plant
from tests.reference.trtllm_plain import PlainTrtllm


def random_case(seed: int) -> tuple[dict[str, Any], list[tuple[int, RequestSpec]]]:
    rng = random.Random(seed)
    size = rng.choice([1, 2, 4, 8])
    unit = size * rng.choice([1, 1, 2])
    chunked = rng.random() < 0.7
    places = rng.choice([1, 2, 3, 8])
    options = {
        "tokens_per_block": size,
        "num_blocks": rng.randint(80 // size + 2, 160 // size + 2),
        "max_batch_size": places,
        "max_num_requests": rng.choice([places, places + 3, rng.randint(1, 8)]),
        "max_num_tokens": unit * rng.randint(1, 9) if chunked else rng.randint(80, 120),
        "enable_chunked_prefill": chunked,
        "chunk_unit_size": unit,
        "context_chunking_policy": rng.choice(["EQUAL_PROGRESS", "FIRST_COME_FIRST_SERVED"]),
        "capacity_scheduler_policy": rng.choice(
            ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "MAX_UTILIZATION", "STATIC_BATCH"]
        ),
        "two_step_lookahead": rng.random() < 0.3,
        "enable_block_reuse": False,
    }
    arrival, rows = 0, []
    for i in range(rng.randint(2, 16)):
        arrival += rng.choice([0, 0, 0, 1, 4])
        most = rng.randint(1, 45)
        outputs = rng.randint(1, most) if rng.random() < 0.3 else most
        rows.append((arrival, RequestSpec(f"r{i}", 0.0, rng.randint(1, 35), outputs, most)))
    return options, rows


def compare(seed: int, check: bool = True) -> int:
    """Steps compared. Raises AssertionError at the first that differs."""
    options, rows = random_case(seed)
    plain, shipped = PlainTrtllm(options), TensorRtLlmScheduler(options, record_chunks=True, refuse=False)
    for step in range(3000):
        while rows and rows[0][0] <= step:
            spec = rows.pop(0)[1]
            plain.add(
                spec.request_id, spec.num_prompt_tokens, spec.num_output_tokens, spec.max_output_tokens or 0
            )
            shipped.add(spec)
        if not rows and not plain.active:
            assert not shipped.has_work()
            return step
        expected = plain.step()
        before = [r for r in shipped.active if r.state == GENERATION]
        plan = shipped.schedule()
        fitting = shipped.fitting if shipped.fitting is not None else before + shipped.fitting_rest
        decided = {
            "fitting": [r.id for r in fitting],
            "paused": [p.request.id for p in shipped.preempted],
            "context": [[r.id, r.computed, n] for r, n in shipped.chunks.items()],
            "generation": [r.id for r in shipped.generating()],
            "free_after_prepare": shipped.pool.num_free,
        }
        decided["finished"] = list(shipped.update(plan, StepResult(0.0)).finished)
        decided["free_end"] = shipped.pool.num_free
        assert decided == expected, f"seed {seed}, step {step}"
        if check:
            shipped.check_integrity()
    raise AssertionError(f"seed {seed}: the load did not end in 3000 steps")


@pytest.mark.parametrize("block", range(4))
def test_every_decision_is_equal(block: int) -> None:
    assert sum(compare(seed) for seed in range(block * 60, block * 60 + 60)) > 2000


@pytest.mark.fuzz
def test_every_decision_is_equal_on_many_loads() -> None:
    for seed in range(1_000_000, 1_010_000):
        compare(seed)


MUTANTS = {
    "everybody goes on although a block is missing": Mutant(Steps, "_all_go_on", "needed <= self.pool.num_free", "True"),
    "lookahead is forgotten when everybody goes on": Mutant(Steps, "_all_go_on", "self.options.two_step_lookahead", "False"),
    "decode blocks stay reserved": Mutant(Steps, "_give_decode_blocks", "self.reserved_blocks -= len(due)", "pass"),
    "a pause looks only behind": Mutant(Capacity, "fitting_by_utilization", "range(end - 1, i - 1, -1)", "range(end - 1, i, -1)"),
    "the list goes on behind a victim": Mutant(Capacity, "fitting_by_utilization", "end = last", "end = end"),
    "static batches admit": Mutant(Capacity, "fitting_contexts", "static and num_generating", "False"),
    "the last token gets no slot": Mutant(Capacity, "blocks_to_completion", "r.total", "(r.total - 1)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(MUTANTS[name], monkeypatch)

    def noticed(seed: int) -> bool:
        try:
            compare(seed, check=False)
        except Exception:
            return True
        return False

    assert any(noticed(seed) for seed in range(400)), f"nobody noticed: {name}"
