"""Exercise 07: block tables. Checked against the lab's `PagedKVCache`: who is admitted, how many blocks are free."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.teach.exercises.base import Exercise, Mistake, Picture, that
from labkit.teach.exercises.pool_judges import Make, TableJudge
from labkit.teach.exercises.pools import EXPECTED, YOURS, pool_picture
from labkit.teach.exercises.shorten import Op, any_of, judge
from labkit.teach.exercises.strip import Mark, Piece, counted
from labkit.teach.exercises.watch import Watched, anything, because, block_ids, shown, whole, yes_or_no

SIZE = 4
SEEDS = 30


def run(table_class: type) -> str:
    make = Watched(
        table_class,
        {"allocate": yes_or_no, "append": yes_or_no, "free": anything},
        {"block_table": block_ids, "slot": whole},
        {"num_free_blocks": whole},
    )
    with shown(
        make, lambda table: [pool_picture("yours", table, getattr(table, "names", "ab"), table._args[0])]
    ):
        _allocate(make)
        _append(make)
        _slots(make)
        _free(make)
        _refusal(make)
        _refused_token(make)
        num = _random(make)
    return (
        f"{num:,} random operations on {SEEDS} seeds: the same admissions and free blocks as the lab's paged cache, no block in "
        "two tables."
    )


def _yes(got: Any, call: str, why: str) -> None:
    that(bool(got), f"{call} returned {got!r} and must return True: {why}.")


def _allocate(cls: Make) -> None:
    for num_tokens in (1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 2 * SIZE + 1):
        table = cls(8, SIZE)
        _yes(table.allocate("a", num_tokens), f"allocate('a', {num_tokens})", "8 blocks are free")
        blocks, expected = list(table.block_table("a")), -(-num_tokens // SIZE)
        why = "round up"
        if num_tokens % SIZE == 0 and len(blocks) == expected + 1:
            why = "they fill it exactly" if expected == 1 else f"they fill {expected} exactly"
            why += ", and `// block_size + 1` takes one too many at a block boundary"
        elif len(blocks) < expected:
            why = "the last, partly filled block is missing: round up, not down"
        need = "needs" if num_tokens == 1 else "need"
        that(
            len(blocks) == expected,
            f"{counted(num_tokens, 'tokens')} in blocks of {SIZE} {need} {counted(expected, 'blocks')} and you took "
            f"{len(blocks)}: {why}.",
        )
        that(
            table.num_free_blocks == 8 - expected,
            f"after taking {expected} of 8 blocks num_free_blocks is {table.num_free_blocks} and should be {8 - expected}.",
        )


def _append(cls: Make) -> None:
    table = cls(8, SIZE)
    table.allocate("a", SIZE - 1)
    for num_tokens in range(SIZE, 2 * SIZE + 2):
        before = list(table.block_table("a"))
        _yes(table.append("a"), "append('a')", f"{counted(table.num_free_blocks, 'blocks')} are free")
        after, expected = list(table.block_table("a")), -(-num_tokens // SIZE)
        when = "one token too early: the block before still has a free slot"
        if len(after) < expected:
            when = "one token too late: this token has no slot"
        that(
            len(after) == expected,
            f"after the append that makes {num_tokens} tokens (blocks of {SIZE}) the table has {counted(len(after), 'blocks')} "
            f"and should have {expected}: the new block comes {when}.",
        )
        that(
            after[: len(before)] == before,
            f"the block table was {before} before the append and is {after} after it: block_table must list the blocks in the "
            "order of their positions, so a new one stands last and the others stay where they are.",
        )


def _slots(cls: Make) -> None:
    table = cls(8, SIZE)
    table.allocate("a", SIZE)
    table.allocate("b", 1)
    for _ in range(SIZE):
        table.append("a")  # its second block cannot be block 1: b stands there in most orders
    _slots_of(table, 2 * SIZE)
    table = cls(8, SIZE)  # and three blocks taken at once
    table.allocate("a", 3 * SIZE)
    _slots_of(table, 3 * SIZE)


def _slots_of(table: Any, num_tokens: int) -> None:
    blocks = list(table.block_table("a"))
    said = [table.slot("a", position) for position in range(num_tokens)]
    right = [blocks[p // SIZE] * SIZE + p % SIZE for p in range(num_tokens)]
    if said == right:
        return
    order = [slot // SIZE for slot in said[::SIZE]]
    if sorted(order) == sorted(blocks) and said == [
        order[p // SIZE] * SIZE + p % SIZE for p in range(num_tokens)
    ]:
        raise Mistake(
            f"block_table('a') says {blocks}, and by slot() the positions lie in the blocks {order}: the same blocks in another "
            "order. One of the two is wrong; block_table must be in the order of the positions.",
            _slot_picture(table, blocks, 0, said[0], right[0]),
        )
    position = next(p for p in range(num_tokens) if said[p] != right[p])
    got, expected = said[position], right[position]
    why = (
        "slot = block * block_size + offset, with block = block_table[position // block_size] (or block_table is not in the "
        "order of the positions)"
    )
    if got == position:
        why = "that is the logical position; look the block up in the block table"
    elif got == blocks[position // SIZE] + position % SIZE:
        why = "the block id must be multiplied by block_size"
    raise Mistake(
        f"slot('a', {position}) with block table {blocks} returned {got} and should return {expected}: {why}.",
        _slot_picture(table, blocks, position, got, expected),
    )


def _slot_picture(table: Any, blocks: list[int], position: int, got: int, expected: int) -> Picture:
    """All slots of the pool; those of a carry their positions."""
    positions = {block * SIZE + i: n * SIZE + i for n, block in enumerate(blocks) for i in range(SIZE)}
    pieces = [
        Piece(
            slot,
            1,
            "of a, with its position" if slot in positions else "not of a",
            str(positions.get(slot, "")),
        )
        for slot in range(8 * SIZE)
    ]
    marks = [Mark(expected, 1, f"expected: {expected}", EXPECTED), Mark(got, 1, f"yours: {got}", YOURS)]
    title = f"token slots, a line behind each block of {SIZE}; block_table('a') is {blocks}; slot('a', {position})"
    return Picture("strip", title, pieces, {"unit": "slots", "marks": marks, "group": SIZE})


def _refusal(cls: Make) -> None:
    table = cls(4, SIZE)
    table.allocate("a", 2 * SIZE)
    with because("3 blocks are needed and 2 are free: count first, and return False before taking any."):
        got = table.allocate("b", 3 * SIZE)
    that(
        not got,
        f"allocate('b', 12) needs 3 blocks and 2 are free: it must return False and returned {got!r}.",
    )
    that(
        table.num_free_blocks == 2,
        f"a refused allocate changed num_free_blocks from 2 to {table.num_free_blocks}: blocks leaked. Count first, take "
        "afterwards.",
    )
    _yes(table.allocate("b", 2 * SIZE), "allocate('b', 8)", "after the refusal 2 blocks are still free")
    with because("A third block is needed and none is free: look first, and return False."):
        got = table.append("a")
    that(
        not got,
        f"append('a') needs a third block and none is free: it must return False and returned {got!r}.",
    )
    blocks = list(table.block_table("a"))
    that(
        len(blocks) == 2, f"an append that was refused must leave the block table as it was; it is {blocks}."
    )
    table.free("b")
    _yes(table.append("a"), "append('a')", "after free('b') there is room again")
    table.append("a")
    blocks = list(table.block_table("a"))
    slots = [table.slot("a", p) for p in (8, 9)] if len(blocks) == 3 else []
    that(
        len(blocks) == 3 and slots == [blocks[2] * SIZE, blocks[2] * SIZE + 1],
        "after a refused append the next successful one places the token at position 8, the first slot of the new block: "
        f"the refused append must not count its token. The block table is {blocks}.",
    )


def _refused_token(cls: Make) -> None:
    """A token counted by a refused append is noticed when the next block comes one token early."""
    table = cls(4, SIZE)
    table.allocate("a", 2 * SIZE)
    table.allocate("b", 2 * SIZE)
    table.append("a")  # refused
    table.free("b")
    for num_tokens in range(2 * SIZE + 1, 4 * SIZE + 1):
        got = table.append("a")
        blocks, expected = list(table.block_table("a")), -(-num_tokens // SIZE)
        that(
            bool(got) and len(blocks) == expected,
            f"an append was refused, then room came, and now a has {num_tokens} tokens: append returned {got!r} and the table has "
            f"{counted(len(blocks), 'blocks')} for {num_tokens} tokens (blocks of {SIZE}), it should have {expected}. The refused "
            "append counted its token: change nothing before you know that there is a block.",
        )


def _free(cls: Make) -> None:
    table = cls(8, SIZE)
    table.allocate("a", 3 * SIZE)
    table.allocate("b", SIZE)
    table.free("a")
    that(
        table.num_free_blocks == 7,
        f"free('a') must give all its 3 blocks back: 7 of 8 should be free, num_free_blocks is {table.num_free_blocks}.",
        pool_picture("after free('a')", table, "b", 8),
    )
    _yes(table.allocate("a", SIZE), "allocate('a', 4)", "an id that was freed may be used again")
    blocks = list(table.block_table("a"))
    that(len(blocks) == 1, f"the freed request's old blocks are still in its new table: {blocks}.")


def _random(cls: Make) -> int:
    """Small pools first: what fails there is easy to read."""
    num = 0
    for seed in range(SEEDS):
        rng = np.random.default_rng([7, seed])
        small = seed < SEEDS // 2
        num_blocks = int(rng.integers(2, 5)) if small else int(rng.integers(4, 20))
        size = int(rng.choice([1, 2, 4])) if small else int(rng.choice([1, 2, 4, 16]))
        ops: list[Op] = []
        for step in range(100):
            dice, other = rng.random(), any_of(int(rng.integers(1000)))
            if dice < 0.3 or not ops:
                ops.append(("allocate", f"r{step}", int(rng.integers(1, (2 if small else 5) * size + 1))))
            else:
                ops.append(("append" if dice < 0.85 else "free", other))
        judge(lambda num_blocks, size: TableJudge(cls, num_blocks, size), (num_blocks, size), ops)
        num += len(ops)
    return num


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
