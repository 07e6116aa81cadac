"""All recordings of TensorRT-LLM's Python schedulers replay without a difference, and every recorded field is compared."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import InputError
from labkit.serving.systems.trtllm_recording import replay
from tests.flip import assert_every_flip_is_named

GOLDEN = Path(__file__).parents[1] / "golden" / "trtllm"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in GOLDEN.glob("*.json.gz"))


def load(name: str) -> dict[str, Any]:
    with gzip.open(GOLDEN / f"{name}.json.gz") as file:
        return json.load(file)


def test_all_recordings_are_here() -> None:
    assert len(NAMES) == 20


@pytest.mark.parametrize("name", NAMES)
def test_recording_replays_without_a_difference(name: str) -> None:
    recording = load(name)
    comparison = replay(recording)
    assert comparison.num_differences == 0, [str(d) for d in comparison.kept]
    assert comparison.num_ops == len(recording["steps"]) > 0


@pytest.mark.parametrize("name", ["chunk_pause_a", "skip_overtake_reuse", "max_requests_policy"])
def test_one_flipped_value_is_named(name: str) -> None:
    parts = ["system", "format", "version", "output_token_rule", "steps", "totals"]
    fields = assert_every_flip_is_named(
        load(name), replay, parts, skip=lambda field: field.startswith("steps[].new_blocks.")
    )
    expected = {
        "step",
        "added[]",
        "active[]",
        "fitting[]",
        "context[][]",
        "generation[]",
        "tokens",
        "free_before",
        "finished[]",
    }
    assert {f"steps[].{name}" for name in expected} <= set(fields)
    assert ("steps[].paused_detail[][]" in fields) == (name == "chunk_pause_a")


def test_a_flipped_block_count_is_named() -> None:
    fields = assert_every_flip_is_named(
        load("skip_overtake_reuse"), replay, ["steps"], skip=lambda field: "new_blocks" not in field
    )
    assert set(fields) == {"steps[].new_blocks.A", "steps[].new_blocks.B", "steps[].new_blocks.C"}


@pytest.mark.parametrize("part", ["config", "workload", "steps", "totals"])
def test_an_incomplete_recording_is_named(part: str) -> None:
    recording = load("skip_overtake_reuse")
    del recording[part]
    with pytest.raises(InputError, match=f"field {part}: is missing"):
        replay(recording)


def test_an_unknown_option_in_a_recording_is_named() -> None:
    recording = load("skip_overtake_reuse")
    recording["config"]["beam_width"] = 4
    with pytest.raises(
        InputError, match=r"field config\.beam_width: is not known; accepted: capacity_policy"
    ):
        replay(recording)
