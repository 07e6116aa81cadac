"""Ways in which a server ages, each through the cache's own calls, so that admission and preemption meet them as the real thing.

leak       some requests leave blocks behind that nobody frees
sessions   long sessions come and go, always as many and as large: what is held stays the same, where it lies does not
"""

from __future__ import annotations

from collections import deque

import numpy as np

from labkit.kv.base import KVCacheManager
from labkit.registry import Registry


class SoakFault:
    """Told when the server starts (`attach`, a fresh cache) and when a request has ended (`finished`)."""

    def attach(self, kv: KVCacheManager) -> None:
        """The cache that it will hold on to."""
        self.kv = kv
        self.num_ended = 0

    def finished(self) -> None:
        """A request ended."""
        self.num_ended += 1
        self.ended()

    def ended(self) -> None:
        """What the fault does at the end of every request."""
        raise NotImplementedError


FAULTS: Registry[type[SoakFault]] = Registry("soak fault")


def _take(kv: KVCacheManager, name: str, num_tokens: int) -> bool:
    return kv.admit(name, num_tokens, max_tokens=num_tokens, final_tokens=num_tokens).admitted


@FAULTS.register("leak")
class Leak(SoakFault):
    """Every `every`-th request leaves `tokens_each` tokens behind, up to half of the pool: the server limps on."""

    def __init__(self, every: int = 20, tokens_each: int = 64):
        self.every, self.tokens_each = every, tokens_each

    def attach(self, kv: KVCacheManager) -> None:
        super().attach(kv)
        self.num_leaked = 0

    def ended(self) -> None:
        room = (self.num_leaked + 1) * self.tokens_each <= self.kv.capacity_tokens // 2
        if self.num_ended % self.every == 0 and room:
            self.num_leaked += _take(self.kv, f"leaked {self.num_leaked}", self.tokens_each)


@FAULTS.register("sessions")
class LongSessions(SoakFault):
    """`num` sessions, each 1/`parts` of the cache, give or take `spread` of it. After every `every`-th request the
    oldest one ends and a new one begins where there is room. After a restart all of them reconnect first, side by side."""

    def __init__(self, num: int = 24, parts: int = 100, every: int = 50, spread: float = 0.75, seed: int = 0):
        self.num, self.parts, self.every, self.spread = num, parts, every, spread
        self.rng = np.random.default_rng(seed)

    def attach(self, kv: KVCacheManager) -> None:
        super().attach(kv)
        self.live: deque[str] = deque()
        self.num_opened = 0
        for _ in range(self.num):
            self._open()

    def ended(self) -> None:
        if self.num_ended % self.every == 0:
            if len(self.live) >= self.num:
                self.kv.free(self.live.popleft())
            while len(self.live) < self.num and self._open():
                pass

    def _open(self) -> bool:
        name = f"session {self.num_opened}"
        tokens = max(
            1, int(self.rng.uniform(1 - self.spread, 1 + self.spread) * self.kv.capacity_tokens / self.parts)
        )
        if not _take(self.kv, name, tokens):
            return False
        self.num_opened += 1
        self.live.append(name)
        return True
