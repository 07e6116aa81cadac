"""Exercise 07: block tables. Checked against the lab's `PagedKVCache`: who is admitted, how many blocks are free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.kv.base import NoSpace
from labkit.kv.paged import PagedKVCache
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


def run(table_class: type) -> str:
    make = Remember(table_class)
    with drawn(lambda: pool_picture("the pool", make.last, "ab", make.args[0])):
        _allocate(make)
        _append(make)
        _slots(make)
        _free(make)
        _refusal(make)
        num = _random(make)
    return f"{num:,} random operations on 30 seeds: the same admissions and free blocks as the lab's paged cache, no block in two tables."


def _allocate(cls: Callable[..., Any]) -> None:
    for num_tokens in (1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 2 * SIZE + 1):
        table = cls(8, SIZE)
        that(
            bool(table.allocate("a", num_tokens)),
            f"allocate('a', {num_tokens}) with 8 free blocks must return True.",
        )
        blocks, expected = list(table.block_table("a")), -(-num_tokens // SIZE)
        why = "round up"
        if num_tokens % SIZE == 0 and len(blocks) == expected + 1:
            why = "they fill it exactly" if expected == 1 else f"they fill {expected} exactly"
            why += ", and `// block_size + 1` takes one too many at a block boundary"
        elif len(blocks) < expected:
            why = "the last, partly filled block is missing: round up, not down"
        that(
            len(blocks) == expected,
            f"{num_tokens} tokens in blocks of {SIZE} need {expected} blocks and you took {len(blocks)}: {why}.",
            pool_picture("yours", table, ["a"], 8),
        )
        that(
            table.num_free_blocks == 8 - expected,
            f"num_free_blocks is {table.num_free_blocks} after {expected} of 8 blocks were taken.",
        )


def _append(cls: Callable[..., Any]) -> None:
    table = cls(8, SIZE)
    table.allocate("a", SIZE - 1)
    for num_tokens in range(SIZE, 2 * SIZE + 2):
        ok = table.append("a")
        that(bool(ok), f"append('a') to {num_tokens} tokens with free blocks must return True, not {ok!r}.")
        got, expected = len(table.block_table("a")), -(-num_tokens // SIZE)
        when = "one token too early: the block before still has a free slot" if got > expected else (
            "one token too late: this token has no slot"
        )  # fmt: skip
        that(
            got == expected,
            f"after the append that makes {num_tokens} tokens (blocks of {SIZE}) the table has {got} blocks and should have "
            f"{expected}: the new block comes {when}.",
            pool_picture("yours", table, ["a"], 8),
        )


def _slots(cls: Callable[..., Any]) -> None:
    table = cls(8, SIZE)
    table.allocate("a", SIZE)
    table.allocate("b", 1)
    for _ in range(SIZE):
        table.append("a")  # its second block cannot be block 1: b stands there in most orders
    blocks = list(table.block_table("a"))
    for position in range(2 * SIZE):
        got, expected = table.slot("a", position), blocks[position // SIZE] * SIZE + position % SIZE
        why = "slot = block * block_size + offset, with block = block_table[position // block_size]"
        if got == position:
            why = "that is the logical position; look the block up in the block table"
        elif got == blocks[position // SIZE] + position % SIZE:
            why = "the block id must be multiplied by block_size"
        that(
            got == expected,
            f"slot('a', {position}) with block table {blocks} is {got} and should be {expected}: {why}.",
            pool_picture("the pool", table, ["a", "b"], 8),
        )


def _refusal(cls: Callable[..., Any]) -> None:
    table = cls(4, SIZE)
    table.allocate("a", 2 * SIZE)
    ok = table.allocate("b", 3 * SIZE)
    that(not ok, "allocate of 3 blocks with 2 free must return False.")
    that(
        table.num_free_blocks == 2,
        f"a refused allocate changed num_free_blocks from 2 to {table.num_free_blocks}: blocks leaked. Count first, take "
        "afterwards.",
        pool_picture("after the refusal", table, ["a"], 4),
    )
    that(
        bool(table.allocate("b", 2 * SIZE)),
        "after the refusal 2 blocks are still free: allocate('b', 8) must work.",
    )
    ok = table.append("a")
    that(not ok, "append at a block boundary with no free block must return False.")
    that(
        len(table.block_table("a")) == 2,
        "an append that was refused must leave the block table as it was.",
    )
    table.free("b")
    that(bool(table.append("a")), "after free('b') there is room again: append('a') must return True.")
    table.append("a")
    blocks = list(table.block_table("a"))
    right = len(blocks) == 3 and [table.slot("a", p) for p in (8, 9)] == [
        blocks[2] * SIZE,
        blocks[2] * SIZE + 1,
    ]
    that(
        right,
        "after a refused append the next successful one places the token at position 8, the first slot of the new block: "
        "the refused append must not count its token.",
        pool_picture("after append, refused append, free('b'), two appends", table, ["a"], 4),
    )


def _free(cls: Callable[..., Any]) -> None:
    table = cls(8, SIZE)
    table.allocate("a", 3 * SIZE)
    table.allocate("b", SIZE)
    table.free("a")
    that(
        table.num_free_blocks == 7,
        f"free('a') must give all its 3 blocks back: 7 of 8 should be free, num_free_blocks is {table.num_free_blocks}.",
        pool_picture("after free('a')", table, ["b"], 8),
    )
    that(
        bool(table.allocate("a", SIZE)),
        "an id that was freed may be used again: allocate('a', 4) must return True.",
    )
    that(len(table.block_table("a")) == 1, "the freed request's old blocks are still in its new table.")


def _random(cls: Callable[..., Any]) -> int:
    num = 0
    for seed in range(30):
        rng = np.random.default_rng([7, seed])
        num_blocks, size = int(rng.integers(4, 20)), int(rng.choice([1, 2, 4, 16]))
        mine, lab = cls(num_blocks, size), PagedKVCache(num_blocks, 1, block_size=size)
        live: list[str] = []
        for step in range(120):
            num += 1
            dice = rng.random()
            if dice < 0.3 or not live:
                name, tokens = f"r{step}", int(rng.integers(1, 5 * size))
                expected = lab.admit(name, tokens, max_tokens=tokens).admitted
                got, did = bool(mine.allocate(name, tokens)), f"allocate({name!r}, {tokens})"
                live += [name] if expected else []
            elif dice < 0.8:
                name = str(rng.choice(live))
                did = f"append({name!r})"
                try:
                    lab.append(name)
                    expected = True
                except NoSpace:
                    expected = False
                got = bool(mine.append(name))
            else:
                name = live.pop(int(rng.integers(len(live))))
                lab.free(name)
                mine.free(name)
                got, expected, did = True, True, f"free({name!r})"
            where = f"(seed {seed}, operation {step}: {num_blocks} blocks of {size})"
            pool = pool_picture("yours", mine, live, num_blocks)
            that(got == expected, f"{did} returned {got} and should return {expected} {where}.", pool)
            that(
                mine.num_free_blocks == lab.num_free_blocks,
                f"after {did} num_free_blocks is {mine.num_free_blocks} and should be {lab.num_free_blocks} {where}.",
                pool,
            )
            _disjoint(mine, live, num_blocks, f"{did} {where}", pool)
    return num


def _disjoint(mine: Any, live: list[str], num_blocks: int, what: str, pool: Picture) -> None:
    owner: dict[int, str] = {}
    for name in live:
        for block in mine.block_table(name):
            that(0 <= block < num_blocks, f"block {block} of {name} does not exist after {what}.", pool)
            if block in owner:
                raise Mistake(
                    f"block {block} is in the tables of {owner[block]} and {name} after {what}.", pool
                )
            owner[block] = name


EXERCISE = Exercise(
    "07",
    "block_table",
    "The block table: allocate, append, free",
    ("MyBlockTable",),
    (
        "State: a list of free block ids, a dict from request to its list of blocks, a dict from request to its number of "
        "tokens.",
        "Blocks for n tokens: -(-n // block_size). Compare with the number of free blocks before you take any.",
        "append needs a new block exactly when num_tokens % block_size == 0 (all blocks so far are full).",
        "slot: block_table[position // block_size] * block_size + position % block_size.",
    ),
    run,
)
