"""Section 8: the same load under other decisions, each claim beside its control."""

import numpy as np
import pytest

from labkit.experiments.dynamics import Curve
from labkit.experiments.harms import peak_demand
from labkit.experiments.scheduling import (
    DECISIONS,
    amplification,
    class_of,
    curve_of,
    decide,
    faster,
    long_and_short,
    merged,
    mixture,
    outcome,
    spread,
    window,
    with_burst,
    with_client_limit,
)
from labkit.workload.base import RequestSpec
from labkit.workload.synthetic import synthetic_load

BYTES = 131_072


@pytest.fixture(params=[0, 1])
def seed(request):
    return request.param


@pytest.fixture
def requests(seed):
    load = synthetic_load("azure-conv", 400, np.random.default_rng(seed))
    return with_client_limit([r for r in load if r.num_prompt_tokens + r.num_output_tokens < 8000])


def test_at_least_four_decisions_move_memory_and_the_same_one_does_not(requests):
    pool = {"capacity_tokens": 48_000, "bytes_per_token": BYTES}
    curves = [curve_of(decide(requests[:250], options, **pool)) for options in DECISIONS.values()]
    usual: Curve = curves[0]
    assert sum(usual.distance(curve) > 0.05 for curve in curves[1:]) >= 4
    assert usual.distance(curve_of(decide(requests[:250], {}, **pool))) == 0


@pytest.mark.parametrize("seed", [0, 1, 2, 3], indirect=True)
def test_long_and_short_mixed_spoil_space_that_each_alone_leaves_whole(seed):
    short, long = long_and_short(np.random.default_rng([seed, 2]), bytes_per_token=BYTES)
    both = merged(short, long)
    capacity = int(1.1 * peak_demand(both))
    assert mixture(both, capacity).good_space_shrinks()
    assert not mixture(short, capacity).good_space_shrinks()
    assert not mixture(long, capacity).good_space_shrinks()


def test_a_burst_makes_ttft_and_throughput_worse_together(requests):
    pool = {"capacity_tokens": 200_000, "bytes_per_token": BYTES}
    options = {"batching": "prefill-first"}
    calm_run = decide(requests, options, **pool)
    burst_run = decide(with_burst(requests, at_s=60.0), options, **pool)
    calm, burst, later = window(calm_run, 60, 72), window(burst_run, 60, 72), window(calm_run, 72, 84)
    assert burst.worse_than(calm)
    assert not later.worse_than(calm)


def test_choices_matter_in_a_tight_pool_only(requests):
    def spreads(capacity_tokens):
        pool = {"capacity_tokens": capacity_tokens, "bytes_per_token": BYTES}
        units = [{"admission": "requests", "max_requests": 64}, {"admission": "blocks", "headroom": 0.05}]
        responses = [{"pressure": "refuse"}, {"pressure": "pools"}]
        busy = faster(requests[:250], 1.5)
        return [
            spread([outcome("", busy, **pool, **options) for options in group])
            for group in (units, responses)
        ]

    assert min(spreads(24_000)) > 0.15
    assert max(spreads(400_000)) < 0.05


def test_an_outcome_counts_only_whole_answers_in_time():
    load = [RequestSpec(f"r{i}", 0.0, 100, 20, 20) for i in range(4)]
    ample = outcome("", load, capacity_tokens=10_000, bytes_per_token=1)
    assert ample.goodput == pytest.approx(4 / ample.run.totals.end_s)
    late = [RequestSpec(f"r{i}", 0.0, 4000, 20, 20) for i in range(40)]
    few = outcome("", late, capacity_tokens=400_000, bytes_per_token=1)
    assert few.goodput < 40 / few.run.totals.end_s  # 160,000 prompt tokens take 8 s: not all start within 2 s
    cut = outcome("", load, capacity_tokens=448, bytes_per_token=1, pressure="degrade")
    assert cut.goodput <= (4 - cut.num_truncated) / cut.run.totals.end_s


def test_lost_work_goes_with_some_class_and_none_is_lost_with_room(requests):
    busy = faster(requests[:250], 1.5)
    tight = amplification(busy, capacity_tokens=24_000, bytes_per_token=BYTES)
    assert sum(share for share, _ in tight.values()) == pytest.approx(1.0)
    assert max(lost for _, lost in tight.values()) > 0.1
    ample = amplification(busy, capacity_tokens=400_000, bytes_per_token=BYTES)
    assert all(lost == 0 for _, lost in ample.values())


def test_helpers_say_what_they_do(requests):
    quick = faster(requests, 2.0)
    assert quick[-1].arrival_s == requests[-1].arrival_s / 2
    burst = with_burst(requests, at_s=5.0)
    assert sum(r.kind == "burst" for r in burst) == 12
    assert [r.arrival_s for r in burst] == sorted(r.arrival_s for r in burst)
    assert all(r.max_output_tokens >= max(1024, r.num_output_tokens) for r in requests)
    assert class_of(RequestSpec("a", 0.0, 1501, 250)) == "long prompt, short output"
    assert class_of(RequestSpec("b", 0.0, 1500, 251)) == "short prompt, long output"
