"""Reservations, growth, moves: small cases with every number written out."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.kv import Move, NoSpace, make_kv_cache


def make(name, capacity_tokens=100, **options):
    return make_kv_cache(name, capacity_tokens=capacity_tokens, bytes_per_token=10, **options)


@pytest.mark.parametrize(
    ("name", "options", "reserved"),
    [
        ("reserve-max", {"max_model_len": 64}, 64),
        ("reserve-max", {}, 50),  # without a model's maximum: the request's own
        ("reserve-pow2", {}, 10 + 32),  # 25 outputs: 32 positions, the paper's own example
        ("reserve-oracle", {}, 35),
        ("grow", {"grow_tokens": 8}, 16),
    ],
)
def test_what_is_reserved_on_arrival(name, options, reserved):
    kv = make(name, **options)
    assert kv.admit("a", 10, max_tokens=50, final_tokens=35).admitted
    stats = kv.stats()
    assert stats.reserved_bytes == reserved * 10
    assert stats.token_bytes == 100
    assert kv.room("a") == reserved - 10


def test_reserved_requests_that_outgrow_their_run_get_no_more():
    kv = make("reserve-oracle")
    kv.admit("a", 3, max_tokens=9, final_tokens=4)
    kv.append("a")
    with pytest.raises(NoSpace, match="request a needs 5 slots and reserved 4 on arrival"):
        kv.append("a")


def test_oracles_ask_for_the_real_length():
    with pytest.raises(LabError, match="reserve-pow2 needs final_tokens"):
        make("reserve-pow2").admit("a", 3, max_tokens=9)


def test_free_in_total_and_no_run_long_enough():
    kv = make("reserve-oracle")
    for name in "abcd":
        kv.admit(name, 1, max_tokens=25, final_tokens=25)
    kv.free("a")
    kv.free("c")
    answer = kv.admit("e", 1, max_tokens=30, final_tokens=30)
    assert answer.reason == "request e needs 30 slots in one run; 50 are free, the longest run has 25"
    assert answer.can_ever_fit
    assert answer.num_free_blocks == 50


def test_growth_in_place_then_by_copy_with_both_runs_alive():
    kv = make("grow", grow_tokens=10)
    kv.admit("a", 10, max_tokens=90)
    assert kv.append("a").moves == (), "room behind it: lengthened in place"
    kv.admit("b", 10, max_tokens=90)
    assert kv.base_slot("b") == 20
    kv.append("a", 9)
    assert list(kv.append("a").moves) == [Move(0, 30, 20)]
    assert kv.base_slot("a") == 30
    assert kv.peak_copy_slots == 20 + 30
    assert kv.stats().num_moved_bytes == 200
    assert list(kv.append("b").moves) == [Move(20, 0, 10)], "a stands behind it, and left room before it"
    kv.check_integrity()


def test_growth_fails_where_only_compaction_would_help():
    for name in ("grow", "grow-compact"):
        kv = make(name, grow_tokens=10)
        for request_id in "abcdefghij":
            kv.admit(request_id, 10, max_tokens=90)
        for request_id in "bdfh":
            kv.free(request_id)
        if name == "grow":
            with pytest.raises(NoSpace, match="40 are free, the longest run has 10"):
                kv.append("a", 11)
            assert kv.num_tokens("a") == 10
        else:
            moves = list(kv.append("a", 11).moves)
            assert moves == [
                Move(20, 10, 10),
                Move(40, 20, 10),
                Move(60, 30, 10),
                Move(80, 40, 10),
                Move(90, 50, 10),
                Move(0, 60, 10),
            ]
            assert kv.num_compactions == 1
            assert kv.stats().num_moved_bytes == 600
            assert [kv.base_slot(r) for r in "acegij"] == [60, 10, 20, 30, 40, 50]
        kv.check_integrity()


def test_compaction_wants_an_allocator_that_packs():
    with pytest.raises(LabError, match="cannot compact on 'buddy'"):
        make("grow-compact", allocator="buddy")
    with pytest.raises(LabError, match="does not hand out token slots"):
        make("grow", allocator="caching")


def test_virtual_ranges_map_granules_as_they_grow():
    # 2 MiB granules, 4 ranges (2 layers, keys and values), 8 KiB a token: 1,024 tokens a step
    kv = make_kv_cache(
        "virtual-contiguous",
        capacity_tokens=5_000,
        bytes_per_token=8_192,
        num_ranges=4,
        max_model_len=3_000,
        max_num_seqs=8,
    )
    assert kv.granule_tokens == 1_024
    assert kv.capacity_tokens == 4_096
    kv.admit("a", 10, max_tokens=3_000)
    kv.admit("b", 10, max_tokens=3_000)
    assert kv.base_slot("b") == 3_072
    assert kv.append("a", 1_500).moves == ()
    assert kv.base_slot("a") == 0
    stats = kv.stats()
    assert stats.reserved_bytes == 3 * 1_024 * 8_192
    assert stats.largest_free_bytes == stats.free_bytes == 1_024 * 8_192
    kv.append("b", 1_500)
    with pytest.raises(NoSpace, match="more granules than the 0 free ones"):
        kv.append("a", 1_000)
    assert kv.num_slots == 8 * 3_072
    kv.check_integrity()
