"""The tensors under a KV manager: one pool in the arena, one layout for every kind of cache (`labkit.kernels.layout`).

    k_cache[layer], v_cache[layer]   [num_blocks, block_size, num_kv_heads, head_dim], dtype of the cache
    k_scale[layer], v_scale[layer]   [num_blocks, block_size, num_kv_heads] float32, quantised caches only
    latent attention                 k_cache[layer] [num_blocks, block_size, 1, latent_dim + rope_dim], no v_cache

In the pool all keys of layer 0 come first, then its values, then layer 1, ...; the scales follow at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit.errors import LabError
from labkit.kernels import move_slots
from labkit.kv import KVCacheManager, Move
from labkit.kv.spec import QUANTIZED, KVSpec, supported_dtypes
from labkit.memory import Arena
from labkit.serving.tensor_memory import TensorMemory

TORCH_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


class KVPool:
    """`num_slots` rows for each layer, cut into blocks of the manager's size (a contiguous cache: of one slot).

    Raises `LabError` when the manager counts other bytes a token than the tensors have.
    """

    def __init__(self, manager: KVCacheManager, spec: KVSpec, memory: TensorMemory):
        if manager.bytes_per_token != spec.bytes_per_token:
            raise LabError(
                f"the KV manager counts {manager.bytes_per_token} bytes a token and the model's cache has "
                f"{spec.bytes_per_token}; build it with bytes_per_token={spec.bytes_per_token}"
            )
        if memory.device.startswith("cuda"):
            check_dtype(spec.dtype, torch.cuda.get_device_capability(memory.device))
        self.spec, self.block_size, self.num_slots = spec, manager.block_size, manager.num_slots
        dtype, rows, layers = TORCH_DTYPES[spec.dtype], self.num_slots * spec.num_kv_heads, spec.num_layers
        pool_bytes = manager.capacity_tokens * spec.bytes_per_token
        self.block = memory.new("kv_cache", (pool_bytes,), torch.uint8, "KV pool")
        buffer = self.block.tensor
        if self.num_slots > manager.capacity_tokens:
            # addresses of their own, as a driver would reserve them; pages exist once written, as if mapped from the
            # pool, whose own addresses stay untouched
            buffer = Arena(self.num_slots * spec.bytes_per_token, device=memory.device).buffer
        sides = 1 if spec.latent_dim else 2
        num_bytes = layers * sides * rows * spec.head_dim * dtype.itemsize
        shape = (layers, sides, -1, self.block_size, spec.num_kv_heads, spec.head_dim)
        caches = buffer[:num_bytes].view(dtype).view(shape)
        self.k_cache = list(caches[:, 0])
        self.v_cache = [] if spec.latent_dim else list(caches[:, 1])
        self.k_scale: list[torch.Tensor | None] = [None] * layers
        self.v_scale: list[torch.Tensor | None] = [None] * layers
        if spec.dtype in QUANTIZED:
            scales = buffer[num_bytes:].view(torch.float32).view(shape[:-1])
            self.k_scale, self.v_scale = list(scales[:, 0]), list(scales[:, 1])
        self.num_moved_bytes = 0

    def move(self, moves: Sequence[Move]) -> None:
        """Copy token rows of all layers, in the order given."""
        if moves:
            tensors = [*self.k_cache, *self.v_cache, *self.k_scale, *self.v_scale]
            self.num_moved_bytes += move_slots([t.flatten(0, 1) for t in tensors if t is not None], moves)


def check_dtype(dtype: str, capability: tuple[int, int]) -> None:
    """Raises `LabError` for fp8 on a device of compute capability below 8.9."""
    if not supported_dtypes(capability)[dtype]:
        raise LabError(
            f"KV dtype {dtype} is not supported on sm_{capability[0]}{capability[1]}; it needs sm_89 or newer"
        )
