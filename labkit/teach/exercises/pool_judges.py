"""Exercises 07 and 08 on random operations: the learner's pool and the lab's `PagedKVCache`, side by side.

An operation on a request that is not there (any more) is left out, so a sequence may be shortened at will.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from labkit.kv.base import NoSpace
from labkit.kv.paged import PagedKVCache
from labkit.teach.exercises.base import Mistake, that
from labkit.teach.exercises.shorten import Op
from labkit.teach.exercises.strip import counted

Make = Callable[..., Any]


class Judge:
    """Plays one operation on both, then looks at the books. `live` are the requests that both hold."""

    def __init__(self, cls: Make, num_blocks: int, block_size: int):
        self.num_blocks, self.size = num_blocks, block_size
        self.mine, self.lab = cls(num_blocks, block_size), PagedKVCache(num_blocks, 1, block_size=block_size)
        self.live: list[str] = []
        self.tokens: dict[str, int] = {}
        self.mine.names = self.live  # for the picture

    def __call__(self, op: Op) -> None:
        what, name = op[0], op[1]
        if (name in self.live) == (what == "allocate") or (what == "fork" and op[2] in self.live):
            return
        did = f"{what}({', '.join(map(repr, op[1:]))})"
        if what == "allocate":
            expected = self.lab.admit(name, op[2], max_tokens=op[2]).admitted
            got = self.mine.allocate(name, op[2])
            that(bool(got) == expected, f"{did} returned {got!r} and should return {expected}.")
            if expected:
                self.live.append(name)
                self.tokens[name] = op[2]
        elif what == "fork":
            self.lab.fork(name, op[2])
            self.mine.fork(name, op[2])
            self.live.append(op[2])
            self.tokens[op[2]] = self.tokens[name]
        elif what == "append":
            self.append(name, did)
        else:
            self.live.remove(name)
            self.lab.free(name)
            self.mine.free(name)
        free, lab = self.mine.num_free_blocks, self.lab.num_free_blocks
        that(free == lab, f"after {did} num_free_blocks is {free} and should be {lab}.")
        self.books(f"after {did}")

    def append(self, name: str, did: str) -> None:
        raise NotImplementedError

    def books(self, when: str) -> None:
        raise NotImplementedError


class TableJudge(Judge):
    """Exercise 07: answers, free blocks, no block in two tables, slots where the table says."""

    def append(self, name: str, did: str) -> None:
        try:
            self.lab.append(name)
            expected = True
        except NoSpace:
            expected = False
        before = list(self.mine.block_table(name))
        got = self.mine.append(name)
        that(bool(got) == expected, f"{did} returned {got!r} and should return {expected}.")
        self.tokens[name] += expected
        after = list(self.mine.block_table(name))
        that(
            after[: len(before)] == before,
            f"after {did} the block table is {after} and it was {before}: a new block stands last, the others stay.",
        )
        need = -(-self.tokens[name] // self.size)
        that(
            len(after) == need,
            f"after {did} {name} has {counted(self.tokens[name], 'tokens')} and the block table {after} (blocks of {self.size}): it "
            f"should have {counted(need, 'blocks')}.",
        )
        position = self.tokens[name] - 1
        slot, right = self.mine.slot(name, position), after[position // self.size : position // self.size + 1]
        that(
            right == [slot // self.size] and slot % self.size == position % self.size,
            f"after {did} slot({name!r}, {position}) returned {slot} and the block table is {after} (blocks of {self.size}).",
        )

    def books(self, when: str) -> None:
        owner: dict[int, str] = {}
        for name in self.live:
            for block in self.mine.block_table(name):
                that(0 <= block < self.num_blocks, f"{when} {name} has block {block}, which does not exist.")
                if block in owner:
                    both = f"in the tables of {owner[block]} and {name}"
                    raise Mistake(
                        f"{when} block {block} is {both if owner[block] != name else f'twice in the table of {name}'}."
                    )
                owner[block] = name


class SharingJudge(Judge):
    """Exercise 08: copies, and counts that equal the tables."""

    def append(self, name: str, did: str) -> None:
        old = list(self.mine.block_table(name))
        try:
            moves = self.lab.append(name).moves
        except NoSpace:
            moves = None
        try:
            got = copies_of(self.mine, name)
        except NoSpace:
            got = None
        if got is None or moves is None:
            said = "raised NoSpace" if got is None else f"returned {got}"
            wanted = "must raise NoSpace" if moves is None else "there is room: it must not"
            that(got is moves, f"{did} {said} and {wanted}.")
            return
        copies = f"one copy, from block {old[-1]}" if moves else "no copy, []"
        that(
            len(got) == len(moves) and all(source == old[-1] for source, _ in got),
            f"{did} returned {got} and should return {copies}.",
        )

    def books(self, when: str) -> None:
        named = Counter(block for name in self.live for block in self.mine.block_table(name))
        for block in range(self.num_blocks):
            count = self.mine.ref_count(block)
            if count != named[block]:
                tables = counted(named[block], "tables")
                raise Mistake(
                    f"{when} block {block} has count {count!r}, and it is in {tables}: a count is the number of tables."
                )
        free, unnamed = self.mine.num_free_blocks, self.num_blocks - len(named)
        that(
            free == unnamed,
            f"{when} num_free_blocks is {free} and should be {unnamed}, the blocks in no table.",
        )


def copies_of(pool: Any, name: str) -> list[tuple[int, int]]:
    """What `append` returned, as pairs of numbers."""
    return [(int(copy[0]), int(copy[1])) for copy in pool.append(name)]
