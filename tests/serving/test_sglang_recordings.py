"""Every recorded field of every step of the real SGLang is reproduced, and every changed field is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import InputError
from labkit.serving.systems import sglang_ops_recording, sglang_recording
from tests.flip import assert_every_flip_is_named, leaves

GOLDEN = Path(__file__).parents[1] / "golden" / "sglang"
STEPS = sorted(path.name for path in GOLDEN.glob("*.json.gz"))
MORE = sorted(path.name for path in (GOLDEN / "more").glob("*.json.gz"))
OPS = sorted(path.name for path in (GOLDEN / "ops").glob("*.json.gz"))


def load(path: Path) -> dict[str, Any]:
    recording: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return recording


def test_all_recordings_are_here() -> None:
    assert (len(STEPS), len(MORE), len(OPS)) == (11, 8, 5)


@pytest.mark.parametrize("name", STEPS)
def test_scheduler_recording(name: str) -> None:
    comparison = sglang_recording.replay(load(GOLDEN / name))
    assert comparison.num_differences == 0, comparison.first
    assert comparison.num_ops > 50


@pytest.mark.parametrize("name", MORE)
def test_scheduler_recording_with_other_options(name: str) -> None:
    comparison = sglang_recording.replay(load(GOLDEN / "more" / name))
    assert comparison.num_differences == 0, comparison.first


@pytest.mark.parametrize("name", OPS)
def test_radix_recording(name: str) -> None:
    comparison = sglang_ops_recording.replay(load(GOLDEN / "ops" / name))
    assert comparison.num_differences == 0, comparison.first
    assert comparison.num_ops == 320


@pytest.mark.parametrize("name", ["full_hit", "pressure_retract", "shared_pressure_lpm"])
def test_every_changed_field_of_a_step_is_named(name: str) -> None:
    recording = load(GOLDEN / f"{name}.json.gz")
    fields = assert_every_flip_is_named(recording, sglang_recording.replay, ["steps", "totals"])
    expected = {
        "full_hit": {
            "steps[].mode",
            "steps[].batch[][]",
            "steps[].chunked_req",
            "totals.hit_tokens_at_admission",
        },
        "pressure_retract": {"steps[].retracted[].outputs", "steps[].evictions[][]", "totals.retractions"},
        "shared_pressure_lpm": {"steps[].waiting[]", "steps[].evictable_after_alloc", "steps[].protected"},
    }
    assert expected[name] <= set(fields)


def test_every_changed_field_of_an_operation_is_named() -> None:
    recording = load(GOLDEN / "ops" / "fifo_page1_s4.json.gz")
    fields = assert_every_flip_is_named(recording, sglang_ops_recording.replay, ["results"])
    assert {"results.radix[].evicted", "results.unified[].prefix_len", "results.unified[].hit"} <= set(fields)


def test_every_recorded_step_field_occurs_somewhere() -> None:
    """The flip test above is only as good as the fields that the chosen files hold."""
    fields = {leaf.field for name in STEPS for leaf in leaves(load(GOLDEN / name), ["steps"])}
    flipped = {
        leaf.field
        for name in ("full_hit", "pressure_retract", "shared_pressure_lpm")
        for leaf in leaves(load(GOLDEN / f"{name}.json.gz"), ["steps"])
    }
    assert fields == flipped


def test_a_missing_part_is_one_sentence() -> None:
    with pytest.raises(
        InputError, match="field workload: is missing; expected config, workload, steps, totals"
    ):
        sglang_recording.replay({"config": {}})
    with pytest.raises(InputError, match="field results: is missing"):
        sglang_ops_recording.replay({"ops": []})
