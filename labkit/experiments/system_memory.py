"""KV memory of any scheduler at one instant, read from the outside: the lab's own, or a system with blocks of its own.

Shared tokens count once for each request that holds them in vLLM's counters, so token states are capped at what is held.
"""

from __future__ import annotations

from typing import Any

from labkit.kv.base import KVStats
from labkit.serving.base import Scheduler


def kv_memory(scheduler: Scheduler, bytes_per_token: int) -> KVStats | None:
    """None where a scheduler does not show its memory."""
    read = getattr(scheduler, "kv_stats", None)
    if read is not None:
        stats: KVStats = read()
        return stats
    look = _LOOKS.get(scheduler.name)
    return None if look is None else look(scheduler, bytes_per_token)


def _vllm(scheduler: Any, bytes_per_token: int) -> KVStats:
    """Block 0 is the null block and belongs to nobody."""
    pool, size = scheduler.pool, scheduler.block_size
    usable = scheduler.options.num_gpu_blocks - 1
    tokens = scheduler.decoding.num_kv_tokens + sum(r.computed for r in scheduler.prefilling)
    return _stats(
        size * bytes_per_token,
        usable,
        pool.num_free,
        pool.num_evictable,
        tokens * bytes_per_token,
        len(scheduler.running),
    )


def _sglang(scheduler: Any, bytes_per_token: int) -> KVStats:
    """Pages; a page is one token unless configured otherwise, and then its empty rest is not told apart here."""
    state = scheduler.state
    pages, size = state.pool.num_pages, state.pool.page_size
    cached = state.tree.num_evictable // size
    free = state.pool.num_free_pages + cached
    held = (pages - free) * size * bytes_per_token
    return _stats(size * bytes_per_token, pages, free, cached, held, len(state.requests))


def _tensorrt_llm(scheduler: Any, bytes_per_token: int) -> KVStats:
    pool, size = scheduler.pool, scheduler.block_size
    tokens = scheduler.decoding.num_kv_tokens + sum(r.computed for r in scheduler.contexts)
    cached = pool.num_evictable if scheduler.reuse else 0
    return _stats(
        size * bytes_per_token,
        pool.num_blocks,
        pool.num_free,
        cached,
        tokens * bytes_per_token,
        len(scheduler.active),
    )


_LOOKS = {"vllm": _vllm, "sglang": _sglang, "tensorrt_llm": _tensorrt_llm}


def _stats(
    block_bytes: int, num_blocks: int, num_free: int, num_cached: int, token_bytes: int, num_requests: int
) -> KVStats:
    """`num_free` includes the cached ones."""
    held = (num_blocks - num_free) * block_bytes
    empty = (num_free - num_cached) * block_bytes
    return KVStats(
        capacity_bytes=num_blocks * block_bytes,
        reserved_bytes=held,
        token_bytes=min(token_bytes, held),
        cached_bytes=num_cached * block_bytes,
        free_bytes=empty,
        largest_free_bytes=empty,
        num_requests=num_requests,
    )
