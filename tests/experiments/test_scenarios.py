"""Named scenarios give their expected numbers, and the comparison notices when they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.experiments.scenarios import (
    VALIDITIES,
    compare,
    load_scenario,
    page,
    run_scenario,
    scenario_names,
)

MINE = [
    "never-fits",
    "fits-now-not-later",
    "fifth-long-prompt",
    "headroom-sweep",
    "hit-rate-lies",
    "reuse-floor",
    "lru-cliff",
    "blocked-head",
    "reserve-or-not",
    "chunk-budget",
    "swap-or-recompute",
]


@pytest.mark.parametrize("name", MINE)
def test_expected_numbers(name):
    result = run_scenario(name).check()
    assert result.scenario.expected, "a scenario without expected numbers proves nothing"


def test_the_guard_names_what_is_stuck():
    figures = run_scenario("never-fits").figures
    assert "5 waiting" in figures["without_check"]["sentence"]
    assert "needs 63 blocks, 49 of 49 are free" in figures["without_check"]["sentence"]
    assert "no state of this cache holds it" in figures["without_check"]["sentence"]
    circle = run_scenario("fits-now-not-later").figures["without_check"]["sentence"]
    assert "the cycle is admit, recompute, run out of room, preempt, for r0" in circle


def test_controls():
    """The same runs on inputs where the effect must be gone."""
    fits = run_scenario("never-fits", num_blocks=63 * 5).figures
    assert fits["without_check"] == fits["with_check"]
    roomy = run_scenario("fifth-long-prompt", num_blocks=40_000, num_steps=100).figures
    assert roomy["first_chunk"] == roomy["full_prompt"]
    assert roomy["first_chunk"]["num_preemptions"] == 0
    wide = run_scenario("lru-cliff", num_blocks=200).figures
    assert set(wide["tail_first"].values()) == set(wide["head_first"].values()) == {100}
    free = run_scenario("swap-or-recompute", copy_launch_us=0).figures
    assert free["first_block_size_at_which_swap_wins"] == 1


@pytest.mark.parametrize("name", sorted({*MINE, *scenario_names()}))
def test_files_are_complete(name):
    scenario = load_scenario(name)
    assert scenario.validity in VALIDITIES
    assert scenario.question.endswith("?")
    assert scenario.source
    assert scenario.note
    assert scenario.inputs


def test_a_changed_number_is_noticed():
    figures = {"a": {"b": 2}, "rate": 11.46, "n": 100}
    assert (
        compare(
            {"a.b": 2, "rate": {"value": 11.5, "digits": 1}, "n": {"value": 105, "within": 0.05}}, figures
        )
        == []
    )
    assert compare({"a.b": 3}, figures) == ["a.b is 2, expected 3"]
    assert compare({"a.c": 3}, figures) == ["a.c is not among the figures, expected 3"]
    assert (
        len(compare({"rate": {"value": 11.4, "digits": 1}, "n": {"value": 106, "within": 0.05}}, figures))
        == 2
    )
    result = run_scenario("reuse-floor", shared_tokens=100)
    assert not result.holds
    with pytest.raises(AssertionError, match=r"reused_tokens\.16 is 96, expected 240"):
        result.check()


def test_unknown_names_are_one_sentence():
    with pytest.raises(LabError, match=r"unknown scenario 'no-such'; choose one of: .*never-fits"):
        run_scenario("no-such")
    with pytest.raises(LabError, match="has no input 'blocks'; it has: block_size"):
        run_scenario("never-fits", blocks=3)


def test_the_page_lists_every_scenario():
    """`python -c "from labkit.experiments.scenarios import page; print(page(), end='')" > docs/scenarios.md`"""
    assert (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8") == page()
