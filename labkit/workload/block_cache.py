"""A stand-alone cache of prompt blocks on a trace's own block ids: how much sharing a trace holds, by cache size.

Not a model of any server: requests come one after another, a prompt is looked up, then its blocks are used and inserted.
It answers whether a loader reads the ids right, and what a perfect prefix cache could save.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from labkit.errors import LabError
from labkit.workload.base import RequestSpec

Policy = Literal["lru", "lru-head-first", "fifo"]


@dataclass(frozen=True, slots=True)
class HitRatios:
    """`block_ratio` hit blocks / blocks; `token_ratio` hit tokens / prompt tokens; `mean_ratio` the mean over requests
    of their own token ratio; `share_with_one`, `share_with_two` requests that hit at least one or two blocks."""

    num_requests: int
    num_blocks: int
    num_distinct_blocks: int
    block_ratio: float
    token_ratio: float
    mean_ratio: float
    share_with_one: float
    share_with_two: float


def block_cache_ratios(
    requests: Iterable[RequestSpec],
    capacity_blocks: int | None = None,
    *,
    policy: Policy = "lru",
    recompute_last_token: bool = False,
) -> HitRatios:
    """Hit ratios of a cache of `capacity_blocks` (None: infinite).

    "lru" touches the whole prefix at each use, tail first, so that a root outlives its leaves; "lru-head-first" the
    other way round; "fifo" inserts head first and never touches. Room is made after a request's blocks are in. With `recompute_last_token` only full blocks count and
    the last token of a prompt is never a hit, as in servers. Raises `LabError` when a request has no block ids.
    """
    if capacity_blocks is not None and capacity_blocks < 1:
        raise LabError(f"capacity_blocks is {capacity_blocks}; it must be at least 1")
    if policy not in ("lru", "lru-head-first", "fifo"):
        raise LabError(f"unknown policy {policy!r}; choose one of: fifo, lru, lru-head-first")
    cache: OrderedDict[int, None] = OrderedDict()
    seen: set[int] = set()
    num_requests = num_blocks = hit_blocks = tokens = hit_tokens = one = two = 0
    ratio_sum = 0.0
    for request in requests:
        if request.prefix_hashes is None or not request.prefix_block_size:
            raise LabError(
                f"request {request.request_id} has no prefix block ids; use a trace that carries them"
            )
        hashes, size, length = (
            list(request.prefix_hashes),
            request.prefix_block_size,
            request.num_prompt_tokens,
        )
        usable = (length - 1) // size if recompute_last_token else len(hashes)
        hits = 0
        while hits < usable and hashes[hits] in cache:
            hits += 1
        covered = min(hits * size, length)
        num_requests, num_blocks, tokens = num_requests + 1, num_blocks + len(hashes), tokens + length
        hit_blocks, hit_tokens = hit_blocks + hits, hit_tokens + covered
        ratio_sum += covered / length
        one, two = one + (hits >= 1), two + (hits >= 2)
        seen.update(hashes)
        _use(cache, hashes, policy, capacity_blocks)
    if not num_requests:
        raise LabError("the load has no requests")
    return HitRatios(
        num_requests,
        num_blocks,
        len(seen),
        hit_blocks / max(1, num_blocks),
        hit_tokens / tokens,
        ratio_sum / num_requests,
        one / num_requests,
        two / num_requests,
    )


def _use(cache: OrderedDict[int, None], hashes: list[int], policy: Policy, capacity: int | None) -> None:
    for block in reversed(hashes) if policy == "lru" else hashes:
        if block not in cache:
            cache[block] = None
        elif policy != "fifo":
            cache.move_to_end(block)
    while capacity is not None and len(cache) > capacity:
        cache.popitem(last=False)
