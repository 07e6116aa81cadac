"""The tensor under the offsets."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.memory import Allocation, Arena, make_allocator

torch = pytest.importorskip("torch")


def test_views_share_one_buffer_and_do_not_disturb_each_other():
    allocator = make_allocator("first-fit", 4096, alignment_bytes=16)
    arena = Arena(allocator.address_space_bytes)
    views = [arena.view(allocator.malloc(4 * n), (n,), torch.float32) for n in (3, 50, 8)]
    for value, view in enumerate(views):
        view.fill_(value)
    assert [view.unique().tolist() for view in views] == [[0.0], [1.0], [2.0]]
    assert {view.untyped_storage().data_ptr() for view in views} == {
        arena.buffer.untyped_storage().data_ptr()
    }


def test_a_copy_moves_the_bytes():
    allocator, arena = make_allocator("first-fit", 1024), Arena(1024)
    source, target = allocator.malloc(64), allocator.malloc(128)
    arena.view(source, (16,), torch.int32).copy_(torch.arange(16))
    arena.copy(source, target, 64)
    assert arena.view(target, (16,), torch.int32).tolist() == list(range(16))


def test_the_caching_allocator_fits_an_arena_of_its_address_space():
    allocator = make_allocator("caching", 64 << 20)
    held = [allocator.malloc(n << 20) for n in (1, 5, 12)]
    arena = Arena(allocator.address_space_bytes)
    assert [arena.bytes_of(a).numel() for a in held] == [a.size for a in held]


def test_what_does_not_fit_is_one_sentence():
    arena = Arena(100)
    with pytest.raises(LabError, match="outside the arena of 100 bytes"):
        arena.bytes_of(Allocation(90, 20, 20))
    with pytest.raises(LabError, match="needs 80 bytes; the allocation has 50"):
        arena.view(Allocation(0, 50, 50), (20,), torch.float32)
    with pytest.raises(LabError, match="offset 2 is not a multiple of 4"):
        arena.view(Allocation(2, 50, 50), (2,), torch.float32)
