"""The books of the SGLang model: every conservation law, checked by walking everything. Nothing here changes a decision."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.errors import require
from labkit.serving.systems.sglang_node import Node
from labkit.serving.systems.sglang_radix import RadixTree
from labkit.serving.systems.sglang_request import Req
from labkit.serving.systems.sglang_state import SglangState


def check_state(state: SglangState) -> None:
    """`available + evictable + protected + held by requests = total`, and everything the parts keep in counters."""
    options, pool, tree, clock = state.options, state.pool, state.tree, state.clock
    holders = {id(r): r for r in (*state.running, *state.extend_rows, *state.decode_rows)}
    if state.chunked is not None:
        holders[id(state.chunked)] = state.chunked
    live = [r for r in holders.values() if not r.finished and r.num_blocks_held(clock, pool) > 0]
    check_tree(tree, [r.lock for r in live if r.lock is not None])
    held = sum(r.num_blocks_held(clock, pool) * options.page_size - r.protected_len for r in live)
    held += state.num_pages_taken * options.page_size
    total = pool.available + tree.num_evictable + tree.num_protected + held
    require(
        total == pool.num_pages * options.page_size,
        "available + evictable + protected + held = total",
        available=pool.available,
        evictable=tree.num_evictable,
        protected=tree.num_protected,
        held=held,
        total=pool.num_pages * options.page_size,
    )
    state.decoding.check_integrity(r for r in live if r.base is not None)
    ids = {r.request_id for r in (*live, *state.waiting)}
    require(
        ids == set(state.requests),
        "every request waits or holds memory",
        differing=ids ^ set(state.requests),
    )
    _check_ids(state, live)


def _check_ids(state: SglangState, live: list[Req]) -> None:
    free = state.pool.free_ids()
    if free is None:
        return
    owned = [page for node in state.tree.nodes() for page in node.pages]
    for req in live:
        owned += req.pages[req.protected_len // state.options.page_size :]
        tree_part = req.protected_len // state.options.page_size
        if req.lock is not None:
            path = state.tree.path_pages(req.lock)[:tree_part]
            require(
                req.pages[:tree_part] == path, "a request points at the tree's pages", request=req.request_id
            )
    every = sorted(free + owned)
    require(every == list(range(1, state.pool.num_pages + 1)), "each page has one owner", pages=len(every))


def check_tree(tree: RadixTree, locked: Sequence[Node]) -> None:
    """`locked`: the nodes that requests hold, once for each holder."""
    holders: dict[int, int] = {}
    for node in locked:
        at: Node | None = node
        while at is not None:
            holders[id(at)] = holders.get(id(at), 0) + 1
            at = at.parent
    evictable = protected = 0
    nodes = tree.nodes()
    listed = {(id(node), key) for key, _, node in tree._heap}
    for node in nodes:
        require(len(node.tokens) > 0, "no empty node", depth=node.depth)
        require(len(node.tokens) % tree.page_size == 0, "whole pages", tokens=len(node.tokens))
        require(node.lock_ref == holders.get(id(node), 0), "locks have holders", lock_ref=node.lock_ref)
        parent = node.parent
        require(parent is not None and parent.depth + len(node.tokens) == node.depth, "depths add up")
        if node.lock_ref:
            protected += len(node.tokens)
        else:
            evictable += len(node.tokens)
            if not node.children and tree._lists_leaves:
                require(
                    (id(node), tree._key_of(node)) in listed,
                    "evictable leaves are listed",
                    depth=node.depth,
                )
    require(evictable == tree.num_evictable, "evictable tokens", walked=evictable, kept=tree.num_evictable)
    require(protected == tree.num_protected, "protected tokens", walked=protected, kept=tree.num_protected)
    require(len(nodes) == tree.num_nodes, "nodes", walked=len(nodes), kept=tree.num_nodes)
