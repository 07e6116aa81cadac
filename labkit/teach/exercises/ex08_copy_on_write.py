"""Exercise 08: reference counts and copy-on-write. Checked against the lab's `PagedKVCache`."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.kv.base import NoSpace
from labkit.teach.exercises.base import Exercise, Mistake, Picture, that
from labkit.teach.exercises.pool_judges import Make, SharingJudge, copies_of
from labkit.teach.exercises.pools import pool_picture
from labkit.teach.exercises.shorten import Op, any_of, judge
from labkit.teach.exercises.watch import Watched, anything, block_ids, shown, whole, yes_or_no

SIZE = 4


SEEDS = 30


def run(cls: type) -> str:
    make = Watched(
        cls,
        {"allocate": yes_or_no, "fork": anything, "append": copies_to_make, "free": anything},
        {"block_table": block_ids, "ref_count": whole},
        {"num_free_blocks": whole},
        passes=(NoSpace,),
    )
    with shown(make, lambda pool: [yours(pool)]):
        _sharing(make)
        _freeing(make)
        _writing(make)
        _no_copy(make)
        _no_room(make)
        num = _random(make)
    return (
        f"{num:,} random operations on {SEEDS} seeds: counts equal the tables that name a block, copies are those of the lab's "
        "cache."
    )


def yours(pool: Any) -> Picture:
    return pool_picture("yours", pool, getattr(pool, "names", "ab"), pool._args[0], sharing=True)


def copies_to_make(answer: Any) -> str:
    try:
        good = isinstance(answer, list | tuple) and all(len(pair) == 2 for pair in answer)
    except TypeError:
        good = False
    return (
        ""
        if good
        else "it must be the list of (source block, target block) copies to make, [] when there is none"
    )


def _sharing(cls: Make) -> None:
    pool = cls(8, SIZE)
    pool.allocate("a", SIZE + 2)
    pool.fork("a", "b")
    view = pool_picture("after fork('a', 'b')", pool, ["a", "b"], 8, sharing=True)
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


def _freeing(cls: Make) -> None:
    pool = cls(8, SIZE)
    pool.allocate("a", 2 * SIZE)
    pool.fork("a", "b")
    pool.free("b")
    view = pool_picture("after fork('a', 'b'), free('b')", pool, ["a"], 8, sharing=True)
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


def _writing(cls: Make) -> None:
    pool = cls(8, SIZE)
    pool.allocate("a", SIZE + 2)
    pool.fork("a", "b")
    before = list(pool.block_table("a"))
    copies = _append(pool, "b")
    after = list(pool.block_table("b"))
    view = pool_picture("after fork('a', 'b'), append('b')", pool, ["a", "b"], 8, sharing=True)
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


def _append(pool: Any, name: str) -> list[tuple[int, int]]:
    """`append` where there is room."""
    try:
        return copies_of(pool, name)
    except NoSpace as error:
        raise Mistake(
            f"append({name!r}) raised NoSpace ({error}) and {pool.num_free_blocks} of 8 blocks are free."
        ) from None


def _no_copy(cls: Make) -> None:
    pool = cls(8, SIZE)
    pool.allocate("a", SIZE + 2)
    copies = _append(pool, "a")
    that(
        not copies,
        f"nobody shares the block of a (count 1): append writes in place, no copy; it returned {copies}.",
    )
    pool = cls(8, SIZE)
    pool.allocate("a", SIZE)
    pool.fork("a", "b")
    copies = _append(pool, "b")
    view = pool_picture("after fork at a block boundary, append('b')", pool, ["a", "b"], 8, sharing=True)
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


def _no_room(cls: Make) -> None:
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
            pool_picture("after the refusal", pool, ["a", "b"], 2, sharing=True),
        )
        _refused_token(pool)
        return
    that(
        False,
        f"a copy needs a free block and there is none: append('b') must raise NoSpace; it returned {copies}.",
        pool_picture("after it", pool, ["a", "b"], 2, sharing=True),
    )


def _refused_token(pool: Any) -> None:
    """b has 6 tokens in 2 blocks, and its append was refused; a leaves, and b fills its last block."""
    pool.free("a")
    for num_tokens in (SIZE + 3, 2 * SIZE):
        try:
            copies = copies_of(pool, "b")
        except NoSpace:
            copies = None
        that(
            copies == [],
            f"an append was refused, then a left, and b appends its token number {num_tokens} to its second block of {SIZE}: it has "
            f"room and is not shared. append {'raised NoSpace' if copies is None else f'returned {copies}'}: did the refused append "
            "count its token?",
        )


def _random(cls: Make) -> int:
    """Small pools first: what fails there is easy to read."""
    num = 0
    for seed in range(SEEDS):
        rng = np.random.default_rng([8, seed])
        small = seed < SEEDS // 2
        num_blocks = int(rng.integers(2, 6)) if small else int(rng.integers(6, 20))
        size = int(rng.choice([1, 2, 4])) if small else int(rng.choice([1, 2, 4, 16]))
        ops: list[Op] = []
        for step in range(90):
            dice, other = rng.random(), any_of(int(rng.integers(1000)))
            if dice < 0.25 or not ops:
                ops.append(("allocate", f"r{step}", int(rng.integers(1, (2 if small else 4) * size + 1))))
            elif dice < 0.4:
                ops.append(("fork", other, f"r{step}"))
            else:
                ops.append(("append" if dice < 0.8 else "free", other))
        judge(lambda num_blocks, size: SharingJudge(cls, num_blocks, size), (num_blocks, size), ops)
        num += len(ops)
    return num


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
