"""Faults that hold memory: each takes blocks out of the pool through the cache's own calls, so that admission, eviction and
preemption meet them as they would meet the real thing."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from labkit.kv.base import KVCacheManager
from labkit.workload.base import RequestSpec


class Holds:
    """Blocks that outlive their request. Never more than `limit_tokens`, so that the server limps instead of hanging."""

    def __init__(self, kv: KVCacheManager, limit_tokens: float):
        self.kv, self.limit_tokens = kv, limit_tokens
        self.num_tokens = 0
        self._until: list[tuple[float, str, int]] = []
        self._num = 0

    def hold(self, num_tokens: int, until_s: float, keys: Sequence[int] = ()) -> int:
        """Take `num_tokens` (found by `keys` where they are cached) until an instant. Returns what was taken."""
        size = self.kv.block_size
        num_tokens = -(-num_tokens // size) * size
        if num_tokens < size or self.num_tokens + num_tokens > self.limit_tokens:
            return 0
        self._num += 1
        name = f"held {self._num}"
        before = self.kv.stats().reserved_bytes
        told: dict[str, Any] = {"block_keys": list(keys)} if keys else {}
        if not self.kv.admit(
            name, num_tokens, max_tokens=num_tokens, final_tokens=num_tokens, **told
        ).admitted:
            return 0
        taken = (self.kv.stats().reserved_bytes - before) // self.kv.bytes_per_token
        self.num_tokens += taken
        heapq.heappush(self._until, (until_s, name, taken))
        return taken

    def only_held_tokens(self, running: Iterable[str]) -> int:
        """Slots of blocks that holds name and no running request does."""
        held: set[int] = set()
        for _, name, _ in self._until:
            held.update(self.kv.block_table(name))
        for name in running:
            held.difference_update(self.kv.block_table(name))
        return len(held) * self.kv.block_size

    def release_due(self, now_s: float) -> int:
        """Give back what is due. Returns how many holds ended."""
        num = 0
        while self._until and self._until[0][0] <= now_s:
            _, name, _ = heapq.heappop(self._until)
            before = self.kv.stats().reserved_bytes
            self.kv.free(name)
            self.num_tokens -= (before - self.kv.stats().reserved_bytes) // self.kv.bytes_per_token
            num += 1
        return num


class Fault:
    """What a fault does when a request ends. `idle_running` are sequences that a server still counts as running."""

    idle_running = 0

    def attach(self, kv: KVCacheManager, share: float) -> None:
        """It may hold up to `share` of the cache's tokens."""
        self.holds = Holds(kv, share * kv.capacity_tokens)

    def finished(self, spec: RequestSpec, now_s: float) -> None:
        """A request ended at `now_s`."""
        raise NotImplementedError

    def cached_tokens(self, running: Iterable[str]) -> int:
        """What is held and shown as cache."""
        return 0

    def advance(self, now_s: float) -> None:
        """Let go of what is due by `now_s`."""
        self.holds.release_due(now_s)


class Leak(Fault):
    """Some requests leave `tokens_each` behind that nobody will ever free."""

    def __init__(self, rng: np.random.Generator, probability: float, tokens_each: int):
        self.rng, self.probability, self.tokens_each = rng, probability, tokens_each

    def finished(self, spec: RequestSpec, now_s: float) -> None:
        if self.rng.random() < self.probability:
            self.holds.hold(self.tokens_each, math.inf)


class IdleSessions(Leak):
    """As `Leak`, but the sequence stays open: its client is gone, the server counts it as running, and it makes no token."""

    def finished(self, spec: RequestSpec, now_s: float) -> None:
        if self.rng.random() < self.probability and self.holds.hold(self.tokens_each, math.inf):
            self.idle_running += 1


class SlowReclaim(Fault):
    """Blocks come back `delay_s` after their request ended."""

    def __init__(self, delay_s: float):
        self.delay_s = delay_s

    def finished(self, spec: RequestSpec, now_s: float) -> None:
        self.holds.hold(spec.num_prompt_tokens + spec.num_output_tokens, now_s + self.delay_s)


class LatePrefixRelease(Fault):
    """The prompt's blocks keep a reference for a lease of minutes after the request that brought them ended."""

    def __init__(self, rng: np.random.Generator, probability: float, lease_s: float):
        self.rng, self.probability, self.lease_s = rng, probability, lease_s

    def finished(self, spec: RequestSpec, now_s: float) -> None:
        if self.rng.random() < self.probability:
            self._pin(spec, now_s + self.lease_s)

    def _pin(self, spec: RequestSpec, until_s: float) -> int:
        size, keys = self.holds.kv.block_size, spec.prefix_hashes or ()
        per_key = spec.prefix_block_size // size if keys else 1
        blocks = [(key, i) for key in keys for i in range(per_key)]
        return self.holds.hold(len(blocks) * size, until_s, blocks) if blocks else 0  # type: ignore[arg-type]


class NoEviction(LatePrefixRelease):
    """The cache keeps a reference of its own and never gives it up; the pages show such blocks as cached."""

    def __init__(self, rng: np.random.Generator, probability: float = 1.0):
        super().__init__(rng, probability, math.inf)

    def cached_tokens(self, running: Iterable[str]) -> int:
        return self.holds.only_held_tokens(running)
