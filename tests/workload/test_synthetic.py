"""Synthetic loads reproduce the published statistics, and the seed decides everything."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.workload.synthetic import LOADS, load_fits, resample, synthetic_load


@pytest.mark.parametrize("name", sorted(LOADS))
def test_lengths_and_rate_are_those_of_the_fit(name):
    load = synthetic_load(name, 20000, np.random.default_rng(7))
    fits, prefix = load_fits(), LOADS[name][0]
    for field, values in (
        ("prompt", [r.num_prompt_tokens for r in load]),
        ("output", [r.num_output_tokens for r in load]),
    ):
        fit = fits[f"{prefix}_{field}"]
        assert np.mean(values) == pytest.approx(fit["sim_mean"], rel=0.05), field
        assert np.percentile(values, 95) == pytest.approx(fit["sim_p95"], rel=0.08), field
        assert min(values) >= 1
        assert max(values) <= fit["mix2"]["clip"]
    gaps = np.diff([r.arrival_s for r in load])
    assert gaps.min() >= 0
    rates = {"azure-conv": 5.53, "mooncake-synthetic": 3.906, "mooncake-conversation": 10.196 / 3}
    if name in rates:
        assert 1 / gaps.mean() == pytest.approx(rates[name], rel=0.05)
    else:
        assert gaps.std() / gaps.mean() > 5, "code arrivals are bursty"


def test_the_seed_decides():
    one, two, other = (synthetic_load("azure-conv", 100, np.random.default_rng(s)) for s in (1, 1, 2))
    assert one == two != other


def test_resampling_keeps_the_very_lengths():
    real = synthetic_load("azure-code", 300, np.random.default_rng(0))
    longer = resample(real, 5000, np.random.default_rng(0))
    pairs = {(r.num_prompt_tokens, r.num_output_tokens) for r in real}
    assert {(r.num_prompt_tokens, r.num_output_tokens) for r in longer} <= pairs
    assert [r.arrival_s for r in longer] == sorted(r.arrival_s for r in longer)
    faster = resample(real, 5000, np.random.default_rng(0), rate_scale=2.0)
    assert faster[-1].arrival_s == pytest.approx(longer[-1].arrival_s / 2)


def test_bad_numbers():
    rng = np.random.default_rng(0)
    with pytest.raises(LabError, match="choose one of"):
        synthetic_load("azure", 5, rng)
    with pytest.raises(LabError, match="num_requests"):
        synthetic_load("azure-conv", 0, rng)
    with pytest.raises(LabError, match="at least two"):
        resample([], 5, rng)
