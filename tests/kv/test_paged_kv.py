"""Blocks, counts, copy-on-write, windows: small cases with every number written out."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.kv import KV_CACHES, Move, NoSpace, make_kv_cache


def paged(capacity_tokens=64, block_size=4, **options):
    return make_kv_cache(
        "paged", capacity_tokens=capacity_tokens, bytes_per_token=10, block_size=block_size, **options
    )


def test_blocks_are_handed_out_in_id_order_and_reused_last_in_first_out():
    kv = paged()
    kv.admit("a", 9, max_tokens=20)
    kv.admit("b", 4, max_tokens=20)
    assert list(kv.block_table("a")) == [0, 1, 2]
    assert list(kv.block_table("b")) == [3]
    kv.free("a")
    kv.admit("c", 5, max_tokens=20)
    assert list(kv.block_table("c")) == [2, 1]


def test_slot_mapping_follows_the_table():
    kv = paged()
    kv.admit("x", 4, max_tokens=8)
    kv.admit("a", 4, max_tokens=20)
    kv.admit("y", 4, max_tokens=8)
    kv.append("a", 3)
    assert list(kv.block_table("a")) == [1, 3]
    assert list(kv.slot_mapping("a", 2, 7)) == [6, 7, 12, 13, 14]
    with pytest.raises(LabError, match=r"positions \[5, 8\) are not inside \[0, 7\)"):
        kv.slot_mapping("a", 5, 8)


def test_fork_shares_and_the_first_writer_copies_the_partly_filled_block():
    kv = paged()
    kv.admit("parent", 6, max_tokens=20)
    assert kv.fork("parent", "child").moves == ()
    assert list(kv.block_table("child")) == [0, 1]
    assert kv.stats().reserved_bytes == 2 * 4 * 10
    assert kv.room("parent") == 0, "a shared block is not to be written"
    assert list(kv.append("child").moves) == [Move(1 * 4, 2 * 4, 2)]
    assert list(kv.block_table("child")) == [0, 2]
    assert kv.append("parent").moves == (), "the parent holds its block alone now"
    assert list(kv.block_table("parent")) == [0, 1]
    kv.check_integrity()
    kv.free("parent")
    assert kv.pool.refs[:3] == [1, 0, 1]


def test_a_full_shared_block_is_never_copied():
    kv = paged()
    kv.admit("parent", 8, max_tokens=20)
    kv.fork("parent", "child")
    assert kv.append("child").moves == ()
    assert list(kv.block_table("child")) == [0, 1, 2]


def test_refusals_say_what_is_needed_and_change_nothing():
    kv = paged(16)
    kv.admit("a", 8, max_tokens=8)
    before = kv.stats()
    answer = kv.admit("b", 12, max_tokens=12)
    assert not answer.admitted
    assert answer.can_ever_fit
    assert answer.reason == "request b needs 3 blocks and 2 are free or evictable"
    never = kv.admit("c", 12, max_tokens=17)
    assert not never.can_ever_fit
    assert never.reason == "request c can need 5 blocks and the cache has 4 in all"
    assert kv.stats() == before
    kv.admit("d", 8, max_tokens=9)
    with pytest.raises(NoSpace, match="request d needs 1 more blocks and 0 are free or evictable"):
        kv.append("d")


def test_wrong_calls_are_one_sentence():
    kv = paged()
    kv.admit("a", 1, max_tokens=2)
    for call, says in (
        (lambda: kv.admit("a", 1, max_tokens=2), "already in the KV cache"),
        (lambda: kv.admit("b", 0, max_tokens=2), "num_tokens must be a positive integer, not 0"),
        (lambda: kv.append("a", -1), "num_tokens must be a positive integer, not -1"),
        (lambda: kv.free("z"), "request 'z' is not in the KV cache"),
        (lambda: kv.fork("z", "y"), "request 'z' is not in the KV cache"),
        (lambda: kv.fork("a", "a"), "request 'a' is already in the KV cache"),
        (lambda: make_kv_cache("page", capacity_tokens=1, bytes_per_token=1), "unknown KV cache 'page'"),
        (lambda: make_kv_cache("paged", bytes_per_token=1), "give either capacity_tokens or capacity_bytes"),
        (lambda: make_kv_cache("paged", capacity_bytes=9, bytes_per_token=10), "does not hold one token"),
        (lambda: paged(3), "less than one block of 4"),
        (lambda: paged(size=3), "has no option 'size'"),
        (lambda: paged(prefix="tree"), "unknown prefix cache 'tree'; choose one of: off, hash, radix"),
        (lambda: paged(prefix="radix", window=8), "does not go with a sliding window"),
        (
            lambda: paged(prefix="hash", prefix_options={"eviction": "random"}),
            "unknown eviction policy 'random'",
        ),
        (lambda: paged(prefix="hash", prefix_options={"partial_hits": True}), "has no option 'partial_hits'"),
    ):
        with pytest.raises(LabError) as caught:
            call()
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


def test_sliding_window_gives_blocks_back_one_step_after_the_last_query_saw_them():
    kv = paged(block_size=2, window=4)
    kv.admit("a", 6, max_tokens=100)  # this step's queries still see everything
    assert kv.stats().reserved_bytes == 3 * 2 * 10
    kv.append("a")  # the query at 6 sees 3..6: block 0 (positions 0, 1) is dead
    assert kv.first_live_block("a") == 1
    kv.append("a")  # the query at 7 sees 4..7
    assert kv.first_live_block("a") == 2
    for _ in range(80):
        kv.append("a")
        kv.check_integrity()
        assert kv.stats().reserved_bytes <= 4 * 2 * 10, "the cache holds the window, however long the request"
    kv.free("a")
    assert kv.stats().free_bytes == kv.stats().capacity_bytes


def test_layout_tiles_the_pool_and_names_the_owner():
    kv = paged(block_size=4, prefix="hash")
    kv.admit("a", 6, max_tokens=20, token_ids=[1, 2, 3, 4, 5, 6])
    kv.fork("a", "b")
    kv.append("b")
    kv.admit("c", 4, max_tokens=8, token_ids=[9, 9, 9, 9])
    kv.free("c")
    spans = kv.layout()
    assert [span.offset for span in spans] == list(range(0, 640, 40))
    rows = {span.offset // 40: (span.state, span.lifetime, span.tag, span.requested) for span in spans}
    assert rows[0] == ("allocated", "shared", "a", 40)
    assert rows[1] == ("allocated", "private", "a", 20)
    assert rows[2] == ("allocated", "private", "b", 30)
    assert rows[3] == ("allocated", "cached", "prefix cache", 40)
    assert all(rows[i][0] == "free" for i in range(4, 16))


def test_every_registered_cache_can_be_built_by_name():
    for name in KV_CACHES:
        options = {"granule_bytes": 100} if name == "virtual-contiguous" else {}
        kv = make_kv_cache(name, capacity_bytes=64_000, bytes_per_token=10, **options)
        assert kv.name == name
        assert kv.admit("a", 3, max_tokens=9, final_tokens=9).admitted
        assert kv.num_tokens("a") == 3
        assert (kv.base_slot("a") is None) == bool(kv.block_table("a"))
        kv.check_integrity()
