"""Exercise 10: a radix tree over tokens: match, lock, evict. Checked against the lab's radix cache (matching) and against
a plain set of prefixes (locks and eviction)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix_radix import RadixPrefixCache
from labkit.teach.exercises.base import Exercise, that
from labkit.teach.exercises.radix_cases import A, B, evicting, locking, locking_inside, path_is_used
from labkit.teach.exercises.radix_model import random_locks_and_evictions, random_tokens
from labkit.teach.exercises.radix_picture import view
from labkit.teach.exercises.shorten import Op, judge
from labkit.teach.exercises.watch import Watched, anything, because, shown, whole


def run(cls: type) -> str:
    make = Watched(
        cls,
        {"match": whole, "insert": whole, "lock": anything, "unlock": anything, "evict": whole},
        reads={"num_tokens": whole, "num_evictable": whole},
    )
    with shown(make, view):
        _matching(make)
        _splitting(make)
        with because("After a split, do the children of the node know their new parent?"):
            evicting(make)
            path_is_used(make)
            locking(make)
            locking_inside(make)
            against_lab = _random_matching(make)
            num = random_locks_and_evictions(make)
    return f"{against_lab:,} matches as in the lab's radix cache, and {num:,} random operations that lose nothing that is locked."


def _matching(cls: Callable[..., Any]) -> None:
    tree = cls()
    got = tree.match(A)
    that(got == 0, f"an empty tree matches nothing: match must return 0; it returned {got}.")
    got = tree.insert(A)
    that(got == 0, f"insert into an empty tree finds 0 tokens there already; it returned {got}.")
    for tokens, expected in ((A, 5), ([1, 2, 3], 3), ([1, 2, 9], 2), ([9], 0), ([*A, 6], 5)):
        got = tree.match(tokens)
        why = ""
        if expected < len(A) and tokens[0] == 1:
            why = f": the path leaves the node after {expected} tokens; count the equal ones, neither the whole node nor none"
        that(
            got == expected,
            f"with {A} in the tree, match({tokens}) is {got} and should be {expected}{why}.",
            *view(tree),
        )


def _splitting(cls: Callable[..., Any]) -> None:
    tree = cls()
    tree.insert(A)
    got = tree.insert(B)
    that(got == 3, f"insert({B}) finds its first 3 tokens in the tree; it returned {got}.")
    that(
        tree.match(A) == 5,
        f"after insert({B}) the tree matches only {tree.match(A)} tokens of {A}: when a node is split its lower half (and its "
        "children) must hang below the upper half.",
        *view(tree),
    )
    that(
        tree.match(B) == 5,
        f"after insert({B}) the tree matches only {tree.match(B)} of its 5 tokens.",
        *view(tree),
    )
    that(
        tree.num_tokens == 7,
        f"{A} and {B} share 3 tokens: the tree holds 7, not {tree.num_tokens}"
        + (": the shared beginning is stored twice." if tree.num_tokens == 10 else "."),
        *view(tree),
    )
    deep = cls()
    for tokens in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9], [1, 2, 8]):
        deep.insert(tokens)
    got = (deep.match([1, 2, 3, 4, 5, 6]), deep.match([1, 2, 3, 4, 9]))
    that(
        got == (6, 5),
        f"after two splits on one path the older sequences match {got} tokens and should match (6, 5): the lower half of a "
        "split keeps the children.",
        *view(deep),
    )


def _random_matching(cls: Callable[..., Any]) -> int:
    num = 0
    for seed in range(20):
        rng = np.random.default_rng([10, seed])
        ops: list[Op] = []
        for _ in range(40):
            tokens = random_tokens(rng)
            ops.append(("match", tokens))
            if rng.random() < 0.6:
                ops.append(("insert", tokens))
        judge(lambda: _Both(cls), (), ops)
        num += 40
    return num


class _Both:
    """The learner's tree and the lab's radix cache, side by side."""

    def __init__(self, cls: Callable[..., Any]):
        self.tree, self.num = cls(), 0
        self.lab = PagedKVCache(4096, 1, block_size=1, prefix=RadixPrefixCache(1))

    def __call__(self, op: Op) -> None:
        what, tokens = op
        expected = self.lab.lookup([*tokens, -1])
        if what == "match":
            got = self.tree.match(list(tokens))
            that(
                got == expected,
                f"match({tokens}) returned {got} and should return {expected}.",
                *view(self.tree),
            )
            return
        self.num += 1
        name = f"r{self.num}"
        self.lab.admit(name, len(tokens), max_tokens=len(tokens), token_ids=tokens)
        self.lab.free(name)
        got = self.tree.insert(list(tokens))
        that(
            got == expected,
            f"insert({tokens}) returned {got} and should return {expected}, the tokens that were there already.",
            *view(self.tree),
        )


EXERCISE = Exercise(
    "10",
    "radix_tree",
    "A radix tree: match, lock and evict",
    ("MyRadixTree",),
    (
        "A node has tokens (a list), children (dict: first token -> node), parent, locks (int), last_used (int). The root has "
        "no tokens. Keep a clock that goes up with every match and insert.",
        "Write one walk that follows the tokens, splits a node where the tokens leave it, and returns (last node, number of "
        "tokens matched). match, insert, lock and unlock all use it.",
        "Split at k: a new upper node takes tokens[:k], the place in the parent, the same locks and last_used; the old node "
        "keeps tokens[k:] and its children and hangs below the upper one.",
        "lock: walk, then add 1 to every node from there up to the root. evict: while too few are gone, take among the leaves "
        "with locks == 0 the one with the smallest last_used, remove it from its parent.",
    ),
    run,
)
