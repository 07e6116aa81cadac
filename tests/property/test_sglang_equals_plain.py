"""The shipped SGLang model decides like the plain one that walks every request in every step."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.recording import Comparison
from labkit.serving.systems.sglang_recording import replay_steps
from tests.property.sglang_loads import random_case
from tests.reference.sglang_plain import record

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "sglang").glob("*.json.gz"))


def replay(recording):
    """The steps of a record that the plain scheduler wrote: it has no header and no totals."""
    comparison = Comparison("sglang")
    replay_steps(recording, comparison)
    return comparison


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_the_plain_one_reproduces_the_recordings(path: Path) -> None:
    recording = json.loads(gzip.decompress(path.read_bytes()))
    comparison = Comparison("plain")
    comparison.compare(
        "steps", recording["steps"], record(recording["config"], recording["workload"])["steps"]
    )
    assert comparison.num_differences == 0, comparison.first


def compare(seed: int, *, scarce: bool) -> dict[str, int]:
    config, workload = random_case(random.Random(seed), scarce=scarce)
    recording = record(config, workload)
    comparison = replay(recording)
    assert comparison.num_differences == 0, f"seed {seed}, {config}: {comparison.first}"
    return {
        "evictions": sum(len(step["evictions"]) for step in recording["steps"]),
        "retractions": sum(len(step["retracted"]) for step in recording["steps"]),
        "mixed": sum(step["mode"] == "mixed" for step in recording["steps"]),
        "chunks": sum(step.get("chunked_req") is not None for step in recording["steps"]),
        "aborted": len(recording["aborted"]),
    }


@pytest.mark.parametrize("block", range(6))
@pytest.mark.parametrize("scarce", [False, True], ids=["roomy", "scarce"])
def test_every_decision_is_equal(block: int, scarce: bool) -> None:
    for seed in range(block * 25, block * 25 + 25):
        compare(seed, scarce=scarce)


def test_the_loads_reach_what_they_are_for() -> None:
    reached: dict[str, int] = {}
    for seed in range(60):
        for name, count in compare(seed, scarce=True).items():
            reached[name] = reached.get(name, 0) + count
    assert all(count > 10 for name, count in reached.items() if name != "aborted"), reached


def test_out_of_memory_comes_in_the_same_step() -> None:
    """A cut request must go on although nothing is free: there the real server stops (seed found by search)."""
    recording = record(*random_case(random.Random(178), scarce=True))
    assert replay(recording).num_differences == 0
    recording["steps"].append({})
    with pytest.raises(LabError, match="out of memory: 7 tokens needed, 5 free"):
        replay(recording)


@pytest.mark.fuzz
def test_every_decision_is_equal_for_long() -> None:
    for seed in range(10_000, 14_000):
        compare(seed, scarce=seed % 2 == 0)
