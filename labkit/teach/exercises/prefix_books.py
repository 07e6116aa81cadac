"""Exercise 09's picture: what should be in each of the learner's blocks, followed from the outside."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from labkit.teach.exercises.base import Picture
from labkit.teach.exercises.strip import Piece


class Books:
    """Tables, keys and the order of release, from the requests, their tokens and the block tables that the learner's cache
    gave them. Which free block a new one is, is the learner's choice; all else follows from the rules."""

    def __init__(self, num_blocks: int, block_size: int):
        self.block_size = block_size
        self.holders: list[list[str]] = [[] for _ in range(num_blocks)]
        self.last: list[str] = [""] * num_blocks
        self.keys: list[tuple[int, ...] | None] = [None] * num_blocks
        self.idle: list[int] = []  # the oldest first
        self.tables: dict[str, list[int]] = {}
        self.last_call = "the first call"
        self.before = self.picture("before it")

    def note(self, call: str) -> None:
        """What is drawn from now on stands between this call and the next."""
        self.before, self.last_call = self.picture(f"before {call}"), call

    def admitted(self, name: str, tokens: Sequence[int], table: Sequence[int], num_hit_tokens: int) -> None:
        self.tables[name] = list(table)
        for i, block in enumerate(table):
            if i >= num_hit_tokens // self.block_size:
                self.keys[block] = None  # whatever it was, it is new now
            if block in self.idle:
                self.idle.remove(block)
            self.holders[block].append(name)
        for i in range(len(tokens) // self.block_size):
            key = tuple(tokens[: (i + 1) * self.block_size])
            if key not in self.keys:
                self.keys[table[i]] = key

    def freed(self, name: str) -> None:
        for index, block in reversed(list(enumerate(self.tables.pop(name)))):
            self.holders[block].remove(name)
            self.last[block] = f"{name}[{index}]"
            if not self.holders[block] and self.keys[block] is not None:
                self.idle.append(block)

    def picture(self, title: str) -> Picture:
        pieces = []
        for block, held in enumerate(self.holders):
            if held:
                label = "in one table" if len(held) == 1 else "in several tables"
                if len(set(held)) < len(held):
                    label = "twice in one table: a mistake"
                pieces.append(Piece(block, 1, label, " ".join(dict.fromkeys(held))))
            elif block in self.idle:
                order = self.idle.index(block) + 1
                pieces.append(Piece(block, 1, "idle, findable", f"{order}. {self.last[block]}"))
            else:
                pieces.append(Piece(block, 1, "free"))
        if self.idle:
            title += ". Idle blocks: the order in which they should be evicted, and whose block they were"
        return Picture("strip", title, pieces, {"unit": "blocks"})


def follow(cache: Any, method: str, args: tuple[Any, ...], answer: Any) -> None:
    """After every call on a watched cache: `cache.books`. Tables that make no sense end the bookkeeping, not the check."""
    if not hasattr(cache, "books"):
        cache.books = Books(*cache._args)
    cache.books.note(f"{method}({args[0]!r}{', ...' if len(args) > 1 else ''})")
    with contextlib.suppress(Exception):
        if method == "admit" and answer is not None:
            cache.books.admitted(args[0], args[1], cache.block_table(args[0]), answer)
        elif method == "free":
            cache.books.freed(args[0])
