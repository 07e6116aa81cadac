"""One node of the radix tree."""

from __future__ import annotations

from typing import Any

from labkit.serving.systems.sglang_tokens import Tokens


class Node:
    """`tokens` of this node alone; `depth` counts those from the root to its end. `pages` are empty when only counting."""

    __slots__ = (
        "children",
        "created",
        "depth",
        "history",
        "hit_count",
        "last_access",
        "listed_as",
        "lock_ref",
        "pages",
        "parent",
        "priority",
        "tokens",
    )

    def __init__(self, parent: Node | None, tokens: Tokens, pages: list[int], time: int, priority: int):
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.children: dict[Any, Node] = {}
        self.lock_ref = 0
        self.hit_count: int = 0
        self.priority: int = priority
        self.created: int = time
        self.last_access: int = time
        above: int = parent.depth if parent is not None else 0
        self.depth: int = above + len(tokens)
        #: deepest end this branch ever had (tlru)
        self.history: int = self.depth
        #: eviction key under which the heap knows it
        self.listed_as: Any = None
