"""Prefix sharing of the Mooncake trace against published hit ratios, and the cache itself on a load done by hand."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.workload.base import RequestSpec
from labkit.workload.block_cache import block_cache_ratios
from labkit.workload.mooncake import load_mooncake
from labkit.workload.traces import find_trace

LRU = {100: 0.0427, 1000: 0.0454, 3000: 0.0666, 5859: 0.1387, 10000: 0.2157, 19531: 0.2908}
LRU |= {30000: 0.3322, 50000: 0.3615, 97656: 0.3707}
HEAD_FIRST = {100: 0.0412, 10000: 0.2153, 30000: 0.3321}
FIFO = {1000: 0.0442, 10000: 0.1848, 30000: 0.2991}


@pytest.fixture(scope="module")
def mooncake():
    path = find_trace("mooncake-conversation")
    if path is None:
        pytest.skip("the trace mooncake-conversation is not on this machine")
    return load_mooncake(path, partial_blocks=True)


def test_what_an_infinite_cache_would_hit(mooncake):
    ratios = block_cache_ratios(mooncake)
    assert (ratios.num_requests, ratios.num_blocks, ratios.num_distinct_blocks) == (12031, 288500, 182790)
    assert round(ratios.block_ratio, 4) == 0.3664
    assert round(ratios.token_ratio, 4) == 0.3736
    assert round(ratios.mean_ratio, 4) == 0.4094
    assert round(100 * ratios.share_with_one, 2) == 99.99
    assert round(100 * ratios.share_with_two, 1) == 38.7
    assert round(block_cache_ratios(mooncake, recompute_last_token=True).token_ratio, 4) == 0.3734


@pytest.mark.parametrize(
    ("policy", "expected"), [("lru", LRU), ("lru-head-first", HEAD_FIRST), ("fifo", FIFO)]
)
def test_hit_ratio_by_size(mooncake, policy, expected):
    found = {n: round(block_cache_ratios(mooncake, n, policy=policy).token_ratio, 4) for n in expected}
    assert found == expected


def request(name: str, *hashes: int, size: int = 4, extra: int = 0) -> RequestSpec:
    return RequestSpec(
        name, 0.0, len(hashes) * size + extra, 1, prefix_hashes=list(hashes), prefix_block_size=size
    )


def test_by_hand():
    load = [request("a", 1, 2, 3), request("b", 1, 2, 4), request("c", 2, 1)]
    ratios = block_cache_ratios(load)
    assert ratios.block_ratio == pytest.approx((2 + 2) / 8)
    assert ratios.share_with_two == pytest.approx(2 / 3)
    assert block_cache_ratios(load, 1).block_ratio == pytest.approx(1 / 8), (
        "only the root of a stays, then of b"
    )
    assert block_cache_ratios(load, recompute_last_token=True).block_ratio == pytest.approx((2 + 1) / 8)


def test_bad_input():
    with pytest.raises(LabError, match="block ids"):
        block_cache_ratios([RequestSpec("r", 0.0, 1, 1)])
    with pytest.raises(LabError, match="capacity_blocks"):
        block_cache_ratios([request("a", 1)], 0)
    with pytest.raises(LabError, match="choose one of"):
        block_cache_ratios([request("a", 1)], 1, policy="clock")
    with pytest.raises(LabError, match="no requests"):
        block_cache_ratios([])
