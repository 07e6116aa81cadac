"""The other way round: a run of any allocator as a snapshot that PyTorch's own viewer opens.

    recorded = Recorded(make_allocator("best-fit", 8 * GIB))     # use it like the allocator itself
    ...
    write_snapshot("run.pickle", export_snapshot(recorded))

then `python -m torch.cuda._memory_viz stats run.pickle` (also `trace` and `segment_plot`), all offline. Keys and their meaning:
docs/snapshots.md. An allocator other than `CachingAllocator` becomes one large segment.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labkit.atomic_file import write_atomic
from labkit.memory.base import Allocation, Allocator, AllocatorStats, OutOfMemory, Span
from labkit.memory.caching import CachingAllocator
from labkit.memory.caching.history import TraceEntry

#: where the address space begins in a snapshot; any page-aligned number will do
BASE_ADDRESS = 0x7F00_0000_0000
_WORDS = {"allocated": "active_allocated", "pending": "active_pending_free", "free": "inactive"}


class Recorded(Allocator):
    """An allocator that remembers what it was asked: `history` has one entry an event, as PyTorch's trace does.

    `CachingAllocator` keeps such a history itself (`allocator.history = []`) and is recorded through it.
    """

    name = "recorded"

    def __init__(self, inner: Allocator):
        self.inner, self.capacity_bytes = inner, inner.capacity_bytes
        if isinstance(inner, CachingAllocator):
            inner.history = self.history = inner.history if inner.history is not None else []
        else:
            whole = not any(span.state == "unmapped" for span in inner.layout())
            self.history = [TraceEntry("segment_alloc", 0, _space(inner), 0)] if whole else []

    def malloc(self, size: int, *, tag: str = "", lifetime: str = "") -> Allocation:
        if isinstance(self.inner, CachingAllocator):
            return self.inner.malloc(size, tag=tag, lifetime=lifetime)
        try:
            allocation = self.inner.malloc(size, tag=tag, lifetime=lifetime)
        except OutOfMemory as error:
            self.history.append(TraceEntry("oom", error.free, size, 0))
            raise
        self.history.append(TraceEntry("alloc", allocation.offset, size, 0, tag=tag, lifetime=lifetime))
        return allocation

    def free(self, allocation: Allocation) -> None:
        self.inner.free(allocation)
        if not isinstance(self.inner, CachingAllocator):
            for action in ("free_requested", "free_completed"):
                self.history.append(TraceEntry(action, allocation.offset, allocation.requested, 0))

    def try_grow(self, allocation: Allocation, size: int) -> bool:
        """A growth in place is written as a free and an allocation at the same address: PyTorch's trace has no word for it."""
        before = allocation.requested
        grown = self.inner.try_grow(allocation, size)
        if grown and not isinstance(self.inner, CachingAllocator):
            for action in ("free_requested", "free_completed"):
                self.history.append(TraceEntry(action, allocation.offset, before, 0))
            self.history.append(
                TraceEntry("alloc", allocation.offset, allocation.requested, 0, tag=allocation.tag)
            )
        return grown

    @property
    def address_space_bytes(self) -> int:
        return self.inner.address_space_bytes

    def layout(self) -> list[Span]:
        return self.inner.layout()

    def stats(self) -> AllocatorStats:
        return self.inner.stats()

    def check_integrity(self) -> None:
        self.inner.check_integrity()


def export_snapshot(allocator: Allocator, history: Iterable[TraceEntry] | None = None) -> dict[str, Any]:
    """The dict that `torch.cuda.memory._snapshot` would return for this state.

    `history` defaults to what the allocator recorded. Event i gets the time i microseconds: the lab counts operations, not seconds.
    """
    recorded = history if history is not None else getattr(allocator, "history", None)
    inner = allocator.inner if isinstance(allocator, Recorded) else allocator
    caching = inner if isinstance(inner, CachingAllocator) else None
    return {
        "segments": _segments(inner, caching),
        "device_traces": [[_event(entry, index) for index, entry in enumerate(recorded or ())]],
        "allocator_settings": _settings(caching),
        "external_annotations": [],
        "host_segments": [],
        "host_traces": [],
    }


def write_snapshot(path: str | os.PathLike[str], snapshot: dict[str, Any]) -> Path:
    """Pickle it (protocol 4, plain containers) to `path`, first under a temporary name."""
    return write_atomic(path, pickle.dumps(snapshot, protocol=4))


def _segments(inner: Allocator, caching: CachingAllocator | None) -> list[dict[str, Any]]:
    """One segment for each contiguous row of mapped spans of the same segment number."""
    rows: list[list[Span]] = []
    for span in _filled(inner, caching):
        row = rows[-1] if rows else None
        if span.state == "unmapped":
            rows.append([])
        elif row and row[-1].segment == span.segment and row[-1].end == span.offset:
            row.append(span)
        else:
            rows.append([span])
    return [_segment(row, caching) for row in rows if row]


def _filled(inner: Allocator, caching: CachingAllocator | None) -> list[Span]:
    """The layout; where nothing is unmapped, an allocator holds its whole space, and gaps count as reserved."""
    spans = inner.layout()
    if caching is not None or any(span.state == "unmapped" for span in spans):
        return spans
    filled, at = [], 0
    for span in [*spans, Span(_space(inner), 0, "free")]:
        if span.offset > at:
            filled.append(Span(at, span.offset - at, "free"))
        if span.size:
            filled.append(Span(span.offset, span.size, span.state, span.requested, span.tag, span.lifetime))
        at = max(at, span.end)
    return filled


def _segment(row: list[Span], caching: CachingAllocator | None) -> dict[str, Any]:
    source = caching.segments[row[0].segment] if caching is not None else None
    active = [span for span in row if span.state in ("allocated", "pending")]
    return {
        "device": 0,
        "address": BASE_ADDRESS + row[0].offset,
        "total_size": sum(span.size for span in row),
        "allocated_size": sum(span.size for span in row if span.state == "allocated"),
        "active_size": sum(span.size for span in active),
        "requested_size": sum(_requested(span, caching) for span in active),
        "stream": source.stream if source else 0,
        "segment_type": "small" if source is not None and source.pool.is_small else "large",
        "segment_pool_id": source.pool.pool_id if source else (0, 0),
        "is_expandable": source is not None and source.head.expandable is not None,
        "frames": [],
        "blocks": [
            {
                "address": BASE_ADDRESS + span.offset,
                "size": span.size,
                "requested_size": _requested(span, caching),
                "state": _WORDS[span.state],
                "frames": _frames(span.tag, span.lifetime) if span.state == "allocated" else [],
            }
            for span in row
        ],
    }


def _requested(span: Span, caching: CachingAllocator | None) -> int:
    """A pending block still counts what was requested; `Span` does not carry it, the block does."""
    if span.state != "pending" or caching is None:
        return span.requested
    return next(b.requested for b in caching.segments[span.segment].blocks() if b.offset == span.offset)


def _event(entry: TraceEntry, index: int) -> dict[str, Any]:
    event: dict[str, Any] = {"action": entry.action}
    if entry.action == "oom":
        event["device_free"] = entry.addr
    else:
        event["addr"] = BASE_ADDRESS + entry.addr
    event |= {
        "size": entry.size,
        "stream": entry.stream,
        "time_us": index,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": entry.pool_id,
        "frames": _frames(entry.tag, entry.lifetime),
    }
    return event


def _frames(tag: str, lifetime: str) -> list[dict[str, Any]]:
    """The owner as a stack of one frame, which is what the viewer prints for a block."""
    return [{"name": tag or "untagged", "filename": lifetime or "labkit", "line": 0}]


def _settings(caching: CachingAllocator | None) -> dict[str, Any]:
    settings = caching.settings if caching is not None else None
    stats = caching.memory_stats() if caching is not None else {}
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.conf if settings else "",
        "max_split_size": stats.get("max_split_size", -1),
        "garbage_collection_threshold": settings.garbage_collection_threshold if settings else 0.0,
        "expandable_segments": settings.expandable_segments if settings else False,
        "roundup_power2_divisions": {
            str(1 << i): value for i, value in enumerate(settings.divisions if settings else [0] * 16)
        },
    }


def _space(inner: Allocator) -> int:
    return max(inner.capacity_bytes, inner.address_space_bytes)
