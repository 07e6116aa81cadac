"""Section 15: effects of a factorial experiment on tables whose effects are known, and the real cells."""

import itertools

import numpy as np
import pytest

from labkit.experiments.churn import holdings_of
from labkit.experiments.four_factors import (
    FACTORS,
    act_together,
    closing_answer,
    effects,
    factorial,
    run_cell,
)
from labkit.experiments.harms import with_long_sessions
from labkit.workload.synthetic import synthetic_load

BYTES = 131_072
CELLS = list(itertools.product((False, True), repeat=4))


def table(value):
    return {cell: float(value(*cell)) for cell in CELLS}


def by_name(results):
    return {effect.name: effect.size for effect in effects(results)}


def test_effects_of_a_sum_are_its_weights_and_nothing_interacts():
    found = by_name(table(lambda a, b, c, d: 0.1 * a + 0.2 * b - 0.3 * c))
    assert found["capacity"] == pytest.approx(0.1)
    assert found["shape"] == pytest.approx(0.2)
    assert found["lifetimes"] == pytest.approx(-0.3)
    assert found["scheduling"] == pytest.approx(0.0)
    assert all(abs(size) < 1e-12 for name, size in found.items() if " x " in name)
    assert len(found) == 15


def test_an_effect_that_needs_two_factors_is_an_interaction():
    found = by_name(table(lambda a, b, c, d: b and d))
    assert found["shape"] == found["scheduling"] == found["shape x scheduling"] == pytest.approx(0.5)
    assert found["capacity"] == found["capacity x shape"] == 0.0


def test_main_effects_come_first_and_large_ones_before_small_ones():
    found = effects(table(lambda a, b, c, d: 0.1 * a + 0.3 * d + 0.05 * (b and c)))
    assert [effect.factors for effect in found[:2]] == [("scheduling",), ("capacity",)]
    assert [len(effect.factors) for effect in found] == [1] * 4 + [2] * 6 + [3] * 4 + [4]


def test_acting_together_needs_every_factor_and_an_interaction():
    assert act_together(effects(table(lambda a, b, c, d: 0.1 * (a + c) + (b and d))))
    assert not act_together(effects(table(lambda a, b, c, d: 0.1 * (a + b + c + d))))  # nothing interacts
    assert not act_together(effects(table(lambda a, b, c, d: 0.1 * a + (b and d))))  # lifetimes do nothing


@pytest.mark.parametrize("seed", [0, 1])
def test_everything_high_serves_and_everything_low_does_not(seed):
    load = synthetic_load("azure-conv", 160, np.random.default_rng(seed))
    requests = [r for r in load if r.num_prompt_tokens + r.num_output_tokens < 4000]
    low = run_cell(requests, (False,) * 4, bytes_per_token=BYTES, speed=2.0)
    high = run_cell(requests, (True,) * 4, bytes_per_token=BYTES, speed=2.0)
    assert low < 0.5 < 0.9 < high
    idle = factorial(requests[:40], bytes_per_token=BYTES, speed=0.05)
    assert set(idle) == set(CELLS)
    assert not act_together(effects(idle))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_blocks_end_the_refusals_and_more_memory_does_not(seed):
    requests = synthetic_load("azure-conv", 2500, np.random.default_rng(seed))
    holdings = with_long_sessions(
        holdings_of(requests, bytes_per_token=BYTES, seconds_per_token=0.03), np.random.default_rng([seed, 2])
    )
    answer = closing_answer(holdings, block_bytes=16 * BYTES)
    assert answer.removes_refusals("blocks")
    assert not answer.removes_refusals("5 % more memory")
    assert "no free span was long enough" in answer.sentence


def test_the_levels_are_named_for_the_table():
    assert list(FACTORS) == ["capacity", "shape", "lifetimes", "scheduling"]
    assert all(low != high for low, high in FACTORS.values())
