"""Section 1: memory that is there and cannot be used. Predicates under several seeds, each beside its control."""

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.experiments.churn import Holding, holdings_of
from labkit.experiments.dynamics import (
    SOURCES,
    Curve,
    age_and_restart,
    freed_with_pending_event,
    freed_with_shared_prefix,
    mean_demand,
    memory_curve,
    smoothed,
    sum_against_run,
)
from labkit.workload.synthetic import synthetic_load

BYTES = 131_072


def requests_of(seed, count):
    return synthetic_load("azure-conv", count, np.random.default_rng(seed))


def holdings_for(seed, count):
    return holdings_of(requests_of(seed, count), bytes_per_token=BYTES, seconds_per_token=0.03)


def test_mean_demand_is_littles_law():
    two = [Holding(0.0, 10.0, 100), Holding(10.0, 10.0, 300)]
    assert mean_demand(two) == (10 * 100 + 10 * 300) / 20


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_sum_fits_and_only_the_real_load_is_refused(seed):
    holdings = holdings_for(seed, 2000)
    even = smoothed(holdings)
    assert mean_demand(even) == pytest.approx(mean_demand(holdings), rel=0.02)
    capacity = int(1.5 * mean_demand(holdings))
    assert sum_against_run(holdings, capacity).sum_fits_and_run_does_not()
    assert not sum_against_run(even, capacity).sum_fits_and_run_does_not()


def test_what_is_shared_or_pending_is_given_back_and_out_of_reach():
    assert freed_with_shared_prefix(shared=True).held_back()
    assert not freed_with_shared_prefix(shared=False).held_back()
    assert freed_with_pending_event(pending=True).held_back()
    assert not freed_with_pending_event(pending=False).held_back()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_service_with_leftovers_ages_and_a_restart_heals_it(seed):
    holdings = holdings_for(seed, 4000)
    aged, young = age_and_restart(holdings), age_and_restart(holdings, leave_behind=False)
    assert aged.three_phases_and_a_cure(), aged.phases
    assert not young.three_phases_and_a_cure()
    assert sum(phase.share_of_run for phase in aged.phases[:3]) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_source_alone_moves_the_memory_curve(seed):
    requests = requests_of(seed, 200)
    static = memory_curve(None, requests, bytes_per_token=BYTES)
    assert static.distance(memory_curve(None, requests, bytes_per_token=BYTES)) == 0
    for source in SOURCES:
        distance = static.distance(memory_curve(source, requests, bytes_per_token=BYTES))
        assert distance > 0.05, (source, distance)


def test_an_unknown_source_is_named():
    with pytest.raises(LabError, match="unknown source 'luck'; choose one of: prompt lengths"):
        memory_curve("luck", requests_of(0, 20), bytes_per_token=BYTES)


def test_the_distance_of_two_curves_is_relative_to_the_first():
    def flat(value, end_s):
        times = np.linspace(0.0, end_s, 101)
        return Curve(times, np.full(101, float(value)), None)

    assert flat(100, 10).distance(flat(150, 10)) == pytest.approx(0.5)
    # as high, but over after half of the time: half of the area is missing
    assert flat(100, 10).distance(flat(100, 5)) == pytest.approx(0.5, abs=0.01)
