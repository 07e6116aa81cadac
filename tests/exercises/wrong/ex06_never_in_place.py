# ruff: noqa
"""Always moves."""


def my_grow(allocator, old, num_written, new_size):
    new = allocator.malloc(new_size)
    peak = old.size + new.size
    allocator.copy(old, new, num_written)
    allocator.free(old)
    return new, peak


EXPECT = "nothing needs to move"  # the message must contain this
