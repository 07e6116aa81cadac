"""PyTorch's CUDA caching allocator as a model: settings, rounding, pools, expandable segments, release, replay."""

from __future__ import annotations

from labkit.memory.caching.allocator import CachingAllocator
from labkit.memory.caching.settings import AllocatorConfError, AllocatorSettings

__all__ = ["AllocatorConfError", "AllocatorSettings", "CachingAllocator"]
