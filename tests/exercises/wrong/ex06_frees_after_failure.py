# ruff: noqa
"""Frees the old cache when there is no room for the new one."""


def my_grow(allocator, old, num_written, new_size):
    if allocator.try_grow(old, new_size):
        return old, old.size
    try:
        new = allocator.malloc(new_size)
    except Exception:
        allocator.free(old)
        raise
    peak = old.size + new.size
    allocator.copy(old, new, num_written)
    allocator.free(old)
    return new, peak


EXPECT = "must leave the request as it was"  # the message must contain this
