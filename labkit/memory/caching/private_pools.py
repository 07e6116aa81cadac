"""Private pools (`torch.cuda.MemPool`, CUDA graphs): their own small and large free lists, which nobody else uses.

Source: c10/cuda/CUDACachingAllocator.cpp, `struct PrivatePool`, `beginAllocateToPool`, `releasePool`,
`release_cached_blocks`.
"""

from __future__ import annotations

from labkit.errors import LabError
from labkit.memory.caching.blocks import BlockPool, PoolId
from labkit.memory.caching.stats import PoolStats


class PrivatePool:
    """`use_count` users keep it; with none left its free segments go back at the next release, and then the pool."""

    def __init__(self, pool_id: PoolId, small_stats: PoolStats, large_stats: PoolStats):
        self.pool_id = pool_id
        self.small = BlockPool(True, small_stats, pool_id)
        self.large = BlockPool(False, large_stats, pool_id)
        self.use_count = 1


class PrivatePools(dict[PoolId, PrivatePool]):
    """Pool id -> pool. `active` is the one that allocations go to now, None for the default pools."""

    def __init__(self) -> None:
        super().__init__()
        self.active: PrivatePool | None = None
        self._num_made = 0

    def create(self, small_stats: PoolStats, large_stats: PoolStats) -> PoolId:
        self._num_made += 1
        pool_id = (0, self._num_made)
        self[pool_id] = PrivatePool(pool_id, small_stats, large_stats)
        return pool_id

    def find(self, pool_id: PoolId) -> PrivatePool:
        if pool_id not in self:
            raise LabError(f"unknown private pool {pool_id!r}; make one with create_pool()")
        return self[pool_id]

    def without_user(self) -> list[PrivatePool]:
        return [pool for pool in self.values() if not pool.use_count]
