"""Memory: allocators by name, the tensor arena under them, and fragmentation measures.

    allocator = make_allocator("best-fit", 8 * GIB)
    allocation = allocator.malloc(3 * MIB, tag="kv", lifetime="request")

Nothing here imports torch until an `Arena` is made.
"""

from __future__ import annotations

import inspect
from typing import Any

from labkit.errors import LabError
from labkit.memory import best_fit, buddy, first_fit, next_fit, pooled, size_class, virtual_memory, worst_fit
from labkit.memory.arena import Arena
from labkit.memory.base import ALLOCATORS, Allocation, Allocator, AllocatorStats, OutOfMemory, Span
from labkit.memory.caching import CachingAllocator
from labkit.memory.measures import Fragmentation, measure

__all__ = [
    "ALLOCATORS",
    "Allocation",
    "Allocator",
    "AllocatorStats",
    "Arena",
    "CachingAllocator",
    "Fragmentation",
    "OutOfMemory",
    "Span",
    "best_fit",
    "buddy",
    "first_fit",
    "make_allocator",
    "measure",
    "next_fit",
    "pooled",
    "size_class",
    "virtual_memory",
    "worst_fit",
]


def make_allocator(name: str, capacity_bytes: int, **options: Any) -> Allocator:
    """A fresh allocator of `capacity_bytes` by registry name.

    Raises `LabError` for an unknown name (listing the valid ones), an unknown option, or an option's bad value.
    """
    variant: Any = ALLOCATORS[name]
    accepted = [p for p in inspect.signature(variant).parameters if p != "capacity_bytes"]
    for option in options:
        if option not in accepted:
            raise LabError(
                f"allocator {name!r} has no option {option!r}; it takes: {', '.join(accepted) or 'none'}"
            )
    allocator: Allocator = variant(capacity_bytes, **options)
    return allocator
