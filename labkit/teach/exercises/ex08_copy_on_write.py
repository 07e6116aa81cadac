"""Exercise 08: reference counts and copy-on-write. Checked against the lab's `PagedKVCache`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.kv.base import NoSpace
from labkit.kv.paged import PagedKVCache
from labkit.teach.exercises.base import Exercise, Remember, drawn, pool_picture, that

SIZE = 4


def run(cls: Callable[..., Any]) -> str:
    make = Remember(cls)
    with drawn(lambda: pool_picture("the pool", make.last, "ab", make.args[0])):
        _sharing(make)
        _freeing(make)
        _writing(make)
        _no_copy(make)
        _no_room(make)
        num = _random(make)
    return f"{num:,} random operations on 30 seeds: counts equal the tables that name a block, copies are those of the lab's cache."


def _sharing(cls: Callable[..., Any]) -> None:
    pool = cls(8, SIZE)
    pool.allocate("a", SIZE + 2)
    pool.fork("a", "b")
    view = pool_picture("after fork('a', 'b')", pool, ["a", "b"], 8)
    that(
        list(pool.block_table("b")) == list(pool.block_table("a")),
        f"fork shares every block, the partly filled last one too: a has {list(pool.block_table('a'))}, b has "
        f"{list(pool.block_table('b'))}. Nothing is copied before somebody writes.",
        view,
    )
    counts = [pool.ref_count(block) for block in pool.block_table("a")]
    that(
        counts == [2, 2],
        f"after the fork two tables name each block: the counts are {counts} and should be [2, 2].",
        view,
    )
    that(
        pool.num_free_blocks == 6,
        f"fork takes no block: 6 of 8 stay free, you have {pool.num_free_blocks}.",
        view,
    )


def _freeing(cls: Callable[..., Any]) -> None:
    pool = cls(8, SIZE)
    pool.allocate("a", 2 * SIZE)
    pool.fork("a", "b")
    pool.free("b")
    view = pool_picture("after fork('a', 'b'), free('b')", pool, ["a"], 8)
    that(
        pool.num_free_blocks == 6,
        f"free('b') at count 2 leaves count 1: a still holds the blocks, so 6 of 8 are free and not {pool.num_free_blocks}. "
        "A block is free at count zero, not at count one.",
        view,
    )
    counts = [pool.ref_count(block) for block in pool.block_table("a")]
    that(
        counts == [1, 1],
        f"after free('b') one table names each block: the counts are {counts}, not [1, 1].",
        view,
    )
    pool.free("a")
    that(
        pool.num_free_blocks == 8,
        f"the last reference is gone: all 8 blocks are free, you have {pool.num_free_blocks} (leaked?).",
    )


def _writing(cls: Callable[..., Any]) -> None:
    pool = cls(8, SIZE)
    pool.allocate("a", SIZE + 2)
    pool.fork("a", "b")
    before = list(pool.block_table("a"))
    copies = _copies(pool, "b")
    after = list(pool.block_table("b"))
    view = pool_picture("after fork('a', 'b'), append('b')", pool, ["a", "b"], 8)
    that(
        after[-1] != before[-1],
        "append('b') wrote into a block that a still reads: a shared, partly filled block is copied before it is written "
        "(copy-on-write).",
        view,
    )
    that(
        after[0] == before[0],
        "append('b') copied the full first block as well: only the last block is written, so only that one is copied.",
        view,
    )
    that(
        copies == [(before[-1], after[-1])],
        f"append('b') must return the copy to make, [({before[-1]}, {after[-1]})] (source block, target block); it returned "
        f"{copies}.",
        view,
    )
    that(
        list(pool.block_table("a")) == before,
        "append('b') changed the table of a: the writer gets the new block.",
        view,
    )
    counts = (pool.ref_count(before[-1]), pool.ref_count(after[-1]))
    that(
        counts == (1, 1),
        f"after the copy one table names the old block and one the new: their counts are {counts} and should be (1, 1). The "
        "writer gives up its reference to the old one.",
        view,
    )


def _no_copy(cls: Callable[..., Any]) -> None:
    pool = cls(8, SIZE)
    pool.allocate("a", SIZE + 2)
    copies = _copies(pool, "a")
    that(
        not copies,
        f"nobody shares the block of a (count 1): append writes in place, no copy; it returned {copies}.",
    )
    pool = cls(8, SIZE)
    pool.allocate("a", SIZE)
    pool.fork("a", "b")
    copies = _copies(pool, "b")
    view = pool_picture("after fork at a block boundary, append('b')", pool, ["a", "b"], 8)
    that(
        not copies,
        f"the last block is full, so the append writes into a fresh block: a full block is never written again and needs no "
        f"copy. append('b') returned {copies}.",
        view,
    )
    tables = list(pool.block_table("a")), list(pool.block_table("b"))
    that(
        len(tables[1]) == 2 and tables[1][0] == tables[0][0] and len(tables[0]) == 1,
        f"after the append b has the shared full block and one of its own; the tables are a={tables[0]}, b={tables[1]}.",
        view,
    )


def _no_room(cls: Callable[..., Any]) -> None:
    pool = cls(2, SIZE)
    pool.allocate("a", SIZE + 2)
    pool.fork("a", "b")
    before = list(pool.block_table("b"))
    try:
        copies = pool.append("b")
    except NoSpace:
        counts = [pool.ref_count(block) for block in before]
        that(
            list(pool.block_table("b")) == before and counts == [2, 2],
            f"an append that raised NoSpace must change nothing: b's table is {list(pool.block_table('b'))} (was {before}), "
            f"counts {counts} (were [2, 2]).",
            pool_picture("after the refusal", pool, ["a", "b"], 2),
        )
        return
    that(
        False,
        f"a copy needs a free block and there is none: append('b') must raise NoSpace; it returned {copies}.",
        pool_picture("after it", pool, ["a", "b"], 2),
    )


def _random(cls: Callable[..., Any]) -> int:
    num = 0
    for seed in range(30):
        rng = np.random.default_rng([8, seed])
        num_blocks, size = int(rng.integers(6, 20)), int(rng.choice([1, 2, 4, 16]))
        mine, lab = cls(num_blocks, size), PagedKVCache(num_blocks, 1, block_size=size)
        live: list[str] = []
        for step in range(100):
            num += 1
            dice, name = rng.random(), f"r{step}"
            other = str(rng.choice(live)) if live else ""
            if dice < 0.2 or not live:
                tokens = int(rng.integers(1, 4 * size))
                expected = lab.admit(name, tokens, max_tokens=tokens).admitted
                ok, did = bool(mine.allocate(name, tokens)), f"allocate({name!r}, {tokens})"
                live += [name] if expected else []
                that(ok == expected, f"{did} returned {ok} and should return {expected} (seed {seed}).")
            elif dice < 0.35:
                lab.fork(other, name)
                mine.fork(other, name)
                live.append(name)
                did = f"fork({other!r}, {name!r})"
            elif dice < 0.8:
                did = f"append({other!r})"
                old = list(mine.block_table(other))
                try:
                    moves = lab.append(other).moves
                except NoSpace:
                    moves = None
                got = _try_append(mine, other)
                where = f"(seed {seed}, operation {step}, blocks of {size})"
                that(
                    (got is None) == (moves is None),
                    f"{did} {'raised NoSpace' if got is None else 'succeeded'} and the lab's cache says otherwise {where}.",
                    pool_picture("the pool", mine, live, num_blocks),
                )
                if got is not None and moves is not None:
                    that(
                        len(got) == len(moves) and all(src == old[-1] for src, _ in got),
                        f"{did} copies {got} and the lab's cache copies {len(moves)} block(s), from {old[-1]} {where}.",
                        pool_picture("the pool", mine, live, num_blocks),
                    )
            else:
                live.remove(other)
                lab.free(other)
                mine.free(other)
                did = f"free({other!r})"
            _books(
                mine, lab, live, num_blocks, f"after {did} (seed {seed}, operation {step}, blocks of {size})"
            )
    return num


def _books(mine: Any, lab: PagedKVCache, live: list[str], num_blocks: int, when: str) -> None:
    named = Counter(block for name in live for block in mine.block_table(name))
    view = pool_picture("the pool", mine, live, num_blocks)
    for block in range(num_blocks):
        count = mine.ref_count(block)
        that(
            count == named[block],
            f"block {block} has count {count} and {named[block]} tables name it {when}: a count is the number of tables.",
            view,
        )
    that(
        mine.num_free_blocks == num_blocks - len(named),
        f"num_free_blocks is {mine.num_free_blocks} and {num_blocks - len(named)} blocks are in no table {when}.",
        view,
    )
    that(
        mine.num_free_blocks == lab.num_free_blocks,
        f"{mine.num_free_blocks} blocks are free and the lab's cache has {lab.num_free_blocks} {when}.",
        view,
    )


def _copies(pool: Any, name: str) -> list[tuple[int, int]]:
    copies = pool.append(name)
    that(
        isinstance(copies, list | tuple),
        f"append returned {copies!r}; return the list of (source block, target block) copies to make, [] when there is none.",
    )
    return [tuple(copy) for copy in copies]


def _try_append(pool: Any, name: str) -> list[tuple[int, int]] | None:
    try:
        return _copies(pool, name)
    except NoSpace:
        return None


EXERCISE = Exercise(
    "08",
    "copy_on_write",
    "Reference counts and copy-on-write",
    ("MySharedBlocks",),
    (
        "Add one list to exercise 07: refs[block], the number of tables that name the block.",
        "fork: copy the table (not the blocks) and add one to each of its counts. free: take one off; a block goes back to "
        "the free list when its count becomes 0.",
        "append looks at the last block: is it full? Then a new block, no copy. Is it partly filled and refs > 1? Then copy. "
        "Else write in place.",
        "A copy: take a free block (NoSpace when there is none, before anything is changed), put it in the writer's table in "
        "place of the shared one, take one off the shared one's count, return [(shared, new)].",
    ),
    run,
)
