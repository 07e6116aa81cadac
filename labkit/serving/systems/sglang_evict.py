"""Which cached leaf goes first: the eviction keys of `mem_cache/evict_policy.py`. The lowest key is evicted first.

lru       last access                          mru    the newest access first
lfu       hits, then last access               fifo   creation, oldest first; filo: newest first
slru      hits reached a threshold or not, then last access
priority  the highest priority that asked for it, then last access
tlru      first what a conversation of its length may lose without missing its budget, then last access
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from labkit.serving.systems.sglang_node import Node

Key = Callable[[Node], Any]


def eviction_key(policy: str, config: Mapping[str, float]) -> Key:
    """The key function of one `radix_eviction_policy`."""
    if policy == "slru":
        threshold = config.get("protected_threshold", 2)
        return lambda node: (node.hit_count >= threshold, node.last_access)
    if policy == "tlru":
        allowed = config.get("threshold", 0) - config.get("next_prompt_estimate", 0)
        return lambda node: (-_may_lose(node, allowed), node.last_access)
    return _KEYS[policy]


def _may_lose(node: Node, allowed: float) -> bool:
    """True when the branch without this node is still as long as its history minus the allowed loss."""
    return node.depth - len(node.tokens) >= max(node.history - allowed, 0)


_KEYS: dict[str, Key] = {
    "lru": lambda node: node.last_access,
    "lfu": lambda node: (node.hit_count, node.last_access),
    "fifo": lambda node: node.created,
    "filo": lambda node: -node.created,
    "mru": lambda node: -node.last_access,
    "priority": lambda node: (node.priority, node.last_access),
}
