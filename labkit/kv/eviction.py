"""Which idle cached thing goes first when room is needed. A policy is one key: the smallest is evicted.

| name | key | evicts first |
| --- | --- | --- |
| lru | last use | what nobody has held for longest |
| lfu | hits, last use | what was hit least |
| fifo | creation | what was cached first, used or not |
| priority | priority, last use | the least dear; a priority falls back to 0 when its time to live is over |

Time is a count of cache operations except for the time to live, which is in seconds of the load (`set_time`). Rules of
the real systems: vLLM evicts by time of last release (`core/block_pool.py`), SGLang offers the first three and more
(`mem_cache/evict_policy.py`), TensorRT-LLM has priorities with a duration (`batch_manager/evictionPolicy.cpp`).
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from labkit.registry import Registry


@dataclass(slots=True, eq=False)
class Entry:
    """What a policy may look at. `item` is the cached thing itself: a block of a hash chain, a node of a tree."""

    item: Any
    created: int
    last_used: int = 0
    num_hits: int = 0
    priority: int = 0
    expires_s: float = math.inf
    #: bumped whenever the place in the queue becomes stale
    version: int = 0


class EvictionQueue(ABC):
    """Entries that may be evicted now, ordered by `key`. `add` and `pop` cost O(log n); entries that were discarded stay
    in the heap as stale rows and are dropped when met, or all together when they outnumber the live ones."""

    name: str

    def __init__(self) -> None:
        self._heap: list[tuple[tuple, int, Entry]] = []
        self._num_live = 0
        self._num_added = 0

    @abstractmethod
    def key(self, entry: Entry) -> tuple: ...

    def __len__(self) -> int:
        return self._num_live

    def add(self, entry: Entry) -> None:
        """`entry` became evictable."""
        self._num_live += 1
        self._push(entry)

    def discard(self, entry: Entry) -> None:
        """It is held again, or gone."""
        self._num_live -= 1
        entry.version += 1
        if len(self._heap) > 2 * self._num_live + 64:
            self._heap = [row for row in self._heap if row[1] == row[2].version]
            heapq.heapify(self._heap)

    def pop(self, now_s: float) -> Entry | None:
        """Remove and return the first; None when empty."""
        while self._heap:
            _, version, entry = heapq.heappop(self._heap)
            if version == entry.version:
                self._num_live -= 1
                entry.version += 1
                return entry
        return None

    def _push(self, entry: Entry) -> None:
        # the version is unique per push of an entry, so that equal keys never compare entries
        self._num_added += 1
        entry.version = self._num_added
        heapq.heappush(self._heap, (self.key(entry), entry.version, entry))


EVICTION: Registry[type[EvictionQueue]] = Registry("eviction policy")


@EVICTION.register("lru")
class LRU(EvictionQueue):
    """The entry that has not been used for longest goes first."""

    name = "lru"

    def key(self, entry: Entry) -> tuple:
        return (entry.last_used,)


@EVICTION.register("lfu")
class LFU(EvictionQueue):
    """The entry with the fewest hits goes first."""

    name = "lfu"

    def key(self, entry: Entry) -> tuple:
        return (entry.num_hits, entry.last_used)


@EVICTION.register("fifo")
class FIFO(EvictionQueue):
    """The entry that was created first goes first."""

    name = "fifo"

    def key(self, entry: Entry) -> tuple:
        return (entry.created,)


@EVICTION.register("priority")
class Priority(EvictionQueue):
    """A second heap knows which entry's time is over next."""

    name = "priority"

    def __init__(self) -> None:
        super().__init__()
        self._expiring: list[tuple[float, int, Entry]] = []

    def key(self, entry: Entry) -> tuple:
        return (entry.priority, entry.last_used)

    def discard(self, entry: Entry) -> None:
        super().discard(entry)
        if len(self._expiring) > 2 * self._num_live + 64:
            self._expiring = [row for row in self._expiring if row[1] == row[2].version]
            heapq.heapify(self._expiring)

    def pop(self, now_s: float) -> Entry | None:
        while self._expiring and self._expiring[0][0] <= now_s:
            _, version, entry = heapq.heappop(self._expiring)
            if version == entry.version:
                entry.priority, entry.expires_s = min(entry.priority, 0), math.inf
                self._push(entry)  # the row with the old priority is stale from here on
        return super().pop(now_s)

    def _push(self, entry: Entry) -> None:
        super()._push(entry)
        if entry.expires_s < math.inf:
            heapq.heappush(self._expiring, (entry.expires_s, entry.version, entry))
