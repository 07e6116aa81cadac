"""Section 7: one pool against pools by lifetime, each claim beside its control."""

import numpy as np
import pytest

from labkit.experiments.lifetimes import (
    CLASSES,
    GRANULE,
    compare_pools,
    engine_objects,
    held_granules,
    in_waves,
    lifetime_quantiles,
    run_pools,
    same_lifetime,
    shuffled_names,
    two_lifetimes,
    who_pins_holes,
)
from labkit.memory import Span
from labkit.units import MIB
from labkit.workload.synthetic import synthetic_load

BYTES = 131_072


@pytest.fixture(params=[0, 1, 2])
def seed(request):
    return request.param


@pytest.fixture
def waves(seed):
    return two_lifetimes(np.random.default_rng([seed, 1]))


def test_over_four_services_pools_halve_the_loss_and_are_dearer_and_steadier_and_with_one_lifetime_they_are_not(
    seed,
):
    services = [two_lifetimes(np.random.default_rng([seed, number])) for number in range(4)]
    two_kinds, one_kind = compare_pools(services), compare_pools([same_lifetime(load) for load in services])
    assert two_kinds.halved()
    assert not one_kind.halved()
    assert two_kinds.dearer_and_steadier()
    assert not one_kind.dearer_and_steadier()


def test_compared_sums_and_means_are_those_of_the_runs(waves):
    calm = same_lifetime(waves)
    both = compare_pools([waves, calm])
    single, pools = ([run_pools(load, part) for load in (waves, calm)] for part in ([], ["session"]))
    assert both.lost_one_pool == np.mean([run.lost_share for run in single])
    assert both.worst_pools == np.mean([run.worst_lost_share for run in pools])
    assert both.memory_ratio == sum(run.capacity for run in pools) / sum(run.capacity for run in single)


def test_lasting_holes_are_walled_in_by_long_objects(waves, seed):
    assert who_pins_holes(run_pools(waves, []).run).pinned_by_long()
    by_chance = shuffled_names(waves, np.random.default_rng(seed))
    assert not who_pins_holes(run_pools(by_chance, []).run).pinned_by_long()


@pytest.mark.parametrize("seed", [0, 1], indirect=True)
def test_layers_of_an_engine_lose_less_and_pools_by_chance_do_not(seed):
    requests = synthetic_load("azure-conv", 1200, np.random.default_rng(seed))
    engines = [
        engine_objects(in_waves(requests), np.random.default_rng([seed, part]), bytes_per_token=BYTES)
        for part in (3, 4)
    ]
    chance = [shuffled_names(objects, np.random.default_rng([seed, 5])) for objects in engines]
    assert compare_pools(engines, CLASSES).saves_a_fifth()
    assert not compare_pools(chance, CLASSES).saves_a_fifth()
    objects = engines[0]
    medians = {name: median for name, (_, median, _) in lifetime_quantiles(objects).items()}
    assert set(medians) == {"weights", "workspace", "prefix", "session", "request"}
    assert max(medians.values()) / min(medians.values()) > 1000


def test_waves_keep_every_request_in_order_and_crowd_the_first_seconds(seed):
    requests = synthetic_load("azure-conv", 800, np.random.default_rng(seed))
    waved = in_waves(requests)
    times = [r.arrival_s for r in waved]
    assert len(waved) == len(requests)
    assert times == sorted(times)
    share = np.mean([time % 60 < 10 for time in times])
    assert share > 0.5  # ten seconds of sixty: a sixth without waves


def test_names_dealt_out_keep_sizes_times_and_the_number_of_each_name(waves, seed):
    dealt = shuffled_names(waves, np.random.default_rng(seed))
    assert [(h.arrival_s, h.hold_s, h.size) for h in dealt] == [
        (h.arrival_s, h.hold_s, h.size) for h in waves
    ]
    assert sorted(h.lifetime for h in dealt) == sorted(h.lifetime for h in waves)


def test_a_granule_is_held_by_one_live_byte():
    layout = [
        Span(0, MIB, "allocated", MIB),
        Span(MIB, 2 * GRANULE, "free"),
        Span(2 * GRANULE + MIB, GRANULE, "allocated", GRANULE),  # lies in the third granule and the fourth
        Span(3 * GRANULE + MIB, GRANULE - MIB, "free"),
    ]
    assert held_granules(layout) == 3
    assert held_granules([Span(0, 4 * GRANULE, "free")]) == 0
