"""All recordings of the real vLLM scheduler replay without a difference, and every recorded field is really compared."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import InputError, LabError
from labkit.serving.systems.vllm_recording import replay
from tests.flip import assert_every_flip_is_named

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in GOLDEN.glob("*.json.gz"))


def load(name: str) -> dict[str, Any]:
    with gzip.open(GOLDEN / f"{name}.json.gz") as file:
        return json.load(file)


def test_all_recordings_are_here() -> None:
    assert len([name for name in NAMES if not name.startswith("own_")]) == 21
    assert len([name for name in NAMES if name.startswith("own_")]) == 7


@pytest.mark.parametrize("name", NAMES)
def test_recording_replays_without_a_difference(name: str) -> None:
    recording = load(name)
    comparison = replay(recording)
    assert comparison.num_differences == 0, [str(d) for d in comparison.kept]
    assert comparison.num_ops == len(recording["steps"]) > 0


@pytest.mark.parametrize(
    "name",
    [
        "async_finish_preempted_a",
        "gate_on_a",
        "priority_budget_back_a",
        "finish_order_a",
        "own_interval_async",
    ],
)
def test_one_flipped_value_is_named(name: str) -> None:
    parts = ["system", "version", "commit", "scheduler", "output_token_rule", "steps", "totals"]
    fields = assert_every_flip_is_named(load(name), replay, parts)
    expected = {
        "step",
        "added[]",
        "scheduled[][]",
        "admitted[].cached_tokens",
        "free_blocks_end",
        "running[]",
        "finished[]",
    }
    assert {f"steps[].{name}" for name in expected} <= set(fields)


def test_preemptions_and_evictions_are_among_the_flipped_fields() -> None:
    recording = load("pressure_priority")
    fields = assert_every_flip_is_named(
        recording,
        replay,
        ["steps"],
        skip=lambda field: "preempted" not in field and "evicted" not in field and "in_map" not in field,
    )
    assert "steps[].preempted[].num_computed_tokens" in fields
    assert "steps[].evicted_block_ids[]" in fields


def test_a_field_that_the_model_does_not_know_is_a_difference() -> None:
    recording = load("finish_order_a")
    recording["steps"][3]["swapped"] = 0
    comparison = replay(recording)
    assert [d.path for d in comparison.kept] == ["steps[3].swapped"]


@pytest.mark.parametrize("part", ["config", "workload", "steps", "totals"])
def test_an_incomplete_recording_is_named(part: str) -> None:
    recording = load("finish_order_a")
    del recording[part]
    with pytest.raises(InputError, match=f"field {part}: is missing"):
        replay(recording)


def test_an_unknown_option_in_a_recording_is_named() -> None:
    recording = load("finish_order_a")
    recording["config"]["num_speculative_tokens"] = 3
    with pytest.raises(
        LabError, match="'num_speculative_tokens' is not known; choose from: async_scheduling"
    ):
        replay(recording)


def test_a_workload_row_without_a_length_is_named() -> None:
    recording = load("finish_order_a")
    del recording["workload"][2]["output_len"]
    with pytest.raises(InputError, match=r"field workload\[2\]\.output_len: is missing"):
        replay(recording)
