"""Virtually contiguous KV cache: one run of addresses for each request, memory mapped under it as it grows (Prabhu et al.,
"vAttention", ASPLOS 2025).

The kernel sees a contiguous cache and needs no block table; the memory-management unit does the translation. What is
wasted is the rest of the last granule. A driver maps granules of 2 MiB, and keys and values of each layer lie in ranges
of their own, so one more granule everywhere holds

    granule_tokens = granule_bytes * num_ranges / bytes_per_token,   num_ranges = 2 * num_layers

tokens: 1,024 for Llama-3.1-8B in 16 bits (2 KiB a token, layer and side). That is the price against blocks of 16.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.errors import LabError
from labkit.kv.base import Grown, KVStats, Move, NoSpace, positive
from labkit.kv.contiguous import ContiguousKVCache, Run
from labkit.memory import Allocation
from labkit.memory.virtual_memory import VirtualMemoryAllocator
from labkit.units import MIB


class VirtualContiguousKVCache(ContiguousKVCache):
    """Every request gets `max_model_len` addresses (default: the capacity), for at most `max_num_seqs` at once. The
    allocator underneath counts in token slots; `granule_tokens` of them are mapped together."""

    name = "virtual-contiguous"
    allocator: VirtualMemoryAllocator

    def __init__(
        self,
        capacity_tokens: int,
        bytes_per_token: int,
        *,
        granule_bytes: int = 2 * MIB,
        num_ranges: int = 1,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
    ):
        positive(bytes_per_token, "bytes_per_token")
        total = positive(granule_bytes, "granule_bytes") * positive(num_ranges, "num_ranges")
        self.granule_tokens = total // bytes_per_token
        num_granules = capacity_tokens // self.granule_tokens if self.granule_tokens else 0
        if not num_granules:
            raise LabError(
                f"granule_bytes {granule_bytes} in {num_ranges} ranges holds {self.granule_tokens} tokens and the cache "
                f"{capacity_tokens}; a granule must hold at least one token and the cache at least one granule"
            )
        capacity_tokens = num_granules * self.granule_tokens
        self.max_model_len = positive(max_model_len or capacity_tokens, "max_model_len")
        addresses = -(-self.max_model_len // self.granule_tokens) * self.granule_tokens
        allocator = VirtualMemoryAllocator(
            capacity_tokens,
            granule_bytes=self.granule_tokens,
            virtual_bytes=addresses * positive(max_num_seqs, "max_num_seqs"),
        )
        super().__init__(allocator, bytes_per_token)
        self.num_slots = addresses * max_num_seqs

    def reservation(self, num_tokens: int, max_tokens: int, final_tokens: int | None) -> int:
        if max(num_tokens, max_tokens) > self.max_model_len:
            raise LabError(
                f"max_tokens is {max(num_tokens, max_tokens)}; the address range of a request has "
                f"max_model_len={self.max_model_len}"
            )
        return self._whole_granules(num_tokens)

    def stats(self) -> KVStats:
        inner, per_token = self.allocator.stats(), self.bytes_per_token
        free = (self.capacity_tokens - inner.allocated_bytes) * per_token
        return KVStats(
            capacity_bytes=self.capacity_tokens * per_token,
            reserved_bytes=inner.allocated_bytes * per_token,
            token_bytes=self._num_tokens * per_token,
            cached_bytes=0,
            free_bytes=free,
            largest_free_bytes=free,
            num_requests=len(self._runs),
            num_moved_bytes=self._num_moved_tokens * per_token,
        )

    def _place(self, request_id: str, num_slots: int) -> tuple[Allocation, Sequence[Move]]:
        reserve = max(num_slots, self.max_model_len)
        return self.allocator.malloc(num_slots, tag=request_id, lifetime="private", reserve=reserve), ()

    def _lengthen(self, request_id: str, run: Run, num_tokens: int) -> Grown:
        if not self.allocator.try_grow(run.allocation, self._whole_granules(num_tokens)):
            free = self.num_free_blocks // self.granule_tokens
            raise NoSpace(
                f"request {request_id} needs {num_tokens} slots, more granules than the {free} free ones"
                if num_tokens <= self.max_model_len
                else f"request {request_id} needs {num_tokens} slots; its address range has {self.max_model_len}"
            )
        return Grown()

    def _whole_granules(self, num_tokens: int) -> int:
        return -(-num_tokens // self.granule_tokens) * self.granule_tokens
