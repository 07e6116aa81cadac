"""Prefix caches by name, with the option that each takes."""

from __future__ import annotations

import inspect
from typing import Any

from labkit.errors import LabError
from labkit.kv.prefix_base import PrefixCache
from labkit.kv.prefix_hash import HashPrefixCache
from labkit.kv.prefix_radix import RadixPrefixCache
from labkit.registry import Registry

PREFIX_CACHES: Registry[type[PrefixCache]] = Registry("prefix cache")
PREFIX_CACHES.register("hash")(HashPrefixCache)
PREFIX_CACHES.register("radix")(RadixPrefixCache)


def make_prefix_cache(name: str, block_size: int, **options: Any) -> PrefixCache | None:
    """ "off" (None), "hash" or "radix". Options: `eviction` ("lru", "lfu", "fifo", "priority"), and `publish`, `digest`
    (hash) or `partial_hits` (radix)."""
    if name == "off":
        if options:
            raise LabError(
                f"prefix 'off' has no option {next(iter(options))!r}; choose prefix 'hash' or 'radix'"
            )
        return None
    if name not in PREFIX_CACHES:
        raise LabError(f"unknown prefix cache {name!r}; choose one of: off, {', '.join(PREFIX_CACHES)}")
    variant: Any = PREFIX_CACHES[name]
    accepted = list(inspect.signature(variant).parameters)[1:]
    for option in options:
        if option not in accepted:
            raise LabError(f"prefix {name!r} has no option {option!r}; it takes: {', '.join(accepted)}")
    cache: PrefixCache = variant(block_size, **options)
    return cache
