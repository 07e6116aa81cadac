"""Prefix cache as a hash chain over full blocks (vLLM, `core/kv_cache_utils.py`).

A block's key is the hash of its parent's key and of its own tokens, so that equal keys mean equal tokens from the very
start; without the parent two requests with one equal block in the middle would read each other's past. Only full blocks
have keys. If two requests compute the same block before either is findable, the first keeps the key.

`publish="scheduled"` makes a block findable in the step that computes it: two equal prompts admitted in one step share
(vLLM). `publish="computed"` waits until a later call shows that it was computed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from hashlib import sha256
from typing import Literal

from labkit.errors import LabError, require
from labkit.kv.eviction import EVICTION, Entry
from labkit.kv.prefix_base import PrefixCache


class HashPrefixCache(PrefixCache):
    """`digest="python"` uses Python's 64-bit hash of a tuple: fast, fine for a lab, and predictable for somebody who
    wants a collision; `"sha256"` is what servers use."""

    name = "hash"

    def __init__(
        self,
        block_size: int,
        eviction: str = "lru",
        *,
        publish: Literal["scheduled", "computed"] = "scheduled",
        digest: Literal["python", "sha256"] = "python",
    ):
        super().__init__(block_size)
        if publish not in ("scheduled", "computed"):
            raise LabError(f"unknown publish {publish!r}; choose one of: computed, scheduled")
        if digest not in ("python", "sha256"):
            raise LabError(f"unknown digest {digest!r}; choose one of: python, sha256")
        self.publishes_when_computed = publish == "computed"
        self.digest = digest
        self._queue = EVICTION[eviction]()
        self._block_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}
        self._entry_of: dict[int, Entry] = {}
        self._clock = 0

    def extend_key(self, keys: list[Hashable], page: Hashable) -> None:
        parent = keys[-1] if keys else None
        if self.digest == "python":
            keys.append(hash((parent, page)))
        else:
            keys.append(sha256(repr((parent, page)).encode()).digest())

    def match(self, keys: Sequence[Hashable], max_blocks: int) -> list[int]:
        blocks = []
        for key in keys[:max_blocks]:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def hit(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._entry_of[block].num_hits += 1

    def publish(
        self,
        keys: Sequence[Hashable],
        blocks: Sequence[int],
        start: int,
        stop: int,
        priority: int,
        ttl_s: float | None,
    ) -> list[tuple[int, int]]:
        expires_s = math.inf if ttl_s is None else self.now_s + ttl_s
        for i in range(start, stop):
            key, block = keys[i], blocks[i]
            if key in self._block_of or block in self._key_of:
                continue
            self._clock += 1
            self._block_of[key] = block
            self._key_of[block] = key
            self._entry_of[block] = Entry(block, self._clock, self._clock, 0, priority, expires_s)
        return []

    def withdraw(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block in self._key_of:
                self._forget(block)

    def holds(self, block: int) -> bool:
        return block in self._key_of

    def acquire(self, block: int) -> None:
        self.num_evictable -= 1
        self._queue.discard(self._entry_of[block])

    def release(self, block: int) -> None:
        self._clock += 1
        self.num_evictable += 1
        entry = self._entry_of[block]
        entry.last_used = self._clock
        self._queue.add(entry)

    def evict(self, num_blocks: int) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < num_blocks and (entry := self._queue.pop(self.now_s)) is not None:
            self._forget(entry.item)
            evicted.append(entry.item)
        self.num_evictable -= len(evicted)
        self.num_evicted += len(evicted)
        return evicted

    def check_integrity(self) -> None:
        require(
            {block: key for key, block in self._block_of.items()} == self._key_of
            and self._key_of.keys() == self._entry_of.keys(),
            "keys and blocks map to each other one to one",
            keys=len(self._block_of),
            blocks=len(self._key_of),
            entries=len(self._entry_of),
        )
        num_idle = sum(1 for block in self._key_of if not self.refs[block])
        require(
            num_idle == self.num_evictable == len(self._queue),
            "evictable = cached blocks that no table names",
            idle=num_idle,
            counted=self.num_evictable,
            queued=len(self._queue),
        )

    def _forget(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]
        del self._entry_of[block]
