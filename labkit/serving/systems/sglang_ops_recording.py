"""Replays a recording of operations on SGLang's two radix caches: insert, match, lock, unlock, evict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from labkit.errors import InputError, shown
from labkit.recording import Comparison
from labkit.serving.systems.recorded import check_parts, compare_header
from labkit.serving.systems.sglang_node import Node
from labkit.serving.systems.sglang_options import EVICTION_POLICIES
from labkit.serving.systems.sglang_pool import TokenPool
from labkit.serving.systems.sglang_radix import RadixTree

#: size of the pool the operations were recorded with
POOL_TOKENS = 200_000
CACHES = ("unified", "radix")
WHAT = "SGLang operations"
BODY = {"ops": list, "results": dict, "page_size": int, "eviction_policy": str}


def replay(recording: Mapping[str, Any]) -> Comparison:
    """`results.unified` and `results.radix` are compared, operation by operation."""
    comparison = Comparison("sglang_ops")
    check_parts(recording, BODY, WHAT)
    ops, results = recording["ops"], recording["results"]
    page_size, policy = recording["page_size"], recording["eviction_policy"]
    if policy not in EVICTION_POLICIES:
        raise InputError(
            WHAT,
            f"is {shown(policy)}; choose one of: {', '.join(EVICTION_POLICIES)}",
            field="eviction_policy",
        )
    if not 1 <= page_size <= POOL_TOKENS:
        raise InputError(WHAT, f"is {shown(page_size)}; accepted are 1 to {POOL_TOKENS}", field="page_size")
    check_parts(results, dict.fromkeys(CACHES, list), f"{WHAT}, results")
    for cache in results.keys() - set(CACHES):
        raise InputError(WHAT, f"is not known; caches are {', '.join(CACHES)}", field=f"results.{cache}")
    compare_header(comparison, recording, {"system": "sglang", "version": "0.5.23"}, body=BODY)
    for cache, recorded in results.items():
        machine = _Machine(page_size, policy, split_keeps_age=cache == "unified")
        replayed = [machine.run(op) for op in ops]
        for i, (left, right) in enumerate(zip(recorded, replayed, strict=False)):
            comparison.compare(f"results.{cache}[{i}]", left, right)
        comparison.compare(f"results.{cache}.length", len(recorded), len(replayed))
        comparison.num_ops += len(ops)
    return comparison


class _Machine:
    """One cache and the locks that the operations hold by number."""

    def __init__(self, page_size: int, policy: str, *, split_keeps_age: bool):
        self.page_size = page_size
        self.pool = TokenPool(POOL_TOKENS, page_size)
        self.tree = RadixTree(page_size, policy, pool=self.pool, split_keeps_age=split_keeps_age)
        self.locks: dict[int, Node] = {}

    def run(self, op: list[Any]) -> dict[str, Any]:
        name = op[0] if isinstance(op, list) and op else op
        if not isinstance(name, str) or name not in _OPERATIONS:
            raise InputError("SGLang operations", f"{shown(name)} is none of {', '.join(_OPERATIONS)}")
        result = _OPERATIONS[name](self, *op[1:])
        return {
            **result,
            "evictable": self.tree.num_evictable,
            "protected": self.tree.num_protected,
            "available": self.pool.available,
        }

    def insert(self, token_ids: list[int]) -> dict[str, Any]:
        """Slots for all whole pages are taken first; those of the prefix that was there already are given back."""
        num_pages = len(token_ids) // self.page_size
        if num_pages == 0:
            return {"skipped": True}
        self.pool.take(num_pages)
        length = num_pages * self.page_size
        found, _ = self.tree.insert(np.asarray(token_ids[:length], dtype=np.int64), ())
        self.pool.give(found // self.page_size, ())
        return {"prefix_len": found, "inserted": length - found}

    def match(self, token_ids: list[int]) -> dict[str, Any]:
        return {"hit": self.tree.match(np.asarray(token_ids, dtype=np.int64))[0]}

    def lock(self, token_ids: list[int], number: int) -> dict[str, Any]:
        hit, node = self.tree.match(np.asarray(token_ids, dtype=np.int64))
        self.locks[number] = self.tree.lock(node)
        return {"hit": hit}

    def unlock(self, number: int) -> dict[str, Any]:
        self.tree.unlock(self.locks.pop(number))
        return {}

    def evict(self, num_tokens: int) -> dict[str, Any]:
        return {"evicted": self.tree.evict(num_tokens)}


_OPERATIONS: dict[str, Any] = {
    "insert": _Machine.insert,
    "match": _Machine.match,
    "lock": _Machine.lock,
    "unlock": _Machine.unlock,
    "evict": _Machine.evict,
}
