"""The four things one allocation asks, each answered yes and no on otherwise equal memory.

Every function returns a cost in bytes that the answer "no" brings; on a fresh pool with one size and one lifetime the
answer is always "yes" and the cost 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.memory import OutOfMemory, make_allocator
from labkit.units import MIB

CAPACITY = 256 * MIB


def cost_of_no_span(hole_sizes: Sequence[int], asked: int) -> int:
    """1. *Is one free span large enough?* Holes of these sizes are free, each between two live objects of 1 MiB.
    Returns the free bytes that the refused request could not use (0 when it was served)."""
    memory = make_allocator("first-fit", sum(hole_sizes) + (len(hole_sizes) + 1) * MIB)
    memory.malloc(MIB)
    holes = []
    for size in hole_sizes:
        holes.append(memory.malloc(size))
        memory.malloc(MIB)
    for hole in holes:
        memory.free(hole)
    try:
        memory.malloc(asked)
    except OutOfMemory as refusal:
        return refusal.free
    return 0


def cost_of_wrong_class(asked: int) -> int:
    """2. *Does the size class match?* A buddy allocator has powers of two only. Returns the bytes given beyond `asked`."""
    memory = make_allocator("buddy", CAPACITY)
    allocation = memory.malloc(asked)
    return allocation.size - allocation.requested


def cost_of_mixed_lifetimes(lifetimes: Sequence[str], size: int = MIB) -> int:
    """3. *Does the lifetime fit its neighbours?* Objects of one size lie in this order; those called "short" end.
    Returns the free bytes outside the largest free span, the part that a long object cannot have."""
    memory = make_allocator("first-fit", len(lifetimes) * size)
    objects = [memory.malloc(size, lifetime=lifetime) for lifetime in lifetimes]
    for item in objects:
        if item.lifetime == "short":
            memory.free(item)
    after = memory.stats()
    return after.free_bytes - after.largest_free_bytes


def cost_of_a_move(neighbour_behind: bool, size: int = 8 * MIB) -> int:
    """4. *Will it force a move or a reclaim?* An object grows by half. Returns the bytes copied because it had to move."""
    memory = make_allocator("first-fit", CAPACITY)
    growing = memory.malloc(size)
    if neighbour_behind:
        memory.malloc(size)
    if memory.try_grow(growing, size + size // 2):
        return 0
    memory.malloc(size + size // 2)
    memory.free(growing)
    return size


def four_costs(*, aged: bool) -> dict[str, int]:
    """Bytes that each question costs: on an aged pool with mixed sizes and lifetimes, or on a fresh uniform one."""
    return {
        "span long enough": cost_of_no_span([6 * MIB] * 4 if aged else [24 * MIB], asked=8 * MIB),
        "size class matches": cost_of_wrong_class(9 * MIB if aged else 8 * MIB),
        "lifetime fits neighbours": cost_of_mixed_lifetimes(
            ["short", "long"] * 16 if aged else ["short"] * 32
        ),
        "no move or reclaim": cost_of_a_move(neighbour_behind=aged),
    }
