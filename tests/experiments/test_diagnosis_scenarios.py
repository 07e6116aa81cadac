"""Scenarios 14 to 16, and the inputs that must change their verdicts."""

from __future__ import annotations

import pytest

from labkit.experiments.scenario_runs.diagnosis import verdict_of
from labkit.experiments.scenarios import load_scenario, run_scenario


@pytest.mark.parametrize("name", ["unallocated-triage", "reference-count-mutants", "soak-three-slopes"])
def test_expected_numbers(name):
    assert run_scenario(name).check().scenario.expected


def test_without_the_private_pool_it_is_a_comb():
    dumps = load_scenario("unallocated-triage").inputs["dumps"]
    del dumps["graph_pool"]["private_pools"]
    figures = run_scenario("unallocated-triage", dumps=dumps).figures
    assert figures["graph_pool"]["verdict"] == "fits_if_defragmented"
    assert figures["num_verdicts"] == 2


def test_a_leak_ten_times_as_rare_is_found_ten_times_as_late():
    often = run_scenario("soak-three-slopes").figures["leak"]
    rare = run_scenario("soak-three-slopes", leaks_every=100).figures["leak"]
    assert rare["verdict"] == "leak of blocks"
    assert rare["rounds_to_exhaustion"] == pytest.approx(10 * often["rounds_to_exhaustion"], rel=0.35)


def test_nothing_grows():
    assert verdict_of({"live": 0.0, "cached": 0.0, "reserved_mib": 0.0}) == "steady"
