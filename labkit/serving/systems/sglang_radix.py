"""The radix tree of cached prefixes (`mem_cache/unified_radix_cache.py` with its Rust core, `mem_cache/radix_cache.py`).

A node holds a run of tokens, cut to whole pages. A lock on a node protects its whole path; what is not protected can be
evicted, leaves first.

    tokens of the pool = available + evictable + protected + held by requests outside the tree

Order, not duration, is what times are for: each walk has one time, and a leaf made by an insert gets a later one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.serving.systems.sglang_evict import eviction_key
from labkit.serving.systems.sglang_node import Node
from labkit.serving.systems.sglang_pool import TokenPool
from labkit.serving.systems.sglang_tokens import Tokens, common_prefix

_NO_TOKENS: Tokens = np.empty(0, dtype=np.int64)
_LOWEST = -(1 << 63)


class RadixTree:
    """`pool` gets the pages of evicted nodes; None for a tree that owns nothing (the waiting queue's helper tree).

    `split_keeps_age`: after a split the front half keeps the node's creation time (unified cache); the older class gives
    it a new one. Only "fifo" and "filo" can tell.
    """

    def __init__(
        self,
        page_size: int,
        policy: str = "lru",
        policy_config: dict[str, float] | None = None,
        *,
        pool: TokenPool | None = None,
        split_keeps_age: bool = True,
    ):
        self.page_size = page_size
        self.pool = pool
        self.split_keeps_age = split_keeps_age
        self._key_of = eviction_key(policy, policy_config or {})
        self._lists_leaves = pool is not None
        self.reset()

    def reset(self) -> None:
        """An empty tree."""
        self.time = 0
        self.root = Node(None, _NO_TOKENS, [], 0, _LOWEST)
        self.root.lock_ref = 1
        self.num_evictable = self.num_protected = self.num_nodes = 0
        self._heap: list[tuple[Any, int, Node]] = []
        self._serial = 0

    # -- walks -------------------------------------------------------------------------------------------------

    def match(self, tokens: Tokens, limit: int | None = None) -> tuple[int, Node]:
        """Longest cached prefix of `tokens[:limit]`, in whole pages, and its last node. A match that ends inside a
        node splits it; the walk refreshes access times."""
        end = self._aligned(len(tokens) if limit is None else limit)
        if end == 0:
            return 0, self.root
        time = self._tick()
        node, at = self.root, 0
        while at < end and (child := node.children.get(self._child_key(tokens, at))):
            shared = self._shared(child, tokens, at, end)
            if shared < len(child.tokens):
                child = self._split(child, shared, time)
            self._touch(child, time)
            node = child
            at += shared
            if len(node.children) == 0:
                break
        return at, node

    def lookup(self, tokens: Tokens, limit: int | None = None) -> int:
        """What `match` would find, without touching or splitting anything."""
        end = self._aligned(len(tokens) if limit is None else limit)
        node, at = self.root, 0
        while at < end and (child := node.children.get(self._child_key(tokens, at))):
            shared = self._shared(child, tokens, at, end)
            at += shared
            if shared < len(child.tokens):
                break
            node = child
        return at

    def insert(
        self, tokens: Tokens, pages: Sequence[int], *, priority: int = 0, counted: int = 0
    ) -> tuple[int, Node]:
        """Make the whole pages of `tokens` findable. Returns how many leading tokens were there already, and the last
        node. `counted`: length that this request has inserted before; nodes up to there are not hit again."""
        end = self._aligned(len(tokens))
        time = self._tick()
        node, at = self.root, 0
        node.priority = max(node.priority, priority)
        while at < end and (child := node.children.get(self._child_key(tokens, at))):
            shared = self._shared(child, tokens, at, end)
            if shared < len(child.tokens):
                child = self._split(child, shared, time)
            node = child
            at += shared
            node.priority = max(node.priority, priority)
            if at > counted:
                node.hit_count += 1
            self._touch(node, time)
        found = at
        if at < end:
            node = self._add_leaf(
                node, tokens[at:end], list(pages[at // self.page_size : end // self.page_size]), priority
            )
            if end > counted:
                node.hit_count = 1
            self._list(node)
        return found, node

    def path_pages(self, node: Node) -> list[int]:
        """Page ids from the root to the end of `node`."""
        runs = []
        while node.parent is not None:
            runs.append(node.pages)
            node = node.parent
        return [page for run in reversed(runs) for page in run]

    # -- locks and eviction ------------------------------------------------------------------------------------

    def lock(self, node: Node) -> Node:
        """Protect the path to `node`; returns the node, to be given to `unlock` later."""
        at: Node | None = node
        while at is not None and at.parent is not None:
            if at.lock_ref == 0:
                self.num_evictable -= len(at.tokens)
                self.num_protected += len(at.tokens)
            at.lock_ref += 1
            at = at.parent
        return node

    def unlock(self, node: Node) -> None:
        """One request less holds the path from the root to `node`."""
        at: Node | None = node
        while at is not None and at.parent is not None:
            at.lock_ref -= 1
            if at.lock_ref == 0:
                self.num_evictable += len(at.tokens)
                self.num_protected -= len(at.tokens)
                self._list(at)
            at = at.parent

    def evict(self, num_tokens: int) -> int:
        """Give up whole leaves, lowest key first, until at least `num_tokens` are free; returns how many came."""
        evicted = 0
        while evicted < num_tokens and self._heap:
            key, _, node = heapq.heappop(self._heap)
            if node.listed_as != key or not self._is_evictable_leaf(node):
                if node.listed_as == key:
                    node.listed_as = None
                continue
            evicted += self._remove(node)
        return evicted

    # -- inside ------------------------------------------------------------------------------------------------

    def _aligned(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self.page_size

    def _tick(self) -> int:
        self.time += 1
        return self.time

    def _child_key(self, tokens: Tokens, at: int) -> Any:
        """Children are told apart by their first page."""
        if self.page_size == 1:
            return int(tokens[at])
        return tokens[at : at + self.page_size].tobytes()

    def _shared(self, child: Node, tokens: Tokens, at: int, end: int) -> int:
        return self._aligned(common_prefix(child.tokens, tokens[at:end]))

    def _touch(self, node: Node, time: int) -> None:
        node.last_access = time
        if node.lock_ref == 0 and not node.children:
            self._list(node)

    def _split(self, child: Node, length: int, time: int) -> Node:
        """Cut `child` after `length` tokens; the new front half inherits locks, hits and priority."""
        parent = child.parent
        assert parent is not None
        created = child.created if self.split_keeps_age else self._tick()
        front = Node(
            parent, child.tokens[:length], child.pages[: length // self.page_size], time, child.priority
        )
        front.created = created
        front.lock_ref, front.hit_count, front.history = child.lock_ref, child.hit_count, child.history
        parent.children[self._child_key(child.tokens, 0)] = front
        child.parent = front
        child.tokens = child.tokens[length:]
        child.pages = child.pages[length // self.page_size :]
        front.children[self._child_key(child.tokens, 0)] = child
        self.num_nodes += 1
        self._touch(child, time)
        return front

    def _add_leaf(self, parent: Node, tokens: Tokens, pages: list[int], priority: int) -> Node:
        leaf = Node(parent, tokens, pages, self._tick(), priority)
        parent.children[self._child_key(tokens, 0)] = leaf
        self.num_evictable += len(tokens)
        self.num_nodes += 1
        above: Node | None = parent
        while above is not None and above.history < leaf.depth:
            above.history = leaf.depth
            above = above.parent
        return leaf

    def _remove(self, node: Node) -> int:
        parent = node.parent
        assert parent is not None
        assert self.pool is not None
        del parent.children[self._child_key(node.tokens, 0)]
        num_tokens = len(node.tokens)
        self.pool.give(num_tokens // self.page_size, node.pages)
        self.num_evictable -= num_tokens
        self.num_nodes -= 1
        node.listed_as = None
        node.parent = None
        if self._is_evictable_leaf(parent):
            self._list(parent)
        return num_tokens

    def _is_evictable_leaf(self, node: Node) -> bool:
        return node.lock_ref == 0 and not node.children and node.parent is not None

    def _list(self, node: Node) -> None:
        """Tell the heap about an evictable leaf. A key that changed makes the older entry worthless."""
        if node.lock_ref or node.children or not self._lists_leaves:
            return
        key = self._key_of(node)
        if node.listed_as == key:
            return
        node.listed_as = key
        self._serial += 1
        heapq.heappush(self._heap, (key, self._serial, node))
        if len(self._heap) > 4 * self.num_nodes + 256:
            self._heap = [entry for entry in self._heap if entry[2].listed_as == entry[0] and entry[2].parent]
            heapq.heapify(self._heap)

    def nodes(self) -> list[Node]:
        """Every node but the root."""
        found: list[Node] = []
        stack = [self.root]
        while stack:
            node = stack.pop()
            found.extend(node.children.values())
            stack.extend(node.children.values())
        return found
