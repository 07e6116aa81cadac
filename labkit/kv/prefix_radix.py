"""Prefix cache as a radix tree over tokens (SGLang, `mem_cache/radix_cache.py`; Zheng et al., "SGLang", 2024).

Each node holds a run of tokens, cut into pages of one block, and the blocks with their KV. A request's tokens are a path
from the root. Where two paths part inside a node, the node is split at the page border. Blocks become findable when
they were computed: prompts after their prefill step, outputs when the request ends. A request whose blocks turn out to
be in the tree already is re-pointed to those, and its own copies are freed.

Only leaves that nobody holds are evicted, whole; so a parent never goes before its children.

`partial_hits=True` also reuses the beginning of a block (as TensorRT-LLM does, `enable_partial_reuse`): its tokens are
copied to a fresh block, since the rest of the block will differ. With blocks of one token there is nothing partial.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar

from labkit.errors import require
from labkit.kv.eviction import EVICTION, Entry
from labkit.kv.prefix_base import PrefixCache


class Node:
    """`pages[i]` are the tokens in `blocks[i]`; a child is found by its first page. `num_held` blocks are named by tables:
    all of a node's blocks or none, because hits split."""

    __slots__ = ("blocks", "children", "entry", "num_held", "pages", "parent")

    def __init__(self, parent: Node | None, pages: list[Hashable], blocks: list[int], entry: Entry):
        self.parent, self.pages, self.blocks, self.entry = parent, pages, blocks, entry
        self.children: dict[Hashable, Node] = {}
        self.num_held = 0
        entry.item = self


class RadixPrefixCache(PrefixCache):
    """`eviction` orders the leaves that nobody holds; `partial_hits` also finds the beginning of a block."""

    name = "radix"
    publishes_when_computed = True
    publishes_outputs_at_end: ClassVar[bool] = True

    def __init__(self, block_size: int, eviction: str = "lru", *, partial_hits: bool = False):
        super().__init__(block_size)
        self.partial_hits = partial_hits
        self._queue = EVICTION[eviction]()
        self._clock = 0
        self.root = Node(None, [], [], Entry(None, 0))
        self._node_of: dict[int, Node] = {}

    def extend_key(self, keys: list[Hashable], page: Hashable) -> None:
        keys.append(page)

    # --- finding -----------------------------------------------------------------------------------------------------

    def match(self, keys: Sequence[Hashable], max_blocks: int) -> list[int]:
        node = self.root
        blocks: list[int] = []
        while len(blocks) < max_blocks and len(blocks) < len(keys):
            child = node.children.get(keys[len(blocks)])
            if child is None:
                break
            same = _common(child.pages, keys, len(blocks), min(max_blocks, len(keys)))
            blocks += child.blocks[:same]
            if same < len(child.pages):
                break
            node = child
        return blocks

    def match_inside(self, hits: Sequence[int], rest: Sequence[int]) -> tuple[int, int]:
        """Looks at every child of the last matched node."""
        best, most = -1, 0
        for page, block in self._next_pages(hits):
            same = _common_tokens(page, rest)
            if same > most:
                best, most = block, same
        return best, most

    def hit(self, blocks: Sequence[int]) -> None:
        """Split where the request leaves the path, so that what it holds and what it does not are different nodes."""
        node = self._node_of[blocks[-1]]
        index = node.blocks.index(blocks[-1]) + 1
        if index < len(node.blocks):
            node = self._split(node, index)
        while node.parent is not None:
            node.entry.num_hits += 1
            node = node.parent

    # --- publishing --------------------------------------------------------------------------------------------------

    def publish(
        self,
        keys: Sequence[Hashable],
        blocks: Sequence[int],
        start: int,
        stop: int,
        priority: int,
        ttl_s: float | None,
    ) -> list[tuple[int, int]]:
        expires_s = math.inf if ttl_s is None else self.now_s + ttl_s
        node, at = self.root, 0
        repoint: list[tuple[int, int]] = []
        while at < stop and (child := node.children.get(keys[at])) is not None:
            same = _common(child.pages, keys, at, stop)
            if same < len(child.pages):
                child = self._split(child, same)
            copies = [i for i, block in enumerate(child.blocks) if blocks[at + i] != block]
            if any(self.refs[blocks[at + i]] > 1 for i in copies):
                return repoint  # a fork shares the copy: re-pointing one table would part the two
            repoint += [(at + i, child.blocks[i]) for i in copies]
            child.entry.priority = max(child.entry.priority, priority)
            child.entry.expires_s = max(child.entry.expires_s, expires_s)
            node, at = child, at + same
        if at < stop:
            self._insert(node, list(keys[at:stop]), list(blocks[at:stop]), priority, expires_s)
        return repoint

    def publish_tail(
        self,
        keys: Sequence[Hashable],
        blocks: Sequence[int],
        tokens: tuple[int, ...],
        priority: int,
        ttl_s: float | None,
    ) -> None:
        *path, block = blocks
        if self.refs[block] > 1 or block in self._node_of or self.match(keys, len(keys)) != path:
            return  # somebody goes on writing there, or the path before it is not the request's own
        node = self._node_of[path[-1]] if path else self.root
        if path and node.blocks[-1] != path[-1]:
            node = self._split(node, node.blocks.index(path[-1]) + 1)
        if tokens not in node.children:
            expires_s = math.inf if ttl_s is None else self.now_s + ttl_s
            self._insert(node, [tokens], [block], priority, expires_s)

    # --- holding and evicting ----------------------------------------------------------------------------------------

    def holds(self, block: int) -> bool:
        return block in self._node_of

    def acquire(self, block: int) -> None:
        self.num_evictable -= 1
        node = self._node_of[block]
        if not node.num_held and not node.children:
            self._queue.discard(node.entry)
        node.num_held += 1

    def release(self, block: int) -> None:
        self.num_evictable += 1
        node = self._node_of[block]
        node.num_held -= 1
        if not node.num_held:
            self._clock += 1
            node.entry.last_used = self._clock
            if not node.children:
                self._queue.add(node.entry)

    def evict(self, num_blocks: int) -> list[int]:
        """Whole leaves, so it may be more than asked."""
        evicted: list[int] = []
        while len(evicted) < num_blocks and (entry := self._queue.pop(self.now_s)) is not None:
            leaf: Node = entry.item
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.pages[0]]
            for block in leaf.blocks:
                del self._node_of[block]
            evicted += leaf.blocks
            if parent is not self.root and not parent.children and not parent.num_held:
                self._queue.add(parent.entry)
        self.num_evictable -= len(evicted)
        self.num_evicted += len(evicted)
        return evicted

    def check_integrity(self) -> None:
        num_idle, num_leaves = 0, 0
        seen: set[int] = set()
        for node in self._nodes():
            held = sum(1 for block in node.blocks if self.refs[block])
            require(
                len(node.pages) == len(node.blocks) > 0,
                "a node has a block for each page",
                pages=node.pages,
                blocks=node.blocks,
            )
            require(
                held == node.num_held and held in (0, len(node.blocks)),
                "a node is held as a whole or not at all",
                held=held,
                counted=node.num_held,
                blocks=node.blocks,
            )
            parent = node.parent
            require(
                parent is not None and parent.children.get(node.pages[0]) is node,
                "a node hangs under its first page",
                blocks=node.blocks,
            )
            require(
                parent is self.root or not held or parent.num_held > 0,  # type: ignore[union-attr]
                "the parent of a held node is held",
                blocks=node.blocks,
            )
            num_idle += len(node.blocks) - held
            num_leaves += not held and not node.children
            require(not seen & set(node.blocks), "a block is in one node", blocks=node.blocks)
            seen |= set(node.blocks)
            require(
                all(self._node_of.get(block) is node for block in node.blocks),
                "every block knows its node",
                blocks=node.blocks,
            )
        require(
            seen == self._node_of.keys(),
            "every cached block is in the tree",
            lost=self._node_of.keys() - seen,
        )
        require(
            num_idle == self.num_evictable,
            "evictable = cached blocks that no table names",
            idle=num_idle,
            counted=self.num_evictable,
        )
        require(
            num_leaves == len(self._queue),
            "idle leaves are queued",
            leaves=num_leaves,
            queued=len(self._queue),
        )

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _insert(
        self, parent: Node, pages: list[Hashable], blocks: list[int], priority: int, expires_s: float
    ) -> None:
        """Hang `pages` below `parent`: one node, or several where a fork shares only the first blocks, so that all of
        a node's blocks have the same holders (along a path the holders only get fewer)."""
        counts = [self.refs[block] for block in blocks]
        cuts = [i for i in range(len(blocks)) if i == 0 or counts[i] != counts[i - 1]]
        for start, stop in zip(cuts, [*cuts[1:], len(blocks)]):
            self._clock += 1
            entry = Entry(None, self._clock, self._clock, 0, priority, expires_s)
            node = Node(parent, pages[start:stop], blocks[start:stop], entry)
            node.num_held = stop - start
            if parent is not self.root and not parent.children and not parent.num_held:
                self._queue.discard(parent.entry)
            parent.children[node.pages[0]] = node
            for block in node.blocks:
                self._node_of[block] = node
            parent = node

    def _split(self, node: Node, index: int) -> Node:
        """Cut `node` before page `index`; returns the new upper half. The lower keeps the node's place in the queue."""
        old = node.entry
        upper = Node(
            node.parent,
            node.pages[:index],
            node.blocks[:index],
            Entry(None, old.created, old.last_used, old.num_hits, old.priority, old.expires_s),
        )
        assert node.parent is not None
        node.parent.children[upper.pages[0]] = upper
        node.pages, node.blocks, node.parent = node.pages[index:], node.blocks[index:], upper
        upper.children[node.pages[0]] = node
        upper.num_held = sum(1 for block in upper.blocks if self.refs[block])
        was_queued = not node.num_held and not node.children
        node.num_held = sum(1 for block in node.blocks if self.refs[block])
        is_queued = not node.num_held and not node.children
        if is_queued and not was_queued:
            self._queue.add(old)
        elif was_queued and not is_queued:
            self._queue.discard(old)
        for block in upper.blocks:
            self._node_of[block] = upper
        return upper

    def _next_pages(self, hits: Sequence[int]) -> Iterator[tuple[Any, int]]:
        """Pages that continue the path `hits`, with their blocks."""
        node = self._node_of[hits[-1]] if hits else self.root
        index = node.blocks.index(hits[-1]) + 1 if hits else 0
        if index < len(node.blocks):
            yield node.pages[index], node.blocks[index]
        else:
            for page, child in node.children.items():
                yield page, child.blocks[0]

    def _nodes(self) -> Iterator[Node]:
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def _common(pages: Sequence[Hashable], keys: Sequence[Hashable], at: int, stop: int) -> int:
    """How many of `pages` equal `keys[at:stop]` from their starts."""
    limit = min(len(pages), stop - at)
    for i in range(limit):
        if pages[i] != keys[at + i]:
            return i
    return limit


def _common_tokens(page: Sequence[int], tokens: Sequence[int]) -> int:
    for i, (a, b) in enumerate(zip(page, tokens)):
        if a != b:
            return i
    return min(len(page), len(tokens))
