"""Section 13: each remedy on three seeds, with its control."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from labkit.experiments.soak import SoakOptions, soak
from labkit.experiments.steady import (
    BY_BLOCKS,
    POOLS,
    TOGETHER,
    AdmitTogether,
    Budgeted,
    Service,
    budget_for,
    chats_and_documents,
    fullest,
    judge,
    most_kept,
    sweep_fills,
)
from labkit.kv import make_kv_cache
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.synthetic import synthetic_load

seeds = pytest.mark.parametrize("seed", [0, 1, 2])
BAD = Service()


@cache
def load(seed, num_chats=350, **options):
    lengths = synthetic_load("azure-conv", 1500, np.random.default_rng(seed))
    lengths = [r for r in lengths if r.num_prompt_tokens + r.num_output_tokens < 4000]
    return chats_and_documents(lengths, np.random.default_rng(seed + 10), num_chats=num_chats, **options)


@seeds
def test_only_the_lifetime_budget_sees_the_burst(seed):
    def budgeted(requests):
        return Budgeted(budget_for(requests, 60_000), judge(Service("paged", 60_000, {}), requests))

    assert budgeted(load(seed)).only_lifetimes_saw_it()
    assert not budgeted(load(seed, together=1, every_s=5.0)).only_lifetimes_saw_it()


@seeds
def test_blocks_where_memory_is_tight(seed):
    options = BAD.with_options(**BY_BLOCKS).options
    for tokens, helps in ((60_000, True), (400_000, False)):
        pieces, blocks = (judge(Service(kv, tokens, options), load(seed)) for kv in ("reserve-pow2", "paged"))
        assert blocks.steadier_than(pieces, by=0.1) is helps


@seeds
def test_blocks_that_count_requests_are_worse_than_the_bad_service(seed):
    assert judge(BAD, load(seed)).steadier_than(judge(Service("paged", 60_000, BAD.options), load(seed)))


@seeds
def test_budgets_by_class_where_there_are_classes(seed):
    blocks = Service("paged", 110_000, BAD.options).with_options(**BY_BLOCKS)
    for requests, helps in ((load(seed), True), (load(seed, together=0), False)):
        one, apart = judge(blocks, requests), judge(blocks.with_options(**POOLS), requests)
        assert apart.steadier_than(one) is helps


@seeds
def test_admission_on_all_four_where_memory_is_tight(seed):
    for tokens, helps in ((60_000, True), (400_000, False)):
        service = Service("paged", tokens, BAD.options).with_options(**POOLS)
        one, four = judge(service, load(seed)), judge(service.with_options(**TOGETHER), load(seed))
        assert four.steadier_than(one) is helps


def test_admit_together_gives_back_what_it_promised_and_keeps_its_limits():
    kv = make_kv_cache("paged", capacity_tokens=60_000, bytes_per_token=64)
    admission = AdmitTogether()
    scheduler = make_scheduler("lab", kv, admission=admission, max_model_len=12_288, **POOLS)
    highest = []

    class Look:
        def on_arrival(self, *_): ...
        def on_end(self, *_): ...
        def on_step(self, *_):
            highest.append((admission.promised, admission.long_promised))

    simulate(scheduler, LinearStepCost(), load(0), Look())
    pool = kv.num_total_blocks * kv.block_size
    assert max(long for _, long in highest) <= admission.long_share * pool
    assert max(all_ for all_, _ in highest) <= admission.max_tokens_share * pool
    assert (admission.promised, admission.long_promised) == (0, 0)


@seeds
def test_the_fullest_setting_is_not_the_one_that_keeps_most_promises(seed):
    service = Service("paged", 60_000, BAD.options).with_options(**POOLS, max_long=8)
    for requests, differs in (
        (load(seed, num_chats=600, every_s=15.0), True),
        (load(seed, num_chats=120, rate=1.0, together=0), False),
    ):
        sweep = sweep_fills(service, requests)
        assert most_kept(sweep).keeps_more_than(fullest(sweep)) is differs


@pytest.mark.parametrize(
    ("hours", "fault", "ages"), [(1 / 30, "leak", False), (0.5, "leak", True), (0.5, None, False)]
)
def test_a_soak_sees_what_a_short_test_passes(hours, fault, ages):
    options = {"policy": "paged", "capacity_tokens": 120_000, "max_model_len": 8192, "rate": 6.0}
    result = soak(SoakOptions(hours=hours, fault=fault, window_s=hours * 150, **options))
    assert len(result.windows) == 24
    assert result.ages() is ages
