"""Fragmentation measures by hand, and two layouts that one measure cannot tell apart."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.memory import Span, make_allocator, measure
from labkit.memory.measures import (
    contiguity_loss,
    external_fragmentation,
    inactive_split_bytes,
    internal_fragmentation,
    reserved_to_active,
    unusable_free_index,
    usable_free_curve,
)
from labkit.units import MIB

LAYOUT = [
    Span(0, 10, "allocated", requested=8),
    Span(10, 30, "free"),
    Span(40, 20, "pending"),
    Span(60, 10, "free"),
    Span(70, 30, "allocated", requested=30, segment=1),
    Span(100, 50, "unmapped", segment=1),
    Span(150, 40, "free", segment=2),
]


def test_each_formula_on_one_layout():
    assert contiguity_loss(LAYOUT) == 1 - 40 / 80
    assert internal_fragmentation(LAYOUT) == pytest.approx(2 / 40)
    assert external_fragmentation(LAYOUT) == 80 / 140
    assert reserved_to_active(LAYOUT) == 140 / 60
    assert inactive_split_bytes(LAYOUT) == 40  # the free segment 2 could be returned
    assert unusable_free_index(LAYOUT, 25) == pytest.approx(1 - 25 * (1 + 0 + 1) / 80)
    assert usable_free_curve(LAYOUT, [1, 11, 31, 41]) == [1.0, 70 / 80, 0.5, 0.0]


def test_all_measures_together_conserve_bytes():
    m = measure(LAYOUT)
    assert m.requested_bytes + m.internal_bytes + m.pending_bytes + m.free_bytes == m.reserved_bytes == 140
    assert (m.num_free_spans, m.largest_free_bytes) == (3, 40)


def test_nothing_free_and_nothing_at_all():
    full = [Span(0, 10, "allocated", requested=10)]
    assert (contiguity_loss(full), external_fragmentation(full), reserved_to_active(full)) == (0, 0, 1)
    assert unusable_free_index(full, 1) == 1
    assert usable_free_curve(full, [1, 2]) == [0, 0]
    assert reserved_to_active([Span(0, 10, "free")]) == float("inf")
    assert measure([]).reserved_bytes == 0
    with pytest.raises(LabError, match="request_bytes is 0"):
        unusable_free_index(full, 0)


def test_equal_ratio_and_very_different_use():
    """128 MiB, half of it allocated, both times: the ratio is 2, the largest free span 1 MiB or 64 MiB."""
    layouts = []
    for freed in (slice(0, None, 2), slice(64, None)):
        allocator = make_allocator("first-fit", 128 * MIB)
        held = [allocator.malloc(MIB) for _ in range(128)]
        for allocation in held[freed]:
            allocator.free(allocation)
        layouts.append(allocator.layout())
    scattered, whole = map(measure, layouts)
    assert scattered.reserved_to_active == whole.reserved_to_active == 2
    assert scattered.external == whole.external == 0.5
    assert (scattered.largest_free_bytes, whole.largest_free_bytes) == (MIB, 64 * MIB)
    assert (scattered.contiguity_loss, whole.contiguity_loss) == (1 - 1 / 64, 0)
    assert [usable_free_curve(layout, [8 * MIB]) for layout in layouts] == [[0.0], [1.0]]


def test_the_unusable_index_grows_with_the_request_for_powers_of_two():
    sizes = [64 << k for k in range(8)]
    index = [unusable_free_index(LAYOUT, s) for s in sizes]
    assert index == sorted(index)
