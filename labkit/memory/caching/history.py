"""What `torch.cuda.memory._record_memory_history` keeps: one entry for each thing the allocator did."""

from __future__ import annotations

from typing import NamedTuple

from labkit.memory.caching.blocks import DEFAULT_POOL, PoolId


class TraceEntry(NamedTuple):
    """`action` is alloc, free_requested, free_completed (size = requested bytes), segment_alloc, segment_free,
    segment_map, segment_unmap, or oom (addr = bytes the device still has, size = rounded request)."""

    action: str
    addr: int
    size: int
    stream: int
    pool_id: PoolId = DEFAULT_POOL
    tag: str = ""
    lifetime: str = ""


#: actions that are calls to the device, or the error
DEVICE_ACTIONS = frozenset({"segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom"})
