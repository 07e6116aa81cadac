"""Experiments of sections 0, 3, 5 and 6: their predicates under several seeds, each beside its control."""

import numpy as np
import pytest

from labkit.experiments.churn import AllocatorMemory, BlockMemory, Churn, Holding, holdings_of
from labkit.experiments.contiguous_kv import (
    contiguous_footprint,
    grow_once,
    paged_footprint,
    reservation_curve,
    waste_of_reserve_max,
    with_fixed_lengths,
)
from labkit.experiments.four_questions import four_costs
from labkit.experiments.harms import block_memory, harms_of, peak_demand, with_long_sessions
from labkit.experiments.hotel import adjoining_evening, scattered_evening
from labkit.experiments.paged_kv import (
    block_size_costs,
    counts_blocks,
    fork_and_leave,
    judge,
    paged_equals_contiguous,
    share_free,
    trades,
)
from labkit.experiments.tour import take_tour
from labkit.memory import make_allocator
from labkit.units import GIB
from labkit.workload.synthetic import synthetic_load

BYTES = 131_072


def first_fit(capacity):
    return AllocatorMemory(make_allocator("first-fit", capacity))


@pytest.fixture(params=[0, 1, 2])
def seed(request):
    return request.param


@pytest.fixture
def requests(seed):
    return synthetic_load("azure-conv", 2500, np.random.default_rng(seed))


@pytest.fixture
def holdings(requests, seed):
    return with_long_sessions(
        holdings_of(requests, bytes_per_token=BYTES, seconds_per_token=0.03), np.random.default_rng([seed, 1])
    )


def test_the_hotel_refuses_only_when_rooms_are_scattered(seed):
    evening = scattered_evening(np.random.default_rng(seed))
    assert (evening.num_free, evening.refused_with_room_to_spare, evening.kind) == (20, True, "fragmentation")
    assert not adjoining_evening().refused


def test_four_questions_cost_on_an_aged_pool_only():
    assert all(cost > 0 for cost in four_costs(aged=True).values())
    assert not any(four_costs(aged=False).values())


def test_four_harms_on_contiguous_memory_and_none_of_the_set_on_blocks(holdings):
    assert harms_of(first_fit, holdings).all_present()
    assert not harms_of(block_memory(16 * BYTES), holdings).all_present()


@pytest.mark.parametrize("keep_finished", [False, True])
def test_churn_conserves_holdings_and_bytes(holdings, keep_finished):
    for memory in (first_fit(12 * GIB), BlockMemory(12 * GIB, 16 * BYTES)):
        churn = Churn(memory, on_failure="drop", keep_finished=keep_finished)
        run = churn.feed(holdings)
        assert run.num_placed + run.num_dropped == len(holdings)
        used = sum(span.size for span in memory.layout() if span.state == "allocated")
        assert used + memory.free_bytes() == memory.capacity
        churn.drain()
        assert not churn._live
        assert keep_finished or memory.free_bytes() == memory.capacity


def test_a_restart_keeps_what_is_alive_and_when_it_ends():
    holdings = [Holding(float(i), 10.0, GIB) for i in range(4)]
    churn = Churn(first_fit(8 * GIB))
    churn.feed(holdings)
    churn.restart(first_fit(8 * GIB), 5.0)
    assert churn.memory.free_bytes() == 4 * GIB
    churn.feed([Holding(10.5, 1.0, GIB)])
    assert churn.memory.free_bytes() == 4 * GIB  # the first ended at 10.0, the new one took its place


def test_the_tour(holdings):
    tour = take_tour(
        holdings,
        capacity=int(1.1 * peak_demand(holdings)),
        long_request_bytes=4 * GIB,
        block_bytes=16 * BYTES,
    )
    assert tour.aged.refused_with_room_to_spare
    assert tour.restarted.served
    assert tour.on_blocks.served
    assert tour.restarted.free == tour.aged.free


def test_contiguous_is_leaner_for_one_request_only():
    alone = contiguous_footprint([4000], reserved=4000, bytes_per_token=BYTES)
    assert alone.leaner_than(paged_footprint([4000], block_size=16, bytes_per_token=BYTES))
    mixed = contiguous_footprint([100, 4000], reserved=8192, bytes_per_token=BYTES)
    assert not mixed.leaner_than(paged_footprint([100, 4000], block_size=16, bytes_per_token=BYTES))


def test_growth_copies_and_holds_both_only_with_a_neighbour_behind():
    crowded, roomy = grow_once(neighbour_behind=True), grow_once(neighbour_behind=False)
    assert (crowded.moved_tokens, crowded.peak_slots) == (1024, 1024 + 1088)
    assert (roomy.moved_tokens, roomy.peak_slots) == (0, 1088)


def test_reserve_max_wastes_and_no_step_is_good_at_both(requests):
    load = [r for r in requests[:600] if r.num_prompt_tokens + r.num_output_tokens <= 8192]
    options = {"capacity_tokens": 120_000, "bytes_per_token": BYTES}
    reserved = waste_of_reserve_max(load, max_model_len=8192, **options)
    assert 1 - reserved.token_share > 0.5
    long = waste_of_reserve_max(with_fixed_lengths(load[:60], 8100, 92), max_model_len=8192, **options)
    assert 1 - long.token_share < 0.5
    steps = [64, 256, 1024, 4096]
    assert not any(p.good_at_both() for p in reservation_curve(load, steps, **options))
    fixed = with_fixed_lengths(load, 896, 128)
    assert any(p.good_at_both() for p in reservation_curve(fixed, steps, **options))


def test_paged_attention_equals_contiguous_unless_the_table_is_wrong(seed):
    assert paged_equals_contiguous(np.random.default_rng(seed)).same_output()
    assert not paged_equals_contiguous(np.random.default_rng(seed), swap_two_entries=True).same_output()


def test_reference_counts_decide_when_a_block_is_freed():
    assert fork_and_leave(share=True).by_reference_count()
    assert not fork_and_leave(share=False).by_reference_count()


def test_counting_blocks_is_never_wrong(holdings):
    capacity = int(0.9 * peak_demand(holdings))
    rule = counts_blocks(16 * BYTES)
    assert judge(BlockMemory(capacity, 16 * BYTES), rule, holdings).never_wrong
    assert not judge(first_fit(capacity), share_free(5), holdings).never_wrong


def test_block_size_trades_unless_lengths_fit_every_size(requests):
    lengths = [r.num_prompt_tokens + r.num_output_tokens for r in requests[:100]]
    sizes = [8, 16, 64, 256]
    assert trades(block_size_costs(lengths, sizes, bytes_per_token=BYTES))
    assert not trades(block_size_costs([4096] * 100, sizes, bytes_per_token=BYTES))
