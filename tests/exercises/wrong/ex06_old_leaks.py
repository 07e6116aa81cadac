# ruff: noqa
"""Forgets to free the old cache."""


def my_grow(allocator, old, num_written, new_size):
    if allocator.try_grow(old, new_size):
        return old, old.size
    new = allocator.malloc(new_size)
    peak = old.size + new.size
    allocator.copy(old, new, num_written)
    return new, peak


EXPECT = "every growth leaks"  # the message must contain this
