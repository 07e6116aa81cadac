"""What a `CachingAllocator` tells about itself: statistics under PyTorch's names, its layout, and why it refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.memory.base import OutOfMemory, Span, SpanState
from labkit.memory.caching.settings import UNLIMITED

if TYPE_CHECKING:
    from labkit.memory.caching.allocator import CachingAllocator

_SPAN_STATE: dict[str, SpanState] = {
    "active_allocated": "allocated",
    "active_pending_free": "pending",
    "inactive": "free",
}


def memory_stats(allocator: CachingAllocator) -> dict[str, int]:
    """Keys and values of `torch.cuda.memory_stats` (without its pinned-memory part)."""
    limit = allocator.settings.max_split_size
    oversize = {
        "oversize_allocations": allocator.oversize_allocations,
        "oversize_segments": allocator.oversize_segments,
    }
    return {
        **allocator.all_stats.flat("all"),
        **allocator.small_pool.stats.flat("small_pool"),
        **allocator.large_pool.stats.flat("large_pool"),
        **{f"{name}.{k}": value for name, stat in oversize.items() for k, value in stat.as_dict().items()},
        "max_split_size": -1 if limit == UNLIMITED else limit,
        "num_alloc_retries": allocator.num_alloc_retries,
        "num_device_alloc": allocator.num_device_alloc,
        "num_device_free": allocator.num_device_free,
        "num_oom_rejections": 0,  # stayed 0 in the recordings with throw_on_cudamalloc_oom, too
        "num_ooms": allocator.num_ooms,
        "num_sync_all_streams": allocator.num_sync_all_streams,
    }


def layout(allocator: CachingAllocator) -> list[Span]:
    """Every block in address order; `Span.segment` is the creation order of its segment."""
    spans = [
        Span(
            block.offset,
            block.size,
            _SPAN_STATE[block.state] if block.mapped else "unmapped",
            block.requested if block.allocated else 0,
            block.tag if block.allocated else "",
            block.lifetime if block.allocated else "",
            segment.ordinal,
        )
        for segment in allocator.segments.values()
        for block in segment.blocks()
    ]
    return sorted(spans, key=lambda span: span.offset)


def out_of_memory(allocator: CachingAllocator, requested: int) -> OutOfMemory:
    """The refusal with its numbers. Free is what is cached and not active, and what the device could still give (as
    one span), under the memory fraction if there is one."""
    limit = allocator.capacity_bytes if allocator.memory_limit is None else allocator.memory_limit
    left = max(min(limit - allocator.reserved_bytes, allocator.device.free_bytes), 0)
    stats = allocator.all_stats
    return OutOfMemory(
        requested,
        capacity=limit,
        reserved=allocator.reserved_bytes,
        allocated=stats.allocated_bytes.current,
        free=allocator.reserved_bytes - stats.active_bytes.current + left,
        num_free_spans=allocator.num_free_blocks + bool(left),
        largest_free=max(allocator.largest_free_block, left),
    )
