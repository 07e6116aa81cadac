"""Section 12 and 11.6: causes told apart by evidence, and not by nvidia-smi."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from labkit.experiments.situations import (
    four_causes_one_reading,
    hit_rate_and_pressure,
    holds_for_most,
    one_reading_four_verdicts,
    situation,
    told_apart,
)


@dataclass(frozen=True)
class Named:
    passed: bool


def test_most_draws_of_every_cause_must_pass():
    def draws(*rows):
        return [[Named(passed) for passed in row] for row in rows]

    def test(case):
        return case.passed

    assert holds_for_most(draws((True, True), (True, False), (False, True)), test)
    assert not holds_for_most(draws((True, True), (True, False), (True, False)), test)
    assert not holds_for_most(draws((True,), (False,)), test)  # a tie is not most


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_four_causes_behind_one_reading(seed):
    cases = four_causes_one_reading(np.random.default_rng(seed))
    assert one_reading_four_verdicts(cases)
    assert not one_reading_four_verdicts(cases, from_smi_alone=True)


@pytest.mark.parametrize(("name", "seed"), [("12.1", 1), ("12.2", 2), ("12.3", 3), ("12.5", 1)])
def test_each_cause_told_apart(name, seed):
    cases = situation(name, seed)
    kinds = [case.kind for case in cases]
    assert told_apart([case.diagnosis for case in cases], kinds)
    assert not told_apart([case.from_smi_alone for case in cases], kinds)
    assert all(case.is_felt for case in cases)
    if name == "12.2":
        assert all(case.gets_worse() for case in cases)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hits_and_pressure(seed):
    none, gives_way, keeps = hit_rate_and_pressure(np.random.default_rng(seed))
    assert keeps.more_hits_and_more_pressure(none)
    assert not gives_way.more_hits_and_more_pressure(none)
