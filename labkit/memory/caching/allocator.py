"""`CachingAllocator`: PyTorch 2.14's CUDA caching allocator, decision for decision.

Source: c10/cuda/CUDACachingAllocator.cpp, class `DeviceCachingAllocator`. docs/allocators.md lists the rules and the
release; docs/recordings.md says how equality with the real code is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from labkit.errors import LabError
from labkit.memory.base import (
    ALLOCATORS,
    Allocation,
    Allocator,
    AllocatorStats,
    Span,
    checked_size,
    not_live,
)
from labkit.memory.caching import integrity, report
from labkit.memory.caching.blocks import Block, BlockPool, PoolId, Segment
from labkit.memory.caching.device import AddressPolicy, SimulatedDevice
from labkit.memory.caching.history import TraceEntry
from labkit.memory.caching.pending import PendingFrees
from labkit.memory.caching.private_pools import PrivatePools
from labkit.memory.caching.release import release_cached
from labkit.memory.caching.rounding import SMALL_SIZE, round_size
from labkit.memory.caching.search import find_free, from_device
from labkit.memory.caching.settings import AllocatorSettings
from labkit.memory.caching.splitting import cut, free_block
from labkit.memory.caching.stats import PoolStats, Stat

ONE_EIB = 1 << 60


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
    address_policy   where segments lie (`SimulatedDevice`); no decision depends on it
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
        self.private_pools = PrivatePools()
        self.pending = PendingFrees(self)
        self._num_ordinals = 0

    # --- the contract

    def malloc(self, size: int, *, tag: str = "", lifetime: str = "", stream: int = 0) -> Allocation:
        """As in the contract; `stream` is the stream that may use it. Raises `OutOfMemory` after every attempt failed
        (by then all cached segments have gone back to the device)."""
        if type(size) is not int or size <= 0:
            size = checked_size(size)
        if size >= ONE_EIB:
            raise report.out_of_memory(self, size)
        if self.pending.queues:
            self.pending.process()
        settings = self.settings
        rounded = round_size(size, settings.divisions)
        private = self.private_pools.active
        if private is None:
            pool = self.small_pool if rounded <= SMALL_SIZE else self.large_pool
        else:
            pool = private.small if rounded <= SMALL_SIZE else private.large
        found = find_free(self, pool, stream, rounded) or from_device(self, pool, stream, rounded)
        if found is None:
            self.record("oom", self.device.free_bytes, rounded, stream, pool.pool_id)
            self.num_ooms += 1
            raise report.out_of_memory(self, size)
        block = cut(self, found, rounded)
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
            self.pending.add(block, block.stream_uses)
            block.stream_uses = None
        else:
            free_block(self, block)

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
        return report.layout(self)

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

    def held_bytes(self) -> tuple[int, int]:
        return self.all_stats.allocated_bytes.current, self.reserved_bytes

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
        self.pending.busy_streams.add(stream)

    def finish_stream(self, stream: int) -> None:
        """The work of `stream` is done; the next malloc notices."""
        self.pending.busy_streams.discard(stream)

    def process_events(self) -> None:
        """Really free what waited for events that are done now."""
        self.pending.process()

    def create_pool(self) -> PoolId:
        """`torch.cuda.MemPool()`: a private pool with one user."""
        return self.private_pools.create(self.small_pool.stats, self.large_pool.stats)

    @contextmanager
    def use_pool(self, pool_id: PoolId) -> Iterator[None]:
        """`torch.cuda.use_mem_pool`: allocations inside the `with` block come from this pool."""
        pools = self.private_pools
        outer, pools.active = pools.active, pools.find(pool_id)
        try:
            yield
        finally:
            pools.active = outer

    def release_pool(self, pool_id: PoolId) -> None:
        """The pool's user is gone; its segments go back at the next release of cached segments."""
        pool = self.private_pools.find(pool_id)
        pool.use_count = max(pool.use_count - 1, 0)

    @property
    def num_free_blocks(self) -> int:
        return sum(len(entries) for pool in self.pools() for entries in pool.free.values())

    @property
    def largest_free_block(self) -> int:
        return max((e[-1][0] for pool in self.pools() for e in pool.free.values() if e), default=0)

    def memory_stats(self) -> dict[str, int]:
        """Keys and values of `torch.cuda.memory_stats`."""
        return report.memory_stats(self)

    # --- shared with the other modules of this package

    def pools(self) -> Iterator[BlockPool]:
        """Small and large pool, then those of every private pool."""
        yield self.small_pool
        yield self.large_pool
        for private in self.private_pools.values():
            yield private.small
            yield private.large

    def record(self, action: str, addr: int, size: int, stream: int, pool_id: PoolId) -> None:
        """Note an event of `size` bytes, where a history is kept."""
        if self.history is not None:
            self.history.append(TraceEntry(action, addr, size, stream, pool_id))

    def next_ordinal(self) -> int:
        """The number of the next segment, in creation order."""
        self._num_ordinals += 1
        return self._num_ordinals - 1

    def count_reserved(self, pool: BlockPool, size: int) -> None:
        """One successful device allocation or mapping of `size` bytes."""
        self.reserved_bytes += size
        self.num_device_alloc += 1
        for stats in (self.all_stats, pool.stats):
            stats.reserved_bytes.increase(size)

    def count_unreserved(self, pool: BlockPool, size: int) -> None:
        """One device free or unmapping of `size` bytes."""
        self.reserved_bytes -= size
        self.num_device_free += 1
        for stats in (self.all_stats, pool.stats):
            stats.reserved_bytes.decrease(size)

    def _owns(self, block: Block) -> bool:
        return self.segments.get(block.segment.ordinal) is block.segment
