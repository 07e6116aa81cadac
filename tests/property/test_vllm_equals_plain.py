"""The shipped vLLM scheduler decides like the plain one that walks every running request in every step."""

from __future__ import annotations

import random
from typing import Any, Literal

import pytest

from labkit.serving.systems.vllm import VllmScheduler
from labkit.serving.systems.vllm_recording import DecisionRecorder
from labkit.workload.base import RequestSpec
from tests.property.vllm_loads import Row, random_load, random_options, without_sharing
from tests.reference.vllm_plain import PlainVllm

#: how the shipped scheduler is told the content: token ids; lengths only (private); lengths only, published all the same
Content = Literal["tokens", "private", "published"]


def run_both(
    options: dict[str, Any], rows: list[Row], content: Content = "tokens", check_every: int = 1
) -> int:
    """Steps compared. Raises AssertionError at the first one that differs."""
    plain = PlainVllm(options)
    shipped = VllmScheduler(record_chunks=True, refuse=False, publish_all=content == "published", **options)
    recorder = DecisionRecorder(shipped, check_every)
    outputs = {row.id: row.outputs for row in rows}
    coming = list(rows)
    for step in range(4000):
        while coming and coming[0].arrival_step <= step:
            row = coming.pop(0)
            plain.add(row.id, row.prompt, row.outputs, row.max_outputs, row.priority)
            shipped.add(spec_of(row, content))
        if not coming and not plain.has_work():
            assert not shipped.has_work()
            return step
        expected = plain.step()
        # past the end of the answer an async scheduler asks once more; that token is thrown away
        decided = recorder.step(lambda name, j: (outputs[name] + [-1])[j])
        for name, value in expected.items():
            if name != "cached_blocks_in_map" or content != "private":
                assert decided[name] == value, f"step {step}, {name}: plain {value}, shipped {decided[name]}"
    raise AssertionError("the load did not end in 4000 steps")


def spec_of(row: Row, content: Content) -> RequestSpec:
    tokens = row.prompt if content == "tokens" else None
    return RequestSpec(
        row.id, 0.0, len(row.prompt), len(row.outputs), row.max_outputs, tokens, priority=row.priority
    )


def compare(seed: int, rare: bool, content: Content = "tokens", check_every: int = 1) -> int:
    rng = random.Random(seed)
    options = random_options(rng, rare=rare)
    rows = random_load(rng, options)
    return run_both(options, rows if content == "tokens" else without_sharing(rows), content, check_every)


@pytest.mark.parametrize("block", range(8))
def test_every_decision_is_equal(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        compare(seed, rare=False)


@pytest.mark.parametrize("block", range(4))
def test_every_decision_is_equal_where_a_running_request_can_starve(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        compare(1_000_000 + seed, rare=True)


@pytest.mark.parametrize("content", ["private", "published"])
def test_every_decision_is_equal_for_loads_that_have_lengths_only(content: Content) -> None:
    for seed in range(3_000_000, 3_000_060):
        compare(seed, rare=seed % 4 == 0, content=content)


@pytest.mark.fuzz
def test_every_decision_is_equal_on_many_loads() -> None:
    for seed in range(2_000_000, 2_004_000):
        compare(seed, rare=bool(seed % 2), content=("tokens", "tokens", "private", "published")[seed % 4])
