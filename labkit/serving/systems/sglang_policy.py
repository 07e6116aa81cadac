"""The order of the waiting queue (`managers/schedule_policy.py` `SchedulePolicy`).

A policy that looks at the cache matches every waiting request before each pass, which refreshes access times and may
split nodes: looking is not free of consequences. A queue of more than 128 requests is not matched (lpm, hrrn).
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.serving.systems.sglang_node import Node
from labkit.serving.systems.sglang_options import SglangOptions
from labkit.serving.systems.sglang_radix import RadixTree
from labkit.serving.systems.sglang_request import Req

#: more waiting requests than this are not matched
MAX_MATCHED = 128
#: passes between two refreshes of what waiting requests will hit (lru with a policy that does not match)
REFRESH_INTERVAL = 32
#: a request with at most so many cached tokens is compared with earlier waiting ones ...
CHECK_IN_BATCH = 32
#: ... and put last when it shares at least so many with one of them
DEPRIORITIZE_IN_BATCH = 32

_CACHE_AWARE = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")


class QueueOrder:
    """Sorts the queue in place. A disabled cache turns every policy that looks at it into fcfs."""

    def __init__(self, options: SglangOptions, tree: RadixTree):
        name = options.schedule_policy
        self.policy = "fcfs" if options.disable_radix_cache and name in _CACHE_AWARE else name
        self.tree = tree
        self.by_priority = options.enable_priority_scheduling
        self.sign = 1 if options.schedule_low_priority_values_first else -1
        self._refreshes = options.radix_eviction_policy == "lru" and not options.disable_radix_cache
        self._num_passes = 0
        self._in_batch = RadixTree(1)

    def sort(self, queue: list[Req], processed_tokens: int) -> None:
        """`calc_priority`."""
        policy = self.policy
        if policy in ("lpm", "hrrn") and len(queue) > MAX_MATCHED:
            policy = "fcfs"
        elif policy in _CACHE_AWARE:
            last = self._match_all(queue)
            if policy == "lpm":
                queue.sort(key=lambda r: float("inf") if r in last else -r.num_matched)
            elif policy == "dfs-weight":
                queue[:] = dfs_weight_order(self.tree.root, queue)
            elif policy == "hrrn":
                queue.sort(key=lambda r: (_response_ratio(r, r in last, processed_tokens), r.request_id))
            else:
                queue.sort(key=lambda r: (r in last, prefill_work(r), r.queue_entry))
            return
        elif policy == "lof":
            if self.by_priority:
                queue.sort(key=lambda r: (r.priority * self.sign, -r.max_new_tokens))
            else:
                queue.sort(key=lambda r: -r.max_new_tokens)
        elif self.by_priority:
            queue.sort(key=lambda r: (r.priority * self.sign, r.queue_entry))
        if self._refreshes and queue:
            self._refresh(queue)

    def chunk_limit(self, chunked: Req, queue: Sequence[Req], budget: int, page_size: int) -> int | None:
        """shortest-prefill-first leaves part of a pass to waiting requests that have less to do than the chunked one.
        `budget` and result in tokens; None: no limit beyond the budget."""
        if self.policy != "shortest-prefill-first" or budget < 2 * page_size:
            return None
        remaining = chunked.num_prompt + chunked.num_outputs - chunked.prefix_len
        reserved = 0
        for req in queue:
            work = prefill_work(req)
            charge = -(-work // page_size) * page_size
            if work >= remaining or reserved + charge > budget - page_size:
                break
            reserved += charge
        return (budget - reserved) // page_size * page_size if reserved else None

    def _refresh(self, queue: Sequence[Req]) -> None:
        """`_touch_waiting_prefixes`: the head of the queue last, so that it is the most recent."""
        due = self._num_passes % REFRESH_INTERVAL == 0
        self._num_passes += 1
        if due:
            for req in reversed(queue[:MAX_MATCHED]):
                self.tree.match(req.tokens(0))

    def _match_all(self, queue: Sequence[Req]) -> set[Req]:
        """`_compute_prefix_matches`: matches each request; returns those to be put last this time, because an earlier
        one of the queue will bring what they need."""
        last: set[Req] = set()
        self._in_batch.reset()
        for req in queue:
            tokens = req.tokens(0)
            req.prefix_len, req.last_node = self.tree.match(tokens)
            req.num_matched = min(req.prefix_len, len(tokens) - 1)
            if req.prefix_len > CHECK_IN_BATCH:
                continue
            if self._in_batch.match(tokens)[0] >= DEPRIORITIZE_IN_BATCH:
                last.add(req)
            else:
                self._in_batch.insert(tokens, ())
        return last


def prefill_work(req: Req) -> int:
    """Tokens that a prefill of it must compute, by the last match."""
    return max(1, req.num_prompt + req.num_outputs - req.num_matched)


def _response_ratio(req: Req, put_last: bool, processed_tokens: int) -> float:
    """Lowest first: minus the prefill tokens that passed while it waited, for each token it needs."""
    if put_last:
        return float("inf")
    uncached = max(0, req.num_prompt - req.num_matched)
    if uncached == 0:
        return -float("inf")
    return -(max(0, processed_tokens - req.processed_at_entry) / uncached)


def dfs_weight_order(root: Node, queue: Sequence[Req]) -> list[Req]:
    """Post-order over the tree, children with more waiting requests below them first (ties: age of the child); a node's
    own requests come after those of its children. Only branches that somebody waits for are walked."""
    here: dict[Node, list[Req]] = {}
    weight: dict[Node, int] = {}
    for req in queue:
        node: Node | None = req.last_node
        assert node is not None
        here.setdefault(node, []).append(req)
        while node is not None:
            weight[node] = weight.get(node, 0) + 1
            node = node.parent
    order: list[Req] = []
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, visited = stack.pop()
        if visited:
            order.extend(here.get(node, ()))
            continue
        children = [child for child in node.children.values() if child in weight]
        children.sort(key=lambda child: -weight[child])
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(children))
    return order
