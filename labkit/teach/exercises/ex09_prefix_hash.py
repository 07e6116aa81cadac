"""Exercise 09: a prefix cache by hash chain, with LRU eviction. Checked against the lab's `HashPrefixCache`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix_hash import HashPrefixCache
from labkit.teach.exercises.base import (
    Exercise,
    Mistake,
    Picture,
    Remember,
    drawn,
    pool_picture,
    that,
)

SIZE = 4
NAMES = ("a", "b", "c", "x", "y", "long", "filler")


def run(cls: Callable[..., Any]) -> str:
    make = Remember(cls)
    with drawn(lambda: pool_picture("the pool", make.last, NAMES, make.args[0])):
        _finding(make)
        _parents(make)
        _in_use(make)
        _eviction_order(make)
        num, hits = _random(make)
    return f"{num:,} random admissions and frees on 30 seeds: the same {hits:,} hit tokens and refusals as the lab's hash cache."


def _finding(cls: Callable[..., Any]) -> None:
    cache = cls(16, SIZE)
    prompt = list(range(1, 10))  # two full blocks and one token
    that(cache.admit("a", prompt) == 0, "the first request finds nothing: admit must return 0 hit tokens.")
    got = cache.admit("b", prompt)
    why = ""
    if got == 9:
        why = " Only full blocks are findable, and at least one token must be left to compute."
    elif got == 0:
        why = " A full block is findable as soon as its request is admitted, while that request still runs."
    that(
        got == 8,
        f"an equal prompt of 9 tokens finds its two full blocks, 8 tokens; admit returned {got}.{why}",
        _view(cache, "ab"),
    )
    shared = [list(cache.block_table(name))[:2] for name in "ab"]
    that(
        shared[0] == shared[1],
        f"a hit shares the block: the tables begin with {shared[0]} and {shared[1]}.",
        _view(cache, "ab"),
    )
    cache = cls(16, SIZE)
    cache.admit("a", prompt[:8])
    got = cache.admit("b", prompt[:8])
    that(
        got == 4,
        f"an equal prompt of exactly two blocks hits one block (4 tokens), not {got}: the last token must always be computed, "
        "so look up at most (len - 1) // block_size blocks.",
    )
    cache = cls(16, SIZE)
    cache.admit("a", [1, 2, 3, 4, 5, 6])
    got = cache.admit("b", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    that(
        got == 4,
        f"the second block of a is only partly filled (tokens 5, 6) and must not be findable: b should hit 4 tokens, not {got}.",
    )


def _parents(cls: Callable[..., Any]) -> None:
    cache = cls(16, SIZE)
    cache.admit("a", [1, 1, 1, 1, 2, 2, 2, 2, 9])
    got = cache.admit("b", [2, 2, 2, 2, 1, 1, 1, 1, 9])
    that(
        got == 0,
        f"b begins with tokens that a has in its SECOND block; behind another past they have other keys and values. admit "
        f"returned {got} hit tokens: the key of a block must contain the key of its parent, not only its own tokens.",
        _view(cache, "ab"),
    )
    got = cache.admit("c", [1, 1, 1, 1, 3, 3, 3, 3, 2, 2, 2, 2, 9])
    that(
        got == 4,
        f"c shares only its first block with a: 4 hit tokens, not {got}. Stop at the first block that is not found.",
    )


def _in_use(cls: Callable[..., Any]) -> None:
    cache = cls(4, SIZE)
    cache.admit("a", [1, 2, 3, 4, 5])
    that(
        cache.num_free_blocks == 2,
        f"5 tokens take 2 of 4 blocks; num_free_blocks is {cache.num_free_blocks}.",
    )
    cache.admit("b", [1, 2, 3, 4, 6])
    that(
        cache.num_free_blocks == 1,
        f"b shares one block and takes one: 1 of 4 is free, not {cache.num_free_blocks}.",
    )
    cache.free("a")
    that(
        cache.num_free_blocks == 2,
        f"free('a') gives back its own last block only; the first is still held by b: 2 of 4 are free, not "
        f"{cache.num_free_blocks} (a block is idle at count zero).",
    )
    got = cache.admit("c", [7] * 9)
    that(
        got is None,
        f"c needs 3 blocks and 2 are free: admit must return None, not {got!r} (a held block cannot be evicted).",
    )
    cache.free("b")
    that(
        cache.num_free_blocks == 4,
        f"an idle cached block counts as free, since it can be evicted: 4 of 4, not {cache.num_free_blocks}.",
    )
    cache.admit("a", [1, 2, 3, 4, 5])
    got = cache.admit("c", [7] * 9)
    that(
        got is None,
        f"a was admitted onto a cached block: it is held again and may not be evicted. c needs 3 blocks and 2 are free; "
        f"admit returned {got!r}. Take a hit block out of the eviction order.",
        _view(cache, "ac" if got is not None else "a", 4),
    )
    cache = cls(3, SIZE)
    cache.admit("a", [1] * 4 + [2] * 4 + [3])
    cache.free("a")
    got = cache.admit("b", [1] * 4 + [2] * 4 + [3] * 5)
    that(
        got is None,
        f"b hits two idle blocks and needs two more; of 3 blocks only one is left, because its own hits cannot be evicted for "
        f"it. admit returned {got!r} and should return None.",
    )


def _eviction_order(cls: Callable[..., Any]) -> None:
    x, y, filler = [1] * 5, [2] * 5, [3] * 12
    cache = cls(4, SIZE)
    for name, prompt in (("x", x), ("y", y)):
        cache.admit(name, prompt)
        cache.free(name)
    cache.admit("filler", filler)  # 2 free blocks and one of the two cached
    cache.free("filler")
    got = cache.admit("y", y)
    that(
        got == 4,
        f"x was released before y, so x is evicted first and y still hits 4 tokens; it hits {got}: the block released LONGEST "
        "ago goes first (LRU).",
    )
    cache = cls(4, SIZE)
    for name, prompt in (("x", x), ("y", y), ("x", x)):
        cache.admit(name, prompt)
        cache.free(name)
    cache.admit("filler", filler)
    cache.free("filler")
    got = cache.admit("x", x)
    that(
        got == 4,
        f"x was cached first but used last, so y goes and x still hits 4 tokens; it hits {got}: order by last use, not by "
        "when the block was cached (that would be FIFO).",
    )
    cache = cls(5, SIZE)
    long = [1] * 4 + [2] * 4 + [3] * 4 + [4]
    cache.admit("long", long)
    cache.free("long")
    cache.admit("filler", [9] * 12)  # 2 free blocks and one of the three cached
    cache.free("filler")
    got = cache.admit("long", long)
    that(
        got == 8,
        f"one block of a chain of three was evicted, and it should be its END: 8 tokens are found, not {got}. Release a table "
        "from its last block to its first, so that the beginning, which more requests share, counts as used last.",
    )


def _random(cls: Callable[..., Any]) -> tuple[int, int]:
    num = hits = 0
    for seed in range(30):
        rng = np.random.default_rng([9, seed])
        num_blocks, size = int(rng.integers(6, 24)), int(rng.choice([1, 2, 4]))
        mine = cls(num_blocks, size)
        lab = PagedKVCache(num_blocks, 1, block_size=size, prefix=HashPrefixCache(size))
        prompts: dict[str, list[int]] = {}
        for step in range(100):
            num += 1
            where = f"(seed {seed}, operation {step}: {num_blocks} blocks of {size})"
            if prompts and rng.random() < 0.5:
                name = str(rng.choice(list(prompts)))
                del prompts[name]
                mine.free(name)
                lab.free(name)
                did = f"free({name!r})"
            else:
                name, prompt = (
                    f"r{step}",
                    [int(t) for t in rng.integers(0, 2, size=int(rng.integers(1, 5 * size)))],
                )
                answer = lab.admit(name, len(prompt), max_tokens=len(prompt), token_ids=prompt)
                expected = answer.num_hit_tokens if answer.admitted else None
                got, did = mine.admit(name, list(prompt)), f"admit({name!r}, {prompt})"
                that(
                    got == expected,
                    f"{did} returned {got} and the lab's cache {expected} {where}.",
                    _view(mine, prompts, num_blocks),
                )
                if got is not None:
                    prompts[name] = prompt
                    hits += got
                    _content(mine, prompts, size, f"{did} {where}", num_blocks)
            free = lab.num_free_blocks + lab.num_evictable_blocks
            that(
                mine.num_free_blocks == free,
                f"after {did} num_free_blocks is {mine.num_free_blocks} and should be {free} {where}.",
                _view(mine, prompts, num_blocks),
            )
    return num, hits


def _content(mine: Any, prompts: dict[str, list[int]], size: int, what: str, num_blocks: int) -> None:
    """A block in two tables must stand for the same tokens from the very start."""
    holds: dict[int, tuple[str, tuple[int, ...]]] = {}
    for name, prompt in prompts.items():
        table = list(mine.block_table(name))
        need = -(-len(prompt) // size)
        that(
            len(table) == need,
            f"the table of {name} has {len(table)} blocks for {len(prompt)} tokens after {what}.",
        )
        for i, block in enumerate(table):
            past = tuple(prompt[: (i + 1) * size])
            other, seen = holds.setdefault(block, (name, past))
            if seen != past or (other != name and len(past) < (i + 1) * size):
                raise Mistake(
                    f"block {block} is in the tables of {other} and {name}, whose tokens up to there differ, after {what}.",
                    _view(mine, prompts, num_blocks),
                )


def _view(cache: Any, live: Iterable[str], num_blocks: int = 16) -> Picture:
    return pool_picture("who holds which block", cache, list(live), num_blocks)


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
