"""Allocators: rounding, cached segments, events, and what `empty_cache` cannot give back."""

from __future__ import annotations

from labkit.experiments.dynamics import freed_with_pending_event
from labkit.experiments.four_questions import cost_of_a_move, cost_of_wrong_class
from labkit.experiments.proofs import Proof
from labkit.memory.caching import CachingAllocator
from labkit.units import MIB


def buddy_rounds_up(asked_mib: int) -> Proof:
    """Does a buddy allocator give at least a quarter more than was asked?"""
    wasted = cost_of_wrong_class(asked_mib * MIB)
    return Proof(wasted >= asked_mib * MIB / 4, {"asked_mib": asked_mib, "wasted_mib": wasted / MIB})


def segment_is_larger(asked_bytes: int) -> Proof:
    """Does PyTorch's allocator take at least ten times as much from the device as was asked?"""
    memory = CachingAllocator(1024 * MIB)
    memory.malloc(asked_bytes)
    reserved = memory.stats().reserved_bytes
    return Proof(reserved >= 10 * asked_bytes, {"asked": asked_bytes, "reserved": reserved})


def event_holds_back(pending: bool) -> Proof:
    """A tensor was freed while another stream may still read it. Are its bytes out of reach?"""
    found = freed_with_pending_event(pending=pending)
    return Proof(found.held_back(), {"freed_mib": found.freed / MIB, "usable_mib": found.usable / MIB})


def split_segment_stays(neighbour_lives: bool) -> Proof:
    """One of two tensors in a 20 MiB segment is freed, then `empty_cache()`. Does the segment stay reserved?"""
    memory = CachingAllocator(1024 * MIB)
    first, second = memory.malloc(8 * MIB), memory.malloc(8 * MIB)
    memory.free(first)
    if not neighbour_lives:
        memory.free(second)
    memory.empty_cache()
    stats = memory.stats()
    return Proof(
        stats.reserved_bytes > stats.allocated_bytes,
        {"reserved_mib": stats.reserved_bytes / MIB, "allocated_mib": stats.allocated_bytes / MIB},
    )


def growing_shapes_pile_up(alloc_conf: str, num_shapes: int = 12) -> Proof:
    """A buffer grows by 6 MiB from shape to shape, the old one freed after the new one exists. Does the allocator end up
    with at least half as much again as the most that was ever alive?"""
    memory = CachingAllocator(8192 * MIB, alloc_conf=alloc_conf)
    old, peak = memory.malloc(20 * MIB), 0
    for number in range(1, num_shapes):
        new = memory.malloc((20 + 6 * number) * MIB)
        peak = max(peak, memory.stats().allocated_bytes)
        memory.free(old)
        old = new
    reserved = memory.stats().reserved_bytes
    return Proof(reserved > 1.5 * peak, {"reserved_mib": reserved / MIB, "peak_alive_mib": peak / MIB})


def growth_moves(neighbour_behind: bool) -> Proof:
    """An object grows by half. Must it be copied elsewhere?"""
    moved = cost_of_a_move(neighbour_behind)
    return Proof(moved > 0, {"moved_mib": moved / MIB})
