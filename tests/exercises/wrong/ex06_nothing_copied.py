# ruff: noqa
"""Moves without the tokens."""


def my_grow(allocator, old, num_written, new_size):
    if allocator.try_grow(old, new_size):
        return old, old.size
    new = allocator.malloc(new_size)
    peak = old.size + new.size
    allocator.free(old)
    return new, peak


EXPECT = "the new cache is empty"  # the message must contain this
