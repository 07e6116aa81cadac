"""Exercise 10: a radix tree over tokens: match, lock, evict. Checked against the lab's radix cache (matching) and against
a plain set of prefixes (locks and eviction)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix_radix import RadixPrefixCache
from labkit.teach.exercises.base import Exercise, that
from labkit.teach.exercises.radix_model import random_locks_and_evictions, random_tokens, view
from labkit.teach.exercises.shorten import Op, judge
from labkit.teach.exercises.watch import Watched, anything, shown, whole

A, B = [1, 2, 3, 4, 5], [1, 2, 3, 7, 8]


def run(cls: type) -> str:
    make = Watched(
        cls,
        {"match": whole, "insert": whole, "lock": anything, "unlock": anything, "evict": whole},
        reads={"num_tokens": whole, "num_evictable": whole},
    )
    with shown(make, lambda tree: [view(tree)]):
        _matching(make)
        _splitting(make)
        _evicting(make)
        _locking(make)
        _locking_inside(make)
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
            view(tree),
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
        view(tree),
    )
    that(
        tree.match(B) == 5,
        f"after insert({B}) the tree matches only {tree.match(B)} of its 5 tokens.",
        view(tree),
    )
    that(
        tree.num_tokens == 7,
        f"{A} and {B} share 3 tokens: the tree holds 7, not {tree.num_tokens}"
        + (": the shared beginning is stored twice." if tree.num_tokens == 10 else "."),
        view(tree),
    )
    deep = cls()
    for tokens in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9], [1, 2, 8]):
        deep.insert(tokens)
    got = (deep.match([1, 2, 3, 4, 5, 6]), deep.match([1, 2, 3, 4, 9]))
    that(
        got == (6, 5),
        f"after two splits on one path the older sequences match {got} tokens and should match (6, 5): the lower half of a "
        "split keeps the children.",
        view(deep),
    )


def _evicting(cls: Callable[..., Any]) -> None:
    tree = cls()
    tree.insert(A)
    tree.insert(B)
    tree.match(A)  # used last: A
    that(tree.num_evictable == 7, f"nothing is locked: all 7 tokens are evictable, not {tree.num_evictable}.")
    got = tree.evict(1)
    that(
        tree.match([1, 2, 3]) == 3,
        "evict(1) removed the shared beginning while something hangs below it: only leaves may be evicted.",
        view(tree),
    )
    that(
        tree.match(A) == 5,
        f"{A} was matched after {B} was inserted, so the end of {B} is the leaf used longest ago; evict took the end of {A}. "
        "match and insert mark the whole path as used.",
        view(tree),
    )
    that(got == 2, f"evict(1) removes the leaf [7, 8] whole and returns 2; it returned {got}.", view(tree))
    that(tree.num_tokens == 5, f"after it 5 tokens are left, not {tree.num_tokens}.", view(tree))
    got = tree.evict(100)
    that(
        got == 5 and tree.num_tokens == 0,
        f"evict(100) goes on with parents that became leaves: it should remove all 5 tokens left; it returned {got} and "
        f"{tree.num_tokens} are left.",
        view(tree),
    )
    that(tree.match(A) == 0, "an evicted sequence is still matched.")
    tree = cls()
    for tokens in ([1, 2], [3, 4], [5, 6], [1, 2]):
        tree.insert(tokens)
    got = tree.evict(2)
    left = tree.match([1, 2]), tree.match([3, 4]), tree.match([5, 6])
    that(
        got <= 2,
        f"evict(2) with three leaves of 2 tokens removed {got}: stop as soon as num_tokens are gone.",
    )
    that(
        left == (2, 0, 2),
        f"inserted in this order: [1, 2], [3, 4], [5, 6], and [1, 2] again; so [3, 4] was used longest ago and goes first. After "
        f"evict(2) the three match {left} tokens and should match (2, 0, 2): insert counts as use, of old and new nodes.",
        view(tree),
    )


def _locking(cls: Callable[..., Any]) -> None:
    tree = cls()
    tree.insert(A)
    tree.insert(B)
    tree.lock(B)
    that(
        tree.num_evictable == 2,
        f"{B} is locked: only [4, 5] is evictable (2 tokens), not {tree.num_evictable}. A lock holds every node from the leaf "
        "up to the root.",
        view(tree),
    )
    got = tree.evict(100)
    that(tree.match(B) == 5, "evict removed tokens of a locked sequence.", view(tree))
    that(
        got == 2,
        f"evict(100) with {B} locked should remove [4, 5] and return 2; it returned {got}.",
        view(tree),
    )
    tree.lock(B)
    tree.unlock(B)
    that(
        tree.num_evictable == 0,
        f"{B} was locked twice and unlocked once: a running request still reads it. num_evictable is {tree.num_evictable} and "
        "should be 0: count the locks.",
        view(tree),
    )
    tree.unlock(B)
    that(
        tree.num_evictable == 5,
        f"after the last unlock 5 tokens are evictable, not {tree.num_evictable}.",
        view(tree),
    )


def _locking_inside(cls: Callable[..., Any]) -> None:
    tree = cls()
    tree.insert([1, 2, 3, 4, 5, 6])
    tree.lock([1, 2, 3])
    that(
        tree.num_evictable == 3,
        f"a lock that ends inside a node holds the first 3 of 6 tokens; 3 are evictable, not {tree.num_evictable}. Split the "
        "node where the lock ends.",
        view(tree),
    )
    tree = cls()
    x = [1, 2, 3, 4]
    tree.insert(x)
    tree.lock(x)
    tree.insert([1, 2, 8])
    that(
        tree.num_evictable == 1,
        f"a locked node was split by insert([1, 2, 8]): both halves stay locked, so only [8] is evictable, not "
        f"{tree.num_evictable} tokens. Copy the lock count to the new node.",
        view(tree),
    )
    tree.unlock(x)
    that(
        tree.num_evictable == 5,
        f"after unlock all 5 tokens are evictable, not {tree.num_evictable}: unlock the same path that was locked.",
        view(tree),
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
                view(self.tree),
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
            view(self.tree),
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
