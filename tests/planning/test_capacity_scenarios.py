"""The four scenarios about capacity give their numbers, and stop giving them when their cause is taken away."""

from __future__ import annotations

import pytest

from labkit.experiments.scenarios import load_scenario, run_scenario

NAMES = ["non-monotonic-context", "sliding-window-accounts", "fp8-small-gain", "starts-together"]


@pytest.mark.parametrize("name", NAMES)
def test_expected_numbers(name):
    assert run_scenario(name).check().scenario.expected


def test_controls():
    cases = [{**c, "peak_gib": 17.06} for c in load_scenario("non-monotonic-context").inputs["cases"]]
    same = run_scenario("non-monotonic-context", cases=cases).figures
    assert len({round(f["kv_gib"], 6) for f in same.values()}) == 1, (
        "without the peak the length costs nothing"
    )

    dense = run_scenario("sliding-window-accounts", model="Llama-3.1-8B").figures
    assert dense["ideal_gib"] == dense["unified_gib"]

    assert run_scenario("fp8-small-gain", state_share=0.0).figures["gain_percent"] == pytest.approx(100)

    orders = load_scenario("starts-together").inputs["orders"]
    alone = run_scenario("starts-together", orders={**orders, "together": orders["in_turn"]}).figures
    assert alone["together"] == alone["in_turn"]
