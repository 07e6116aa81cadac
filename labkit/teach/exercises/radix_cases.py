"""Exercise 10's directed cases: what eviction takes, what counts as used, what a lock holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.teach.exercises.base import that
from labkit.teach.exercises.radix_picture import view

A, B = [1, 2, 3, 4, 5], [1, 2, 3, 7, 8]


def evicting(cls: Callable[..., Any]) -> None:
    tree = cls()
    tree.insert(A)
    tree.insert(B)
    tree.match(A)  # used last: A
    that(tree.num_evictable == 7, f"nothing is locked: all 7 tokens are evictable, not {tree.num_evictable}.")
    got = tree.evict(1)
    that(
        tree.match([1, 2, 3]) == 3,
        "evict(1) removed the shared beginning while something hangs below it: only leaves may be evicted.",
        *view(tree),
    )
    that(
        tree.match(A) == 5,
        f"{A} was matched after {B} was inserted, so the end of {B} is the leaf used longest ago; evict took the end of {A}. "
        "match and insert mark the whole path as used.",
        *view(tree),
    )
    that(got == 2, f"evict(1) removes the leaf [7, 8] whole and returns 2; it returned {got}.", *view(tree))
    that(tree.num_tokens == 5, f"after it 5 tokens are left, not {tree.num_tokens}.", *view(tree))
    got = tree.evict(100)
    that(
        got != 0,
        "evict(100) with 5 tokens in the tree, none of them locked, removed nothing: it takes what it can when there is less than "
        "asked for.",
        *view(tree),
    )
    that(
        got == 5 and tree.num_tokens == 0,
        f"evict(100) goes on with parents that became leaves: it should remove all 5 tokens left; it returned {got} and "
        f"{tree.num_tokens} are left.",
        *view(tree),
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
        *view(tree),
    )


def locking(cls: Callable[..., Any]) -> None:
    tree = cls()
    tree.insert(A)
    tree.insert(B)
    tree.lock(B)
    that(
        tree.num_evictable == 2,
        f"{B} is locked: only [4, 5] is evictable (2 tokens), not {tree.num_evictable}. A lock holds every node from the leaf "
        "up to the root.",
        *view(tree),
    )
    got = tree.evict(100)
    that(tree.match(B) == 5, "evict removed tokens of a locked sequence.", *view(tree))
    that(
        got == 2,
        f"evict(100) with {B} locked should remove [4, 5] and return 2; it returned {got}.",
        *view(tree),
    )
    tree.lock(B)
    tree.unlock(B)
    that(
        tree.num_evictable == 0,
        f"{B} was locked twice and unlocked once: a running request still reads it. num_evictable is {tree.num_evictable} and "
        "should be 0: count the locks.",
        *view(tree),
    )
    tree.unlock(B)
    that(
        tree.num_evictable == 5,
        f"after the last unlock 5 tokens are evictable, not {tree.num_evictable}.",
        *view(tree),
    )


def locking_inside(cls: Callable[..., Any]) -> None:
    tree = cls()
    tree.insert([1, 2, 3, 4, 5, 6])
    tree.lock([1, 2, 3])
    that(
        tree.num_evictable == 3,
        f"a lock that ends inside a node holds the first 3 of 6 tokens; 3 are evictable, not {tree.num_evictable}. Split the "
        "node where the lock ends.",
        *view(tree),
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
        *view(tree),
    )
    tree.unlock(x)
    that(
        tree.num_evictable == 5,
        f"after unlock all 5 tokens are evictable, not {tree.num_evictable}: unlock the same path that was locked.",
        *view(tree),
    )


def path_is_used(cls: Callable[..., Any]) -> None:
    """The upper nodes of a path are seen when all below them went; a lock on the other branch decides what goes first."""
    for what in ("insert", "match"):
        tree = cls()
        tree.insert([1, 2])
        if what == "match":
            tree.insert([1, 2, 3])
        tree.insert([9])
        tree.lock([9])
        getattr(tree, what)([1, 2, 3])
        tree.evict(1)  # takes [3]
        tree.unlock([9])
        tree.evict(1)
        that(
            tree.match([9]) == 0,
            f"{what}([1, 2, 3]) came after insert([9]) and went through the node [1, 2], so of the two left [9] was used longest ago; "
            f"evict(1) took [1, 2]. {what} marks all nodes on its path as used, not only the last.",
            *view(tree),
        )
    tree = cls()
    tree.insert([9])
    tree.insert([1, 2, 3, 4])
    tree.lock([1, 2])  # may split the node
    tree.unlock([1, 2])
    tree.lock([9])
    tree.evict(1)  # takes [3, 4]
    tree.unlock([9])
    tree.evict(1)
    that(
        tree.match([9]) == 0,
        "[9] was inserted first, so it was used longest ago; evict(1) took [1, 2], the upper half of [1, 2, 3, 4] that lock([1, 2]) "
        "split: copy last_used to the new node, as the lock count.",
        *view(tree),
    )
