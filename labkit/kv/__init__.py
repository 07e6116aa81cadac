"""KV caches by name, on the allocators of `labkit.memory`.

    kv = make_kv_cache("paged", capacity_tokens=26_000 * 16, bytes_per_token=131_072, prefix="hash")
    kv.admit("a", 900, max_tokens=1_400, token_ids=prompt)

Nothing here imports torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from labkit.errors import LabError
from labkit.kv.base import Admission, Grown, KVCacheManager, KVStats, Move, NoSpace, positive
from labkit.kv.grow import GrowCompactKVCache, GrowKVCache
from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix import PREFIX_CACHES, make_prefix_cache
from labkit.kv.reserve import ReserveMaxKVCache, ReserveOracleKVCache, ReservePow2KVCache
from labkit.kv.virtual import VirtualContiguousKVCache
from labkit.memory import Allocator, make_allocator
from labkit.registry import Registry
from labkit.units import MIB

__all__ = [
    "KV_CACHES",
    "PREFIX_CACHES",
    "Admission",
    "Grown",
    "KVCacheManager",
    "KVStats",
    "Move",
    "NoSpace",
    "make_kv_cache",
    "make_prefix_cache",
]

Builder = Callable[..., KVCacheManager]
#: name -> builder(num_tokens, bytes_per_token, **options)
KV_CACHES: Registry[Builder] = Registry("KV cache")


def make_kv_cache(
    name: str,
    *,
    bytes_per_token: int,
    capacity_tokens: int | None = None,
    capacity_bytes: int | None = None,
    **options: Any,
) -> KVCacheManager:
    """A fresh KV cache by registry name; give its capacity in tokens or in bytes.

    Options: `block_size`, `window`, `free_order`, `prefix` ("off", "hash", "radix") and `prefix_options` (a dict, see
    `make_prefix_cache`) for "paged"; `allocator` (a name) for the contiguous ones,
    and `max_model_len`, `grow_tokens`, `growth`, `granule_bytes`, `num_ranges`, `max_num_seqs` where a variant has
    them. Raises `LabError` for an unknown name or
    option, and for a capacity that is missing, doubled or smaller than one block.
    """
    builder = KV_CACHES[name]
    positive(bytes_per_token, "bytes_per_token")
    if (capacity_tokens is None) == (capacity_bytes is None):
        raise LabError("make_kv_cache: give either capacity_tokens or capacity_bytes")
    if capacity_tokens is None:
        assert capacity_bytes is not None
        capacity_tokens = positive(capacity_bytes, "capacity_bytes") // bytes_per_token
        if not capacity_tokens:
            raise LabError(
                f"capacity_bytes {capacity_bytes} does not hold one token of {bytes_per_token} bytes"
            )
    accepted = list(inspect.signature(builder).parameters)[2:]
    for option in options:
        if option not in accepted:
            raise LabError(f"KV cache {name!r} has no option {option!r}; it takes: {', '.join(accepted)}")
    return builder(positive(capacity_tokens, "capacity_tokens"), bytes_per_token, **options)


#: allocators that can count in token slots, and what makes their smallest unit one slot
_SLOT_ALLOCATORS: dict[str, dict[str, int]] = {
    "first-fit": {},
    "best-fit": {},
    "next-fit": {},
    "worst-fit": {},
    "buddy": {"min_block_bytes": 1},
    "size-class": {"min_class_bytes": 1},
}


def _slots(allocator: str, num_slots: int) -> Allocator:
    if allocator not in _SLOT_ALLOCATORS:
        raise LabError(
            f"allocator {allocator!r} does not hand out token slots; choose one of: {', '.join(_SLOT_ALLOCATORS)}"
        )
    return make_allocator(allocator, num_slots, **_SLOT_ALLOCATORS[allocator])


@KV_CACHES.register("paged")
def _paged(
    capacity_tokens: int,
    bytes_per_token: int,
    block_size: int = 16,
    window: int | None = None,
    free_order: Any = "lifo",
    prefix: str = "off",
    prefix_options: dict[str, Any] | None = None,
) -> KVCacheManager:
    if prefix == "radix" and window is not None:
        raise LabError("prefix 'radix' does not go with a sliding window: use prefix 'hash' or 'off'")
    num_blocks = capacity_tokens // positive(block_size, "block_size")
    if not num_blocks:
        raise LabError(f"capacity_tokens {capacity_tokens} is less than one block of {block_size}")
    return PagedKVCache(
        num_blocks,
        bytes_per_token,
        block_size=block_size,
        prefix=make_prefix_cache(prefix, block_size, **(prefix_options or {})),
        window=window,
        free_order=free_order,
    )


@KV_CACHES.register("reserve-max")
def _reserve_max(
    capacity_tokens: int, bytes_per_token: int, allocator: str = "first-fit", max_model_len: int | None = None
) -> KVCacheManager:
    return ReserveMaxKVCache(_slots(allocator, capacity_tokens), bytes_per_token, max_model_len=max_model_len)


@KV_CACHES.register("reserve-pow2")
def _reserve_pow2(capacity_tokens: int, bytes_per_token: int, allocator: str = "first-fit") -> KVCacheManager:
    return ReservePow2KVCache(_slots(allocator, capacity_tokens), bytes_per_token)


@KV_CACHES.register("reserve-oracle")
def _reserve_oracle(
    capacity_tokens: int, bytes_per_token: int, allocator: str = "first-fit"
) -> KVCacheManager:
    return ReserveOracleKVCache(_slots(allocator, capacity_tokens), bytes_per_token)


@KV_CACHES.register("grow")
def _grow(
    capacity_tokens: int,
    bytes_per_token: int,
    allocator: str = "first-fit",
    grow_tokens: int = 64,
    growth: float = 1.0,
) -> KVCacheManager:
    inner = _slots(allocator, capacity_tokens)
    return GrowKVCache(inner, bytes_per_token, grow_tokens=grow_tokens, growth=growth)


@KV_CACHES.register("grow-compact")
def _grow_compact(
    capacity_tokens: int,
    bytes_per_token: int,
    allocator: str = "first-fit",
    grow_tokens: int = 64,
    growth: float = 1.0,
) -> KVCacheManager:
    if allocator not in ("first-fit", "best-fit", "worst-fit"):
        raise LabError(
            f"KV cache 'grow-compact' cannot compact on {allocator!r}: choose first-fit, best-fit or worst-fit"
        )
    inner = _slots(allocator, capacity_tokens)
    return GrowCompactKVCache(inner, bytes_per_token, grow_tokens=grow_tokens, growth=growth)


@KV_CACHES.register("virtual-contiguous")
def _virtual(
    capacity_tokens: int,
    bytes_per_token: int,
    granule_bytes: int = 2 * MIB,
    num_ranges: int = 1,
    max_model_len: int | None = None,
    max_num_seqs: int = 64,
) -> KVCacheManager:
    return VirtualContiguousKVCache(
        capacity_tokens,
        bytes_per_token,
        granule_bytes=granule_bytes,
        num_ranges=num_ranges,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
    )
