"""Frees that wait: a block that other streams used is reused only after their work up to the free is done.

Source: c10/cuda/CUDACachingAllocator.cpp, `recordStream`, `insert_events`, `process_events`,
`synchronize_and_free_events`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from labkit.memory.caching.blocks import Block
from labkit.memory.caching.splitting import free_block

if TYPE_CHECKING:
    from labkit.memory.caching.allocator import CachingAllocator


class PendingFrees:
    """One queue of freed blocks for each other stream that used them. Events are done at once, unless their stream is
    held busy (there are no kernels here, so somebody has to say what is still running)."""

    def __init__(self, allocator: CachingAllocator):
        self.allocator = allocator
        self.queues: dict[int, deque[Block]] = {}
        self.busy_streams: set[int] = set()

    def add(self, block: Block, streams: set[int]) -> None:
        """`block` was freed by its owner; record an event on each stream that used it."""
        for stream in sorted(streams):
            self.queues.setdefault(stream, deque()).append(block)
            block.num_events += 1

    def process(self) -> None:
        """Free what waited for events that are done."""
        for stream in [stream for stream in self.queues if stream not in self.busy_streams]:
            self._finish(stream)

    def synchronize(self) -> None:
        """Wait for every stream, and free what waited."""
        for stream in list(self.queues):
            self._finish(stream)

    def _finish(self, stream: int) -> None:
        for block in self.queues.pop(stream):
            block.num_events -= 1
            if not block.num_events:
                free_block(self.allocator, block)
