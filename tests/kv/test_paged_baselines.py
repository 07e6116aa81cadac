"""The static baselines of the PagedAttention paper come out."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.experiments.paged_baselines import CAPACITY_TOKENS, lengths, max_batch, token_shares


def test_reserve_max_of_2048_batches_exactly_7_in_15_700_slots():
    assert max_batch(15_700, 2_048) == 7


def test_the_load_has_the_published_means():
    prompts, outputs = lengths(20_000, np.random.default_rng(0))
    assert abs(prompts.mean() - 161) < 0.5
    assert abs(outputs.mean() - 338) < 0.5
    assert int((prompts + outputs).max()) <= 2_048 < CAPACITY_TOKENS


@pytest.mark.parametrize("seed", [0, 1])
def test_share_of_token_states_has_the_papers_order(seed):
    rows = token_shares(np.random.default_rng(seed))
    shares = [row.tokens for row in rows]
    assert shares == sorted(shares), shares
    assert shares[-1] > 96
    assert shares[-1] > 2 * shares[-2]
    for row in rows:
        assert row.tokens + row.reserved + row.internal + row.external == pytest.approx(100)
    assert rows[2].internal == 0, "an oracle reserves nothing that is never used"
