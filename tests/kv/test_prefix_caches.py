"""What is found, what is evicted, what is re-pointed. Hit lengths of the real systems: vLLM shares full blocks below the
last token, SGLang (pages of one) all but the last token."""

from __future__ import annotations

import pytest

from labkit.kv import Move, make_kv_cache


def paged(prefix, block_size=16, capacity_tokens=4096, window=None, **options):
    return make_kv_cache(
        "paged",
        capacity_tokens=capacity_tokens,
        bytes_per_token=10,
        block_size=block_size,
        prefix=prefix,
        prefix_options=options,
        window=window,
    )


def admit(kv, name, token_ids, **options):
    answer = kv.admit(
        name,
        len(token_ids),
        max_tokens=len(token_ids) + (50 if kv.num_total_blocks > 50 else 0),
        token_ids=token_ids,
        **options,
    )
    assert answer.admitted
    kv.check_integrity()
    return answer


@pytest.mark.parametrize(
    ("length", "hit"), [(64, 48), (49, 48), (48, 32), (47, 32), (17, 16), (16, 0), (112, 96)]
)
def test_hash_hits_are_full_blocks_below_the_last_token(length, hit):
    kv = paged("hash")
    tokens = list(range(length))
    admit(kv, "a", tokens)
    kv.free("a")
    assert kv.lookup(tokens) == hit
    assert admit(kv, "b", tokens).num_hit_tokens == hit


@pytest.mark.parametrize(("length", "hit"), [(64, 63), (48, 47), (16, 15)])
@pytest.mark.parametrize(("block_size", "options"), [(1, {}), (16, {"partial_hits": True})])
def test_radix_hits_are_all_but_the_last_token(length, hit, block_size, options):
    kv = paged("radix", block_size, **options)
    tokens = list(range(length))
    admit(kv, "a", tokens)
    kv.free("a")
    assert admit(kv, "b", tokens).num_hit_tokens == hit


def test_two_equal_prompts_in_one_step():
    """vLLM shares at once, SGLang computes both."""
    tokens = list(range(64))
    for prefix, options, hit in (("hash", {}, 48), ("hash", {"publish": "computed"}, 0), ("radix", {}, 0)):
        kv = paged(prefix, **options)
        admit(kv, "a", tokens)
        assert admit(kv, "b", tokens).num_hit_tokens == hit


def test_radix_re_points_the_second_of_two_equal_prompts_and_frees_its_copies():
    kv = paged("radix", 4)
    tokens = list(range(12))
    admit(kv, "a", tokens)
    admit(kv, "b", tokens)
    assert list(kv.block_table("b")) == [3, 4, 5]
    kv.append("a", 1, [1])
    kv.append("b", 1, [2])
    assert list(kv.block_table("b"))[:3] == [0, 1, 2]
    assert kv.stats().reserved_bytes == 5 * 4 * 10
    kv.check_integrity()


def test_equal_pages_after_different_beginnings_are_different():
    for prefix in ("hash", "radix"):
        kv = paged(prefix, 2)
        admit(kv, "a", [1, 1, 7, 7, 9])
        kv.free("a")
        assert kv.lookup([2, 2, 7, 7, 9]) == 0
        assert kv.lookup([1, 1, 7, 7, 9]) == 4
        assert kv.lookup([7, 7, 9]) == 0


def test_a_hit_inside_a_block_is_copied():
    kv = paged("radix", 4, partial_hits=True)
    admit(kv, "a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    kv.free("a")
    answer = admit(kv, "b", [1, 2, 3, 4, 5, 6, 70, 80, 90])
    assert answer.num_hit_tokens == 6
    assert list(answer.moves) == [Move(1 * 4, kv.block_table("b")[1] * 4, 2)]
    assert kv.block_table("b")[0] == 0


def test_what_was_never_computed_is_withdrawn():
    """A request that is preempted in the step that scheduled it leaves nothing findable behind."""
    tokens = list(range(64))
    kv = paged("hash")
    kv.admit("a", 40, max_tokens=80, token_ids=tokens)
    assert kv.lookup(tokens) == 32
    kv.free("a", num_computed_tokens=20)
    assert kv.lookup(tokens) == 16
    kv.check_integrity()


def test_a_fork_before_the_prompt_is_placed_does_not_inherit_the_rest_of_it():
    for prefix, options in (("hash", {}), ("hash", {"publish": "computed"}), ("radix", {})):
        kv = paged(prefix, 2, **options)
        prompt = [1, 2, 3, 4, 5, 6, 7, 8]
        kv.admit("parent", 3, max_tokens=20, token_ids=prompt)
        kv.fork("parent", "child")
        kv.append("child", 5, [40, 50, 60, 70, 80])
        kv.free("child")
        kv.free("parent")
        assert kv.lookup(prompt + [9]) == 2, (prefix, options)
        assert kv.lookup([1, 2, 3, 40, 50, 60, 70, 80, 9]) == 8, (prefix, options)


def test_outputs_are_found_by_the_next_turn():
    for prefix in ("hash", "radix"):
        kv = paged(prefix, 4)
        admit(kv, "turn 1", [1, 2, 3, 4, 5, 6])
        for token in (7, 8, 9):
            kv.append("turn 1", 1, [token])
        kv.free("turn 1")
        assert kv.lookup([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == 8


def test_block_keys_stand_for_tokens():
    for prefix in ("hash", "radix"):
        kv = paged(prefix, 16)
        assert kv.admit("a", 50, max_tokens=60, block_keys=["x", "y", "z"]).num_hit_tokens == 0
        kv.free("a")
        assert kv.admit("b", 50, max_tokens=60, block_keys=["x", "y", "w"]).num_hit_tokens == 32


def test_free_evictable_and_pinned_add_up_to_total():
    kv = paged("hash", 4, 64)
    admit(kv, "a", list(range(12)))
    admit(kv, "b", list(range(8)) + [50, 51])
    assert (kv.num_free_blocks, kv.num_evictable_blocks) == (12, 0)
    kv.free("a")
    assert (kv.num_free_blocks, kv.num_evictable_blocks) == (12, 1)
    kv.free("b")
    assert (kv.num_free_blocks, kv.num_evictable_blocks) == (13, 3)
    assert kv.stats().cached_bytes == 3 * 4 * 10


# --- eviction --------------------------------------------------------------------------------------------------------


def one_block_prompts(kv, names, **options):
    for name in names:
        admit(kv, name, [ord(name)] * 4 + [0], **options)
        kv.free(name)


def found(kv, names):
    return "".join(name for name in names if kv.lookup([ord(name)] * 4 + [0]))


@pytest.mark.parametrize("prefix", ["hash", "radix"])
@pytest.mark.parametrize(
    ("eviction", "left"),
    [
        ("lru", "ad"),  # b, then c: a was used again after them
        ("lfu", "ab"),  # a was hit twice, b once, the others never
        ("fifo", "cd"),  # a, then b, used or not
    ],
)
def test_who_goes_first(prefix, eviction, left):
    kv = paged(prefix, 4, 4 * 6, eviction=eviction)
    one_block_prompts(kv, "abcd")
    if eviction == "lru":
        one_block_prompts(kv, "a")
    else:
        one_block_prompts(kv, "bacda"[:3] if eviction == "fifo" else "baa")
    kv.admit("big", 4 * 4, max_tokens=4 * 4)  # two unused blocks and two evicted ones
    kv.check_integrity()
    assert found(kv, "abcd") == left


@pytest.mark.parametrize("prefix", ["hash", "radix"])
def test_priority_until_its_time_is_over(prefix):
    for now, left in ((5.0, "d"), (20.0, "b")):
        kv = paged(prefix, 4, 4 * 5, eviction="priority")
        one_block_prompts(kv, "a", priority=1)
        one_block_prompts(kv, "b", priority=7)
        one_block_prompts(kv, "c", priority=3)
        one_block_prompts(kv, "d", priority=9, ttl_s=10.0)
        kv.set_time(now)
        kv.admit("big", 4 * 4, max_tokens=4 * 4)
        assert found(kv, "abcd") == left


def test_radix_evicts_leaves_before_their_parents():
    kv = paged("radix", 4, 4 * 8, eviction="fifo")
    admit(kv, "a", [1] * 4 + [2] * 4 + [0])
    kv.free("a")
    admit(kv, "b", [1] * 4 + [3] * 4 + [0])
    kv.free("b")
    kv.admit("big", 4 * 6, max_tokens=4 * 6)  # five unused blocks, so one leaf goes
    assert kv.lookup([1] * 4 + [2] * 4 + [0]) == 4
    assert kv.lookup([1] * 4 + [3] * 4 + [0]) == 8


def test_held_blocks_are_never_evicted():
    for prefix in ("hash", "radix"):
        kv = paged(prefix, 4, 4 * 4)
        admit(kv, "a", list(range(9)))
        assert not kv.admit("b", 8, max_tokens=8).admitted
        kv.free("a")
        assert kv.admit("b", 16, max_tokens=16).admitted
        assert kv.prefix.num_evicted == 2
