"""`CachingAllocator`: PyTorch 2.14's CUDA caching allocator, decision for decision.

Source: c10/cuda/CUDACachingAllocator.cpp, class `DeviceCachingAllocator`. docs/allocators.md lists the rules and the
release; docs/recordings.md says how equality with the real code is checked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.errors import LabError
from labkit.memory.base import (
    ALLOCATORS,
    Allocation,
    Allocator,
    AllocatorStats,
    OutOfMemory,
    Span,
    checked_size,
    not_live,
)
from labkit.memory.caching import integrity
from labkit.memory.caching.blocks import Block, BlockPool, PoolId, Segment
from labkit.memory.caching.device import AddressPolicy, SimulatedDevice
from labkit.memory.caching.expandable import allocate_expandable
from labkit.memory.caching.history import TraceEntry
from labkit.memory.caching.private_pools import PrivatePool
from labkit.memory.caching.release import collect_garbage, release_cached, release_oversize
from labkit.memory.caching.rounding import MIN_BLOCK_SIZE, SMALL_SIZE, device_size, round_size
from labkit.memory.caching.settings import UNLIMITED, AllocatorSettings
from labkit.memory.caching.stats import PoolStats, Stat

ONE_EIB = 1 << 60
_SPAN_STATE = {"active_allocated": "allocated", "active_pending_free": "pending", "inactive": "free"}


@ALLOCATORS.register("caching")
class CachingAllocator(Allocator):
    """Keeps what the device once gave it, cut into blocks, in a small and a large pool.

    malloc: round the size; best fit in the pool's free list of the stream; otherwise a new segment from the device
    (2 MiB for requests up to 1 MiB, 20 MiB below 10 MiB, else the size in multiples of 2 MiB); if the device
    refuses, return cached segments and try once more. The low end of a block is taken; the rest is split off when it
    is at least 512 bytes (small pool) or more than 1 MiB (large pool). free: merge with free neighbours inside the
    segment; the segment stays. O(log n) for n free blocks of the stream, more only when it talks to the device.

    alloc_conf       the string of PYTORCH_CUDA_ALLOC_CONF, e.g. "expandable_segments:True"
    memory_fraction  `torch.cuda.set_per_process_memory_fraction`
    address_policy   where segments lie ("bump", "first-fit", "descending"); no decision depends on it
    """

    name = "caching"

    def __init__(
        self,
        capacity_bytes: int,
        *,
        alloc_conf: str = "",
        memory_fraction: float | None = None,
        address_policy: AddressPolicy = "first-fit",
    ):
        self.device = SimulatedDevice(capacity_bytes, address_policy)
        self.capacity_bytes = self.device.total_bytes
        self.settings = AllocatorSettings.parse(alloc_conf)
        self.all_stats, small, large = PoolStats(), PoolStats(), PoolStats()
        self.oversize_allocations, self.oversize_segments = Stat(), Stat()
        self.small_pool, self.large_pool = BlockPool(True, small), BlockPool(False, large)
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0
        self.reserved_bytes = 0
        #: limit on reserved bytes, None when no fraction below 1 was set
        self.memory_limit: int | None = None
        self.set_memory_fraction(
            self.settings.per_process_memory_fraction if memory_fraction is None else memory_fraction
        )
        #: creation order -> segment
        self.segments: dict[int, Segment] = {}
        #: entries since `history = []`; None: nothing is recorded
        self.history: list[TraceEntry] | None = None
        self.private_pools: dict[PoolId, PrivatePool] = {}
        self._active_pool: PrivatePool | None = None
        self._num_ordinals = self._num_private_pools = 0
        self._events: dict[int, deque[Block]] = {}
        self._held_streams: set[int] = set()

    # --- the contract

    def malloc(self, size: int, *, tag: str = "", lifetime: str = "", stream: int = 0) -> Allocation:
        """As in the contract; `stream` is the stream that may use it. Raises `OutOfMemory` after every attempt failed
        (by then all cached segments have gone back to the device)."""
        if type(size) is not int or size <= 0:
            size = checked_size(size)
        if size >= ONE_EIB:
            raise self._out_of_memory(size)
        if self._events:
            self.process_events()
        settings = self.settings
        rounded = round_size(size, settings.divisions)
        if self._active_pool is None:
            pool = self.small_pool if rounded <= SMALL_SIZE else self.large_pool
        else:
            pool = self._active_pool.small if rounded <= SMALL_SIZE else self._active_pool.large
        block = self._find_free(pool, stream, rounded)
        if block is None:
            block = self._from_device(pool, stream, rounded, size)
        block = self._cut(block, rounded)
        block.allocated = True
        block.requested, block.tag, block.lifetime = size, tag, lifetime
        taken = block.size
        for stats in (self.all_stats, pool.stats):
            stats.allocation.increase(1)
            stats.allocated_bytes.increase(taken)
            stats.active.increase(1)
            stats.active_bytes.increase(taken)
            stats.requested_bytes.increase(size)
        if taken >= settings.max_split_size:
            self.oversize_allocations.increase(1)
        if self.history is not None:
            self.history.append(TraceEntry("alloc", block.offset, size, stream, pool.pool_id, tag, lifetime))
        return block

    def free(self, allocation: Allocation) -> None:
        if type(allocation) is not Block or not allocation.allocated or not self._owns(allocation):
            raise not_live(self, allocation)
        block, pool = allocation, allocation.pool
        block.allocated = False
        for stats in (self.all_stats, pool.stats):
            stats.allocation.decrease(1)
            stats.allocated_bytes.decrease(block.size)
        if block.size >= self.settings.max_split_size:
            self.oversize_allocations.decrease(1)
        self.record("free_requested", block.offset, block.requested, block.stream, pool.pool_id)
        if block.stream_uses:
            for stream in sorted(block.stream_uses):
                self._events.setdefault(stream, deque()).append(block)
                block.num_events += 1
            block.stream_uses = None
        else:
            self._free_block(block)

    def try_grow(self, allocation: Allocation, size: int) -> bool:
        """Only into the rounding slack of its own block: PyTorch never extends a block that is in use."""
        if type(allocation) is not Block or not allocation.allocated or not self._owns(allocation):
            raise not_live(self, allocation)
        if checked_size(size) > allocation.size:
            return False
        for stats in (self.all_stats, allocation.pool.stats):
            stats.requested_bytes.increase(max(size - allocation.requested, 0))
        allocation.requested = max(size, allocation.requested)
        return True

    def layout(self) -> list[Span]:
        spans = [
            Span(
                block.offset,
                block.size,
                _SPAN_STATE[block.state] if block.mapped else "unmapped",  # type: ignore[arg-type]
                block.requested if block.allocated else 0,
                block.tag if block.allocated else "",
                block.lifetime if block.allocated else "",
                segment.ordinal,
            )
            for segment in self.segments.values()
            for block in segment.blocks()
        ]
        return sorted(spans, key=lambda span: span.offset)

    def stats(self) -> AllocatorStats:
        stats = self.all_stats
        return AllocatorStats(
            capacity_bytes=self.capacity_bytes,
            reserved_bytes=self.reserved_bytes,
            active_bytes=stats.active_bytes.current,
            allocated_bytes=stats.allocated_bytes.current,
            requested_bytes=stats.requested_bytes.current,
            free_bytes=self.reserved_bytes - stats.active_bytes.current,
            num_free_spans=self.num_free_blocks,
            largest_free_bytes=self.largest_free_block,
            num_allocations=stats.allocation.current,
            num_ooms=self.num_ooms,
        )

    def check_integrity(self) -> None:
        integrity.check(self)

    @property
    def address_space_bytes(self) -> int:
        virtual = max((start + size for start, size in self.device.reservations), default=0)
        return max(self.capacity_bytes, self.device.high_water, virtual)

    # --- what else PyTorch offers

    def empty_cache(self) -> None:
        """`torch.cuda.empty_cache`: return every segment that is wholly free."""
        release_cached(self)

    def set_memory_fraction(self, fraction: float) -> None:
        """`torch.cuda.set_per_process_memory_fraction`: reserve at most floor(fraction * capacity); 1 lifts it."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise LabError(f"invalid fraction: {fraction!r}. Please set within [0, 1].")
        self.memory_limit = int(fraction * self.capacity_bytes) if fraction < 1 else None

    def set_allocator_settings(self, alloc_conf: str) -> None:
        """`torch.cuda.memory._set_allocator_settings`: blocks stay as they are, later decisions follow the string."""
        self.settings.set(alloc_conf)

    def record_stream(self, allocation: Allocation, stream: int) -> None:
        """`Tensor.record_stream`: a later free waits until the work of `stream` up to that free is done."""
        if type(allocation) is not Block or not allocation.allocated or not self._owns(allocation):
            raise not_live(self, allocation)
        if stream != allocation.stream:
            allocation.stream_uses = (allocation.stream_uses or set()) | {stream}

    def hold_stream(self, stream: int) -> None:
        """From now on `stream` is busy: its events stay unfinished until `finish_stream`."""
        self._held_streams.add(stream)

    def finish_stream(self, stream: int) -> None:
        """The work of `stream` is done; the next malloc notices."""
        self._held_streams.discard(stream)

    def process_events(self) -> None:
        """Really free what waited for events that are done now."""
        for stream in list(self._events):
            if stream not in self._held_streams:
                self._finish_events(stream)

    def synchronize_and_free_events(self) -> None:
        """Wait for every stream, and free what waited."""
        self.num_sync_all_streams += 1
        for stream in list(self._events):
            self._finish_events(stream)

    def create_pool(self) -> PoolId:
        """`torch.cuda.MemPool()`: a private pool with one user."""
        self._num_private_pools += 1
        pool_id = (0, self._num_private_pools)
        self.private_pools[pool_id] = PrivatePool(pool_id, self.small_pool.stats, self.large_pool.stats)
        return pool_id

    @contextmanager
    def use_pool(self, pool_id: PoolId) -> Iterator[None]:
        """`torch.cuda.use_mem_pool`: allocations inside the `with` block come from this pool."""
        outer, self._active_pool = self._active_pool, self._private_pool(pool_id)
        try:
            yield
        finally:
            self._active_pool = outer

    def release_pool(self, pool_id: PoolId) -> None:
        """The pool's user is gone; its segments go back at the next release of cached segments."""
        pool = self._private_pool(pool_id)
        pool.use_count = max(pool.use_count - 1, 0)

    @property
    def num_free_blocks(self) -> int:
        return sum(len(entries) for pool in self.pools() for entries in pool.free.values())

    @property
    def largest_free_block(self) -> int:
        return max((e[-1][0] for pool in self.pools() for e in pool.free.values() if e), default=0)

    def memory_stats(self) -> dict[str, int]:
        """Keys and values of `torch.cuda.memory_stats` (without its pinned-memory part)."""
        unlimited = self.settings.max_split_size == UNLIMITED
        return {
            **self.all_stats.flat("all"),
            **self.small_pool.stats.flat("small_pool"),
            **self.large_pool.stats.flat("large_pool"),
            **{f"oversize_allocations.{k}": v for k, v in self.oversize_allocations.as_dict().items()},
            **{f"oversize_segments.{k}": v for k, v in self.oversize_segments.as_dict().items()},
            "max_split_size": -1 if unlimited else self.settings.max_split_size,
            "num_alloc_retries": self.num_alloc_retries,
            "num_device_alloc": self.num_device_alloc,
            "num_device_free": self.num_device_free,
            "num_oom_rejections": 0,
            "num_ooms": self.num_ooms,
            "num_sync_all_streams": self.num_sync_all_streams,
        }

    # --- how malloc finds its block

    def _find_free(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        """Best fit in the free list, taken off it (`get_free_block`)."""
        settings = self.settings
        if settings.garbage_collection_threshold and self.memory_limit is not None:
            pool.num_searches += 1
        entries = pool.free.get(stream)
        if not entries:
            return None
        place = bisect_left(entries, (size,))
        if place == len(entries):
            return None
        block = entries[place][3]
        if block.expandable is not None:
            place = self._skip_expandable(entries, place)
            if place == len(entries):
                return None
            block = entries[place][3]
        limit = settings.max_split_size
        if size < limit:
            if block.size >= limit:
                return None
        elif block.size >= size + settings.max_non_split_rounding_size:
            return None
        del entries[place]
        return block

    def _skip_expandable(self, entries: list, place: int) -> int:
        """From the first long-enough entry, on while the next one can grow less; past all expandable ones when the
        setting was turned off meanwhile."""
        if not self.settings.expandable_segments:
            while place < len(entries) and entries[place][3].expandable is not None:
                place += 1
            return place
        while place + 1 < len(entries) and entries[place][3].expandable is not None:
            if _growth(entries[place + 1][3]) >= _growth(entries[place][3]):
                break
            place += 1
        return place

    def _from_device(self, pool: BlockPool, stream: int, rounded: int, requested: int) -> Block:
        """The attempts after the free list had nothing; raises `OutOfMemory` after the last."""
        if self.memory_limit is not None and self.settings.garbage_collection_threshold > 0:
            collect_garbage(self)
        block = self._new_block(pool, stream, rounded)
        if block is None and release_oversize(self, pool, stream, rounded):
            block = self._new_block(pool, stream, rounded)
        if block is None:
            release_cached(self)
            self.num_alloc_retries += 1
            block = self._new_block(pool, stream, rounded)
        if block is None:
            self.record("oom", self.device.free_bytes, rounded, stream, pool.pool_id)
            self.num_ooms += 1
            raise self._out_of_memory(requested)
        return block

    def _new_block(self, pool: BlockPool, stream: int, rounded: int) -> Block | None:
        """One device attempt (`alloc_block`)."""
        size = device_size(rounded, self.settings)
        if self.memory_limit is not None and self.reserved_bytes + size > self.memory_limit:
            return None
        if self.settings.expandable_segments:
            return allocate_expandable(self, pool, stream, rounded)
        address = self.device.malloc(size)
        if address is None:
            return None
        segment = Segment(self.next_ordinal(), address, size, pool, stream)
        block = segment.head = Block(segment, address, size)
        self.segments[segment.ordinal] = segment
        self.count_reserved(pool, size)
        for stats in (self.all_stats, pool.stats):
            stats.segment.increase(1)
        if size >= self.settings.max_split_size:
            self.oversize_segments.increase(1)
        self.record("segment_alloc", address, size, stream, pool.pool_id)
        return block

    def _cut(self, block: Block, size: int) -> Block:
        """A fresh block for the caller at the low end of `block`; the rest goes back to the free list if it is worth
        splitting off (`should_split`, `alloc_found_block`)."""
        pool, remaining = block.pool, block.size - size
        was_split = block.prev is not None or block.next is not None
        if pool.is_small or self.settings.expandable_segments:
            split = remaining >= MIN_BLOCK_SIZE
        else:
            split = remaining > SMALL_SIZE and size < self.settings.max_split_size
        counted = (self.all_stats, pool.stats) if block.expandable is None else ()
        if not split:
            taken = Block(block.segment, block.offset, block.size, block.expandable)
            taken.take_place_of(block)
            if was_split:
                for stats in counted:
                    stats.inactive_split.decrease(1)
                    stats.inactive_split_bytes.decrease(block.size)
            return taken
        taken = Block(block.segment, block.offset, size, block.expandable)
        taken.insert_before(block)
        block.offset += size
        block.size = remaining
        pool.insert(block)
        for stats in counted:
            if was_split:
                stats.inactive_split_bytes.decrease(size)
            else:
                stats.inactive_split.increase(1)
                stats.inactive_split_bytes.increase(remaining)
        return taken

    # --- how free merges

    def _free_block(self, block: Block) -> None:
        """Merge with free neighbours and go back to the free list (`free_block`)."""
        pool, size, requested = block.pool, block.size, block.requested
        self.record("free_completed", block.offset, requested, block.stream, pool.pool_id)
        num_split = split_bytes = 0
        for neighbour in (block.prev, block.next):
            merged = self.merge(block, neighbour)
            if merged:
                num_split -= 1
                split_bytes -= merged
        pool.insert(block)
        if block.prev is not None or block.next is not None:
            num_split += 1
            split_bytes += block.size
        for stats in (self.all_stats, pool.stats):
            if block.expandable is None:
                stats.inactive_split.change(num_split)
                stats.inactive_split_bytes.change(split_bytes)
            stats.active.decrease(1)
            stats.active_bytes.decrease(size)
            stats.requested_bytes.decrease(requested)

    def merge(self, block: Block, neighbour: Block | None) -> int:
        """Swallow a neighbour that is free and equally mapped; returns its size, or 0 (`try_merge_blocks`)."""
        if (
            neighbour is None
            or neighbour.allocated
            or neighbour.num_events
            or neighbour.mapped != block.mapped
        ):
            return 0
        if neighbour.mapped:
            block.pool.remove(neighbour)
        else:
            block.pool.remove_unmapped(neighbour)
        block.swallow(neighbour)
        return neighbour.size

    # --- shared with the other modules of this package

    def pools(self) -> Iterator[BlockPool]:
        """Small and large pool, then those of every private pool."""
        yield self.small_pool
        yield self.large_pool
        for private in self.private_pools.values():
            yield private.small
            yield private.large

    def record(self, action: str, addr: int, size: int, stream: int, pool_id: PoolId) -> None:
        if self.history is not None:
            self.history.append(TraceEntry(action, addr, size, stream, pool_id))

    def next_ordinal(self) -> int:
        self._num_ordinals += 1
        return self._num_ordinals - 1

    def count_reserved(self, pool: BlockPool, size: int) -> None:
        """One successful device allocation or mapping."""
        self.reserved_bytes += size
        self.num_device_alloc += 1
        for stats in (self.all_stats, pool.stats):
            stats.reserved_bytes.increase(size)

    def count_unreserved(self, pool: BlockPool, size: int) -> None:
        """One device free or unmapping."""
        self.reserved_bytes -= size
        self.num_device_free += 1
        for stats in (self.all_stats, pool.stats):
            stats.reserved_bytes.decrease(size)

    def freeable_private_pools(self) -> list[PrivatePool]:
        return [pool for pool in self.private_pools.values() if not pool.use_count]

    def forget_if_empty(self, private: PrivatePool) -> None:
        if not any(segment.pool.pool_id == private.pool_id for segment in self.segments.values()):
            del self.private_pools[private.pool_id]

    def _finish_events(self, stream: int) -> None:
        for block in self._events.pop(stream):
            block.num_events -= 1
            if not block.num_events:
                self._free_block(block)

    def _private_pool(self, pool_id: PoolId) -> PrivatePool:
        if pool_id not in self.private_pools:
            raise LabError(f"unknown private pool {pool_id!r}; make one with create_pool()")
        return self.private_pools[pool_id]

    def _owns(self, block: Block) -> bool:
        return self.segments.get(block.segment.ordinal) is block.segment

    def _out_of_memory(self, requested: int) -> OutOfMemory:
        limit = self.capacity_bytes if self.memory_limit is None else self.memory_limit
        left = max(min(limit - self.reserved_bytes, self.device.free_bytes), 0)
        cached = self.reserved_bytes - self.all_stats.active_bytes.current
        return OutOfMemory(
            requested,
            capacity=limit,
            reserved=self.reserved_bytes,
            allocated=self.all_stats.allocated_bytes.current,
            free=cached + left,
            num_free_spans=self.num_free_blocks + bool(left),
            largest_free=max(self.largest_free_block, left),
        )


def _growth(block: Block) -> int:
    """The size a block can reach: its own and that of the unmapped block right after it."""
    behind = block.next
    return block.size + (behind.size if behind is not None and not behind.mapped else 0)
