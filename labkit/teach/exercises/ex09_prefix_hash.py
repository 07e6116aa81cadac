"""Exercise 09: a prefix cache by hash chain, with LRU eviction. Checked against the lab's `HashPrefixCache`."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix_hash import HashPrefixCache
from labkit.teach.exercises.base import Exercise, Mistake, Picture, that
from labkit.teach.exercises.pools import pool_picture
from labkit.teach.exercises.prefix_books import follow
from labkit.teach.exercises.prefix_cases import Make, directed
from labkit.teach.exercises.shorten import Op, any_of, judge
from labkit.teach.exercises.watch import Watched, anything, block_ids, shown, whole

SEEDS = 30


def run(cls: type) -> str:
    make = Watched(
        cls,
        {"admit": tokens_or_none, "free": anything},
        {"block_table": block_ids},
        {"num_free_blocks": whole},
        follow=follow,
    )
    with shown(make, pictures):
        directed(make)
        num, hits = _random(make)
    return f"{num:,} random admissions and frees on {SEEDS} seeds: the same {hits:,} hit tokens and refusals as the lab's hash cache."


def tokens_or_none(answer: Any) -> str:
    good = answer is None or (hasattr(answer, "__index__") and not isinstance(answer, bool))
    return (
        "" if good else "it must be an int, the number of hit tokens, or None when there are too few blocks"
    )


def pictures(cache: Any) -> list[Picture]:
    """The pool before the last call that admitted or freed somebody, and after it."""
    books = getattr(cache, "books", None)
    if books is None:
        return [pool_picture("the pool", cache, [], cache._args[0], sharing=True)]
    return [books.before, books.picture(f"after {books.last_call}")]


def _random(cls: Make) -> tuple[int, int]:
    """Small pools first: what fails there is easy to read."""
    num = hits = 0
    for seed in range(SEEDS):
        rng = np.random.default_rng([9, seed])
        small = seed < SEEDS // 2
        num_blocks = int(rng.integers(3, 7)) if small else int(rng.integers(6, 24))
        size = int(rng.choice([1, 2])) if small else int(rng.choice([1, 2, 4]))
        known = rng.integers(0, 2, size=(3, 5 * size))  # beginnings that many share
        ops: list[Op] = []
        for step in range(120):
            if ops and rng.random() < 0.5:
                ops.append(("free", any_of(int(rng.integers(1000)))))
            else:
                begin = known[int(rng.integers(3))][: int(rng.integers(0, 5 * size + 1))]
                tail = rng.integers(0, 2, size=int(rng.integers(1, size + 1)))
                ops.append(("admit", f"r{step}", [int(token) for token in (*begin, *tail)]))
        both: list[_Both] = []

        def start(num_blocks: int, size: int, both: list[_Both] = both) -> _Both:
            both.append(_Both(cls, num_blocks, size))
            return both[-1]

        judge(start, (num_blocks, size), ops)
        num += len(ops)
        hits += both[-1].hits
    return num, hits


class _Both:
    """The learner's cache and the lab's, side by side. Operations on requests that are not there are left out."""

    def __init__(self, cls: Make, num_blocks: int, size: int):
        self.size, self.hits = size, 0
        self.mine = cls(num_blocks, size)
        self.lab = PagedKVCache(num_blocks, 1, block_size=size, prefix=HashPrefixCache(size))
        self.live: dict[str, list[int]] = {}

    def __call__(self, op: Op) -> None:
        what, name = op[0], op[1]
        if (name in self.live) == (what == "admit"):
            return
        if what == "free":
            did = f"free({name!r})"
            del self.live[name]
            self.lab.free(name)
            self.mine.free(name)
        else:
            prompt = op[2]
            did = f"admit({name!r}, {prompt})"
            answer = self.lab.admit(name, len(prompt), max_tokens=len(prompt), token_ids=prompt)
            expected = answer.num_hit_tokens if answer.admitted else None
            got = self.mine.admit(name, list(prompt))
            that(
                got == expected,
                f"{did} returned {got!r} and should return {expected}{_cause(got, expected)}.",
            )
            if got is not None:
                self.live[name] = list(prompt)
                self.hits += got
                self._tables(did)
        free = self.lab.num_free_blocks + self.lab.num_evictable_blocks
        got = self.mine.num_free_blocks
        that(
            got == free,
            f"after {did} num_free_blocks is {got} and should be {free} (blocks in no table).",
        )

    def _tables(self, did: str) -> None:
        """A block in two tables must stand for the same tokens from the very start."""
        holds: dict[int, tuple[str, tuple[int, ...]]] = {}
        for name, prompt in self.live.items():
            table = list(self.mine.block_table(name))
            need = -(-len(prompt) // self.size)
            that(
                len(table) == need,
                f"after {did} the table of {name} is {table}; {len(prompt)} tokens take {need} blocks.",
            )
            for i, block in enumerate(table):
                past = tuple(prompt[: (i + 1) * self.size])
                other, seen = holds.setdefault(block, (name, past))
                if other == name and table.index(block) < i:
                    raise Mistake(twice(block, name, table, did))
                if seen != past or (other != name and len(past) < (i + 1) * self.size):
                    raise Mistake(
                        f"after {did} block {block} is in the tables of {other} and {name}, whose tokens up to there differ: a "
                        "block that somebody holds was handed out again."
                    )


def twice(block: int, name: str, table: list[int], did: str) -> str:
    return (
        f"after {did} block {block} is twice in the table of {name}, {table}: a hit was evicted for the request itself. Take the "
        "hits out of the idle order before you take new blocks."
    )


def _cause(got: int | None, expected: int | None) -> str:
    if expected is None:
        return ": there are too few blocks (free and idle ones, without its own hits)"
    if got is None:
        return ": the blocks suffice, its hits need none"
    if got > expected:
        return ": a block was found that is not findable (evicted, partly filled, or other tokens before it)"
    return ": a block that should be findable was not found (not given its key, or evicted before its turn)"


EXERCISE = Exercise(
    "09",
    "prefix_hash",
    "A prefix cache: hash chain and LRU order",
    ("MyPrefixCache",),
    (
        "Key of block i: hash((key of block i - 1, tuple of its own tokens)), with None before the first. Two dicts: key -> "
        "block and block -> key; a list of reference counts; an OrderedDict of idle cached blocks (oldest first).",
        "admit: walk the keys of at most (len(token_ids) - 1) // block_size blocks until one is not found: the hits. Blocks "
        "still needed: blocks of the prompt less hits. Can be taken: free + idle cached, less the hits that are idle.",
        "Then take the hits out of the idle order and add one to their counts, and only then take new blocks: from the free "
        "list, then by evicting the oldest idle one (forget its key). Last, give every new FULL block its key, unless the "
        "key is taken.",
        "free: from the last block to the first, take one off the count; at 0 a block with a key goes to the end of the idle "
        "order, a block without one to the free list.",
    ),
    run,
)
