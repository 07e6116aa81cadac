"""A real tensor under an allocator's offsets: the same integers, now with bytes behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.errors import LabError
from labkit.memory.base import Allocation, checked_size

if TYPE_CHECKING:
    import torch


class Arena:
    """`buffer` is one `uint8` tensor `[num_bytes]`; every view shares its storage, nothing is copied.

    On a CPU the pages behind it exist only once written, so a large, thinly used arena costs little. Make it as long
    as the allocator's `address_space_bytes`. torch is imported when the first arena is made.
    """

    def __init__(self, num_bytes: int, *, device: str = "cpu"):
        import torch

        self.num_bytes = checked_size(num_bytes, "num_bytes")
        self.buffer = torch.empty(self.num_bytes, dtype=torch.uint8, device=device)

    def bytes_of(self, allocation: Allocation) -> torch.Tensor:
        """The allocation's own bytes, `uint8 [size]`."""
        if allocation.offset < 0 or allocation.offset + allocation.size > self.num_bytes:
            raise LabError(
                f"allocation [{allocation.offset}, {allocation.offset + allocation.size}) lies outside the arena of "
                f"{self.num_bytes} bytes; make the arena as long as the allocator's address_space_bytes"
            )
        return self.buffer[allocation.offset : allocation.offset + allocation.size]

    def view(self, allocation: Allocation, shape: tuple[int, ...], dtype: Any) -> torch.Tensor:
        """The allocation's first bytes as a tensor of `shape` and `dtype`.

        Raises `LabError` when it is too short, or starts where that dtype cannot (allocate with `alignment_bytes`).
        """
        import math

        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes > allocation.size:
            raise LabError(
                f"shape {shape} of {dtype} needs {num_bytes} bytes; the allocation has {allocation.size}"
            )
        if allocation.offset % dtype.itemsize:
            raise LabError(
                f"offset {allocation.offset} is not a multiple of {dtype.itemsize}, the size of {dtype}"
            )
        return self.bytes_of(allocation)[:num_bytes].view(dtype).view(shape)

    def copy(self, source: Allocation, target: Allocation, num_bytes: int) -> None:
        """Copy the first `num_bytes` of one live allocation to another; they must not overlap."""
        self.bytes_of(target)[:num_bytes].copy_(self.bytes_of(source)[:num_bytes])
