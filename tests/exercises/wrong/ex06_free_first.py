# ruff: noqa
"""Frees the old cache before the new one is there."""


def my_grow(allocator, old, num_written, new_size):
    if allocator.try_grow(old, new_size):
        return old, old.size
    size = old.size
    allocator.free(old)
    new = allocator.malloc(new_size)
    peak = size + new.size
    allocator.copy(old, new, num_written)
    return new, peak


EXPECT = "freed"  # the message must contain this
