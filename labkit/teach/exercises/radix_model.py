"""Exercise 10's second judge: the set of all prefixes that should be in the tree, through random locks and evictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.teach.exercises.base import that
from labkit.teach.exercises.radix_picture import view
from labkit.teach.exercises.shorten import Op, judge
from labkit.teach.exercises.strip import counted

SEEDS = 20


def random_locks_and_evictions(cls: Callable[..., Any]) -> int:
    num = 0
    for seed in range(SEEDS):
        rng = np.random.default_rng([11, seed])
        ops: list[Op] = []
        for _ in range(60):
            dice = rng.random()
            if dice < 0.45 or not ops:
                ops.append(("insert", random_tokens(rng)))
            elif dice < 0.6:
                ops.append(("lock", int(rng.integers(60)), int(rng.integers(1, 9))))
            elif dice < 0.75:
                ops.append(("unlock", int(rng.integers(60))))
            else:
                ops.append(("evict", int(rng.integers(1, 8))))
        judge(lambda: _Model(cls), (), ops)
        num += len(ops)
    return num


class _Model:
    """The learner's tree beside the set of all prefixes in it. What an eviction took is learned by matching again."""

    def __init__(self, cls: Callable[..., Any]):
        self.tree = cls()
        self.held: set[tuple[int, ...]] = set()
        self.locked: list[tuple[int, ...]] = []
        self.known: list[tuple[int, ...]] = []

    def __call__(self, op: Op) -> None:
        what, number = op[0], op[1]
        if what == "insert":
            tokens = tuple(number)
            self.tree.insert(list(tokens))
            self.known.append(tokens)
            self.held |= _prefixes(tokens)
            did = f"insert({list(tokens)})"
        elif what == "evict":
            did = f"evict({number})"
            self._evict(number, did)
        elif what == "lock":
            tokens = self.known[number % len(self.known)] if self.known else ()
            tokens = tokens[: min(op[2], _length(tokens, self.held))]
            if not tokens:
                return
            self.tree.lock(list(tokens))
            self.locked.append(tokens)
            did = f"lock({list(tokens)})"
        else:
            if not self.locked:
                return
            tokens = self.locked.pop(number % len(self.locked))
            self.tree.unlock(list(tokens))
            did = f"unlock({list(tokens)})"
        counts = (self.tree.num_tokens, self.tree.num_evictable)
        right = (len(self.held), len(self.held) - len(self._pinned()))
        that(
            counts == right,
            f"after {did} (num_tokens, num_evictable) is {counts} and should be {right}.",
            *view(self.tree),
        )

    def _pinned(self) -> set[tuple[int, ...]]:
        return set().union(*(_prefixes(t) for t in self.locked))

    def _evict(self, want: int, did: str) -> None:
        pinned = self._pinned()
        could = len(self.held) - len(pinned)
        got = self.tree.evict(want)
        that(
            min(want, could) <= got <= could,
            f"{did} returned {got!r}; {counted(could, 'tokens')} could go, so it should return at least {min(want, could)} and at "
            f"most {could}.",
            *view(self.tree),
        )
        left = set().union(*(_prefixes(t[: self.tree.match(list(t))]) for t in self.known))
        that(pinned <= left, f"{did} removed tokens of a locked sequence.", *view(self.tree))
        that(
            len(self.held) - len(left) == got,
            f"{did} returned {got} and {len(self.held) - len(left)} tokens are gone: did an inner node go, and with it what hung "
            "below it?",
            *view(self.tree),
        )
        self.held = left


def random_tokens(rng: np.random.Generator) -> list[int]:
    return [int(t) for t in rng.integers(0, 2, size=int(rng.integers(1, 9)))]


def _prefixes(tokens: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {tokens[:end] for end in range(1, len(tokens) + 1)}


def _length(tokens: tuple[int, ...], held: set[tuple[int, ...]]) -> int:
    return max((end for end in range(1, len(tokens) + 1) if tokens[:end] in held), default=0)
