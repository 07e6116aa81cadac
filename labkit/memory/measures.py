"""Fragmentation measures of one instant. Each has one formula; docs/allocators.md says when each misleads.

Notation over the spans of a layout (unmapped ones are left out): free spans have sizes f_1 .. f_n, F = sum f_i,
L = max f_i. Every function takes `Allocator.layout()` (or any list of `Span`) and sizes in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labkit.errors import LabError
from labkit.memory.base import Span

Layout = Iterable[Span]


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """All measures of one layout. `requested + internal + pending + free = reserved`, in bytes."""

    reserved_bytes: int
    requested_bytes: int
    internal_bytes: int
    pending_bytes: int
    free_bytes: int
    num_free_spans: int
    largest_free_bytes: int
    inactive_split_bytes: int
    contiguity_loss: float
    internal: float
    external: float
    reserved_to_active: float


def measure(layout: Layout) -> Fragmentation:
    """Every measure in one pass over the layout."""
    spans = [span for span in layout if span.state != "unmapped"]
    total = Counter[str]()
    for span in spans:
        total[span.state] += span.size
    allocated, pending, free = total["allocated"], total["pending"], total["free"]
    sizes = free_sizes(spans)
    return Fragmentation(
        reserved_bytes=allocated + pending + free,
        requested_bytes=sum(span.requested for span in spans if span.state == "allocated"),
        internal_bytes=sum(span.size - span.requested for span in spans if span.state == "allocated"),
        pending_bytes=pending,
        free_bytes=free,
        num_free_spans=len(sizes),
        largest_free_bytes=max(sizes, default=0),
        inactive_split_bytes=inactive_split_bytes(spans),
        contiguity_loss=contiguity_loss(spans),
        internal=internal_fragmentation(spans),
        external=external_fragmentation(spans),
        reserved_to_active=reserved_to_active(spans),
    )


def free_sizes(layout: Layout) -> list[int]:
    """Sizes of the free spans in address order."""
    return [span.size for span in layout if span.state == "free"]


def contiguity_loss(layout: Layout) -> float:
    """1 - L / F: 0 when all free bytes are one span, near 1 when the largest is a small part of them.

    0 when nothing is free. Source: the usual "external fragmentation" of allocator papers and dashboards.
    """
    sizes = free_sizes(layout)
    return 1 - max(sizes) / sum(sizes) if sizes else 0.0


def internal_fragmentation(layout: Layout) -> float:
    """(allocated - requested) / allocated: share of handed-out bytes that no caller asked for (rounding, reservation).

    Source: Randell, "A note on storage fragmentation and program segmentation" (CACM 1969), which names it.
    """
    spans = [span for span in layout if span.state == "allocated"]
    allocated = sum(span.size for span in spans)
    return 1 - sum(span.requested for span in spans) / allocated if allocated else 0.0


def external_fragmentation(layout: Layout) -> float:
    """free / reserved: share of what the allocator holds that nobody uses at this instant.

    Source: Randell (1969); Johnstone and Wilson, "The memory fragmentation problem: solved?" (ISMM 1998), who take it
    at the moment of peak use, because at any other moment plain idleness counts as fragmentation.
    """
    spans = [span for span in layout if span.state != "unmapped"]
    reserved = sum(span.size for span in spans)
    return sum(free_sizes(spans)) / reserved if reserved else 0.0


def reserved_to_active(layout: Layout) -> float:
    """reserved / active (allocated + pending): 1 is perfect; infinite when something is reserved and nothing active.

    Source: `reserved_bytes` and `active_bytes` of `torch.cuda.memory_stats`.
    """
    spans = [span for span in layout if span.state != "unmapped"]
    reserved = sum(span.size for span in spans)
    active = sum(span.size for span in spans if span.state in ("allocated", "pending"))
    if active:
        return reserved / active
    return float("inf") if reserved else 1.0


def inactive_split_bytes(layout: Layout) -> int:
    """Free bytes inside segments that hold more than one block: what `empty_cache` cannot return.

    Source: `inactive_split_bytes` of `torch.cuda.memory_stats` (its counter stays 0 with expandable segments).
    """
    spans = [span for span in layout if span.state != "unmapped"]
    num_blocks = Counter(span.segment for span in spans)
    return sum(span.size for span in spans if span.state == "free" and num_blocks[span.segment] > 1)


def unusable_free_index(layout: Layout, request_bytes: int) -> float:
    """(F - s * sum floor(f_i / s)) / F: share of free bytes that requests of `s` bytes could not use, however many.

    0: all of it could be used; 1: not one such request fits (also when nothing is free).
    Source: Linux mm/vmstat.c, `unusable_free_index` (there s is a power of two of pages and the result is in
    thousandths); Gorman and Whitcroft, "The What, The Why and the Where To of Anti-Fragmentation" (OLS 2006).
    """
    if request_bytes <= 0:
        raise LabError(f"request_bytes is {request_bytes}; it must be positive")
    sizes = free_sizes(layout)
    free = sum(sizes)
    return 1 - request_bytes * sum(size // request_bytes for size in sizes) / free if free else 1.0


def usable_free_curve(layout: Layout, request_sizes: Sequence[int]) -> list[float]:
    """For each s: (sum of f_i with f_i >= s) / F, the share of free bytes that lies in spans one request of s can use.

    Starts at 1 for s = 1 and falls to 0 past the largest free span; 0 everywhere when nothing is free.
    """
    sizes = free_sizes(layout)
    free = sum(sizes)
    return [sum(size for size in sizes if size >= s) / free if free else 0.0 for s in request_sizes]
