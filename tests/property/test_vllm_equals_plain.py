"""The shipped vLLM scheduler decides like the plain one that walks every running request in every step."""

from __future__ import annotations

import random
from typing import Any

import pytest

from labkit.serving.systems.vllm import VllmScheduler
from labkit.serving.systems.vllm_recording import DecisionRecorder
from labkit.workload.base import RequestSpec
from tests.property.vllm_loads import Row, random_load, random_options
from tests.reference.vllm_plain import PlainVllm


def run_both(options: dict[str, Any], rows: list[Row], shipped: VllmScheduler | None = None) -> int:
    """Steps compared. Raises AssertionError at the first step that differs."""
    plain = PlainVllm(options)
    shipped = shipped or VllmScheduler(record_chunks=True, refuse=False, **options)
    recorder = DecisionRecorder(shipped)
    outputs = {row.id: row.outputs for row in rows}
    coming = list(rows)
    for step in range(4000):
        while coming and coming[0].arrival_step <= step:
            row = coming.pop(0)
            plain.add(row.id, row.prompt, row.outputs, row.max_outputs, row.priority)
            shipped.add(
                RequestSpec(
                    row.id,
                    0.0,
                    len(row.prompt),
                    len(row.outputs),
                    row.max_outputs,
                    row.prompt,
                    priority=row.priority,
                )
            )
        if not coming and not plain.has_work():
            assert not shipped.has_work()
            return step
        expected = plain.step()
        # past the end of the answer an async scheduler asks once more; that token is thrown away
        decided = recorder.step(lambda name, j: (outputs[name] + [-1])[j])
        for name, value in expected.items():
            assert decided[name] == value, f"step {step}, {name}: plain {value}, shipped {decided[name]}"
    # a request can spin for ever (it never fits next to nobody): the two must spin alike
    return step


def compare(seed: int, rare: bool) -> int:
    rng = random.Random(seed)
    options = random_options(rng, rare=rare)
    return run_both(options, random_load(rng, options))


@pytest.mark.parametrize("block", range(8))
def test_every_decision_is_equal(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        compare(seed, rare=False)


@pytest.mark.parametrize("block", range(4))
def test_every_decision_is_equal_where_a_running_request_can_starve(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        compare(1_000_000 + seed, rare=True)


@pytest.mark.fuzz
def test_every_decision_is_equal_on_many_loads() -> None:
    for seed in range(2_000_000, 2_004_000):
        compare(seed, rare=bool(seed % 2))
