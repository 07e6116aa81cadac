"""From the size that a caller asks for to the size that is taken, and to the size that is asked of the device.

Source: c10/cuda/CUDACachingAllocator.cpp (`round_size`, `roundup_power2_next_division`, `get_allocation_size`) and
c10/core/AllocatorConfig.h (the constants), PyTorch 2.14.
"""

from __future__ import annotations

from labkit.memory.caching.settings import NUM_INTERVALS, AllocatorSettings
from labkit.units import MIB

MIN_BLOCK_SIZE = 512
SMALL_SIZE = 1 * MIB  # the largest rounded size that goes to the small pool
SMALL_BUFFER = 2 * MIB  # the segment that small ones are cut from
MIN_LARGE_ALLOC = 10 * MIB  # from here a request gets its own segment
ROUND_LARGE = 2 * MIB  # ... rounded up to a multiple of this


def round_size(size: int, divisions: list[int]) -> int:
    """Bytes taken for a request of `size` bytes; a multiple of 512 unless divisions say otherwise.

    | size                                   | rounded up to                                        |
    |----------------------------------------|------------------------------------------------------|
    | below 512                              | 512                                                  |
    | d = its interval's divisions > 1, and size > 512 d | a multiple of (largest power of two <= size) / d |
    | all others                             | a multiple of 512                                    |
    """
    if size < MIN_BLOCK_SIZE:
        return MIN_BLOCK_SIZE
    interval = min(max(size.bit_length() - 21, 0), NUM_INTERVALS - 1)
    parts = divisions[interval]
    if parts > 1 and size > MIN_BLOCK_SIZE * parts:
        power = 1 << (size.bit_length() - 1)
        if size == power:
            return size
        step = power // parts
        return -(-size // step) * step if step else power * 2
    return (size + MIN_BLOCK_SIZE - 1) & -MIN_BLOCK_SIZE


def device_size(rounded: int, settings: AllocatorSettings) -> int:
    """Bytes of the segment that is asked of the device for a rounded request."""
    if rounded <= SMALL_SIZE:
        return SMALL_BUFFER
    if rounded < MIN_LARGE_ALLOC:
        return settings.large_segment_size
    return -(-rounded // ROUND_LARGE) * ROUND_LARGE
