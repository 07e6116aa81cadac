"""Section 4: the five causes alone and together, each beside ordinary inference."""

import numpy as np
import pytest

from labkit.experiments.churn import Holding
from labkit.experiments.five_causes import (
    CAUSES,
    Causes,
    fragmentation_of,
    load_with,
    prefix_residency,
    room_needed,
    room_needed_in_blocks,
)
from labkit.workload.synthetic import synthetic_load

BYTES = 131_072
BROKEN_UP = 0.05


@pytest.fixture(params=[0, 1, 2])
def seed(request):
    return request.param


@pytest.fixture
def requests(seed):
    return synthetic_load("azure-conv", 1000, np.random.default_rng(seed))


@pytest.fixture
def load(requests, seed):
    return lambda causes: load_with(causes, requests, np.random.default_rng([seed, 2]), bytes_per_token=BYTES)


def test_first_and_only_switch_the_named_causes():
    assert Causes.first(0) == Causes()
    assert Causes.first(5) == Causes(True, True, True, True, True)
    assert Causes.only(CAUSES.index("continuous batching")) == Causes(continuous=True)


def test_ordinary_inference_leaves_free_memory_in_one_piece(load):
    assert fragmentation_of(load(Causes())).mean_loss == 0


def test_four_of_the_five_break_memory_up_alone_and_none_needs_more_of_it(load):
    for index, name in enumerate(CAUSES):
        holdings = load(Causes.only(index))
        loss = fragmentation_of(holdings).mean_loss
        assert (loss > BROKEN_UP) == (name != "shared prefixes"), (name, loss)
        assert room_needed(holdings) == 1.0, name


def test_together_they_need_more_memory_than_is_ever_in_use_and_blocks_hardly_more(load):
    holdings = load(Causes.first(5))
    assert room_needed(holdings) > 1.05
    assert 1.0 <= room_needed_in_blocks(holdings, 16 * BYTES) < 1.02


def test_a_shared_prefix_outlives_the_request_that_brought_it(requests, seed):
    rng = np.random.default_rng(seed)
    assert prefix_residency(requests, rng, shared=True).outlives()
    private = prefix_residency(requests, rng, shared=False)
    assert not private.outlives()
    assert private.prefix_s == pytest.approx(private.request_s)


def test_the_load_holds_what_the_causes_say(requests, load):
    batches = load(Causes())
    assert len(batches) == len(requests)
    starts = sorted({holding.arrival_s for holding in batches})
    assert len(starts) == -(-len(requests) // 32)
    real = load(Causes(lengths=True, continuous=True))
    assert [h.arrival_s for h in real] == [r.arrival_s for r in requests]
    assert sum(h.size for h in real) == BYTES * sum(
        r.num_prompt_tokens + r.num_output_tokens for r in requests
    )
    grown = load(Causes(growth=True))
    assert len(grown) == len(requests) * -(-128 // 64)
    assert [h.arrival_s for h in grown] == sorted(h.arrival_s for h in grown)


def test_room_needed_of_a_known_case():
    """Two of size 1 lie side by side; the first leaves and one of size 2 comes: it must lie behind both."""
    holdings = [Holding(0, 2, 1), Holding(0, 9, 1), Holding(3, 9, 2)]
    assert room_needed(holdings) == 4 / 3
