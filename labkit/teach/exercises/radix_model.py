"""Exercise 10's second judge: the set of all prefixes that should be in the tree, through random locks and evictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.teach.exercises.base import Picture, that


def random_locks_and_evictions(cls: Callable[..., Any]) -> int:
    """The model is the set of all prefixes in the tree. What an eviction took is learned by matching again."""
    num = 0
    for seed in range(20):
        rng = np.random.default_rng([11, seed])
        tree, held, locked, known = (
            cls(),
            set[tuple[int, ...]](),
            list[tuple[int, ...]](),
            list[tuple[int, ...]](),
        )
        for step in range(60):
            num += 1
            dice, tokens = rng.random(), tuple(random_tokens(rng))
            where = f"(seed {seed}, operation {step})"
            if dice < 0.45 or not known:
                tree.insert(list(tokens))
                known.append(tokens)
                held |= _prefixes(tokens)
                did = f"insert({list(tokens)})"
            elif dice < 0.6:
                length = _length(known[int(rng.integers(len(known)))], held)
                tokens = known[int(rng.integers(len(known)))]
                tokens = tokens[: min(length, _length(tokens, held))]
                if not tokens:
                    continue
                tree.lock(list(tokens))
                locked.append(tokens)
                did = f"lock({list(tokens)})"
            elif dice < 0.75 and locked:
                tokens = locked.pop(int(rng.integers(len(locked))))
                tree.unlock(list(tokens))
                did = f"unlock({list(tokens)})"
            else:
                pinned = set().union(*(_prefixes(t) for t in locked))
                want, could = int(rng.integers(1, 8)), len(held) - len(pinned)
                got = tree.evict(want)
                did = f"evict({want})"
                that(
                    min(want, could) <= got <= could,
                    f"{did} returned {got}; {could} tokens were evictable {where}.",
                    view(tree),
                )
                left = set().union(*(_prefixes(t[: tree.match(list(t))]) for t in known))
                that(pinned <= left, f"{did} removed tokens of a locked sequence {where}.", view(tree))
                that(
                    len(held) - len(left) == got,
                    f"{did} said {got} and {len(held) - len(left)} tokens are gone {where}: did an inner node go, and with it "
                    "what hung below it?",
                    view(tree),
                )
                held = left
            pinned = set().union(*(_prefixes(t) for t in locked))
            counts, right = (tree.num_tokens, tree.num_evictable), (len(held), len(held) - len(pinned))
            that(
                counts == right,
                f"after {did} (num_tokens, num_evictable) is {counts} and should be {right} {where}.",
                view(tree),
            )
    return num


def random_tokens(rng: np.random.Generator) -> list[int]:
    return [int(t) for t in rng.integers(0, 2, size=int(rng.integers(1, 9)))]


def _prefixes(tokens: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {tokens[:end] for end in range(1, len(tokens) + 1)}


def _length(tokens: tuple[int, ...], held: set[tuple[int, ...]]) -> int:
    return max((end for end in range(1, len(tokens) + 1) if tokens[:end] in held), default=0)


def view(tree: Any) -> Picture:
    """How much is held and how much of it may go."""
    try:
        total, evictable = int(tree.num_tokens), int(tree.num_evictable)
    except Exception:
        total = evictable = 0
    bars = {"your tree": {"locked": float(total - evictable), "evictable": float(evictable)}}
    return Picture("bars", "tokens in the tree at that moment", bars, {"ylabel": "tokens", "stacked": True})
