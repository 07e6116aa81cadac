"""Theoretical occupancy: how many warps of a kernel fit on one multiprocessor, and what stops more.

Limits are those of the CUDA C++ programming guide, "Technical Specifications per Compute Capability". Registers are handed
out 256 at a time to each warp, and (from compute capability 8.0 on) each block takes 1 KiB of shared memory for the
system.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SMLimits:
    """Per multiprocessor; `max_block_shared_bytes` is what one block may ask for."""

    max_warps: int
    max_blocks: int
    shared_bytes: int
    max_block_shared_bytes: int
    reserved_shared_bytes: int
    registers: int = 65536


LIMITS_OF_ARCH = {
    75: SMLimits(32, 16, 64 << 10, 64 << 10, 0),
    80: SMLimits(64, 32, 164 << 10, 163 << 10, 1 << 10),
    90: SMLimits(64, 32, 228 << 10, 227 << 10, 1 << 10),
    100: SMLimits(64, 32, 228 << 10, 227 << 10, 1 << 10),
}


def occupancy(arch: int, registers: int, shared_bytes: int, num_warps: int) -> tuple[float, str]:
    """`(share of the warp slots that are filled, name of the limit that binds)`; 0.0 when no block fits at all."""
    limits = LIMITS_OF_ARCH[arch]
    if shared_bytes > limits.max_block_shared_bytes:
        return 0.0, "shared memory"
    per_warp = -(-registers * 32 // 256) * 256
    warps_by_registers = limits.registers // per_warp // 4 * 4  # four schedulers share the register file
    blocks = {
        "warps": limits.max_warps // num_warps,
        "blocks": limits.max_blocks,
        "registers": warps_by_registers // num_warps,
        "shared memory": limits.shared_bytes // (shared_bytes + limits.reserved_shared_bytes)
        if shared_bytes + limits.reserved_shared_bytes
        else limits.max_blocks,
    }
    binding = min(blocks, key=lambda name: blocks[name])
    return blocks[binding] * num_warps / limits.max_warps, binding
