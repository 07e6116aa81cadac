"""Private pools (`torch.cuda.MemPool`, CUDA graphs): their own small and large free lists, which nobody else uses.

Source: c10/cuda/CUDACachingAllocator.cpp, `struct PrivatePool`, `beginAllocateToPool`, `releasePool`.
"""

from __future__ import annotations

from labkit.memory.caching.blocks import BlockPool, PoolId
from labkit.memory.caching.stats import PoolStats


class PrivatePool:
    """`use_count` users keep it; with none left its free segments go back at the next release, and then the pool."""

    def __init__(self, pool_id: PoolId, small_stats: PoolStats, large_stats: PoolStats):
        self.pool_id = pool_id
        self.small = BlockPool(True, small_stats, pool_id)
        self.large = BlockPool(False, large_stats, pool_id)
        self.use_count = 1
