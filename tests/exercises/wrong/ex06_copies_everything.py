# ruff: noqa
"""Copies the whole allocation, written or not."""


def my_grow(allocator, old, num_written, new_size):
    if allocator.try_grow(old, new_size):
        return old, old.size
    new = allocator.malloc(new_size)
    peak = old.size + new.size
    allocator.copy(old, new, old.size)
    allocator.free(old)
    return new, peak


EXPECT = "copy what was written"  # the message must contain this
