"""What happens to a request's slots: prefill, checkpoint, release (`mem_cache/common.py`, `allocation.py`,
`unified_radix_cache.py` `checkpoint_into_tree`).

    [0, protected_len)           owned by the tree, locked for the request
    [protected_len, committed)   owned by the request
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.serving.systems.sglang_options import SglangOptions
from labkit.serving.systems.sglang_pool import TokenPool
from labkit.serving.systems.sglang_radix import RadixTree
from labkit.serving.systems.sglang_request import Req

#: a retraction frees room for so many further steps of each request that stays (`SGLANG_RETRACT_DECODE_STEPS`)
RETRACT_DECODE_STEPS = 20
#: priorities are 64-bit integers
MAX_PRIORITY = (1 << 63) - 1


class RequestMemory:
    """Pool and tree together. `evictions` collects `[asked, evicted]` of one step: every shortfall, even in vain."""

    def __init__(self, options: SglangOptions, *, with_ids: bool, split_keeps_age: bool = True):
        self.page_size = options.page_size
        self.disabled = options.disable_radix_cache
        self.with_ids = with_ids
        self.pool = TokenPool(options.capacity, options.page_size, with_ids=with_ids)
        self.tree = RadixTree(
            options.page_size,
            options.radix_eviction_policy,
            dict(options.radix_eviction_policy_config),
            pool=self.pool,
            split_keeps_age=split_keeps_age,
        )
        self.evictions: list[list[int]] = []
        self.num_evicted_tokens = 0

    def make_room(self, num_tokens: int) -> bool:
        """Evict what is missing, and say whether `num_tokens` are free now."""
        shortfall = num_tokens - self.pool.available
        if shortfall <= 0:
            return True
        if not self.disabled:
            evicted = self.tree.evict(shortfall)
            self.num_evicted_tokens += evicted
            self.evictions.append([shortfall, evicted])
        return self.pool.available >= num_tokens

    def match(self, req: Req) -> None:
        """`init_next_round_input`: at least one token is always computed."""
        tokens = req.tokens(0)
        req.fill_len = len(tokens)
        if self.disabled:
            req.prefix_len, req.last_node = 0, self.tree.root
        else:
            req.prefix_len, req.last_node = self.tree.match(tokens, len(tokens) - 1)
        req.num_matched = req.protected_len = req.prefix_len

    def allocate_extend(self, reqs: Sequence[Req]) -> None:
        """Slots for one prefill. With pages the server asks for one more page a request than it may need, so it evicts
        without a real need."""
        page_size = self.page_size
        num_tokens = sum(r.extend_end - r.prefix_len for r in reqs)
        self.make_room(num_tokens if page_size == 1 else num_tokens + page_size * len(reqs))
        for req in reqs:
            have = self.pool.pages_for(req.prefix_len)
            if self.with_ids and len(req.pages) < have:
                assert req.last_node is not None
                req.pages = self.tree.path_pages(req.last_node)[:have]
            req.pages += self.pool.take(self.pool.pages_for(req.extend_end) - have)

    def checkpoint(self, req: Req, clock: int) -> None:
        """`checkpoint_kv_cache`: make what it has computed findable. Slots that somebody else had already are given
        back, and the request is pointed at the tree's."""
        self._insert(req, req.extend_end, clock)
        req.prefix_len = req.extend_end

    def release(self, req: Req, clock: int, *, insert: bool) -> None:
        """Give everything back; with `insert` the tree first takes what it can key (whole pages)."""
        committed = req.committed(clock)
        if insert:
            self._insert(req, committed, clock)
        first, last = req.protected_len // self.page_size, self.pool.pages_for(committed)
        self.pool.give(last - first, req.pages[first:last])
        if req.lock is not None:
            self.tree.unlock(req.lock)
            req.lock = None

    def _insert(self, req: Req, up_to: int, clock: int) -> None:
        if self.disabled:
            return
        page_size, tree = self.page_size, self.tree
        length = up_to - up_to % page_size
        tokens = req.tokens(clock)[:length]
        found, node = tree.insert(tokens, req.pages, priority=req.priority, counted=req.inserted_len)
        req.inserted_len = max(req.inserted_len, length)
        prompt = req.num_prompt - req.num_prompt % page_size
        if 0 < prompt < length:
            # cut the leaf where the prompt ends, so that outputs can be evicted without it
            tree.insert(tokens[:prompt], (), priority=min(req.priority + 1, MAX_PRIORITY), counted=prompt)
        first, last = req.protected_len // page_size, found // page_size
        if last > first:
            self.pool.give(last - first, req.pages[first:last])
            if self.with_ids:
                req.pages[first:last] = tree.path_pages(node)[first:last]
        if req.lock is not None:
            tree.unlock(req.lock)
        req.lock = tree.lock(node)
        req.last_node = node
        req.protected_len = length
