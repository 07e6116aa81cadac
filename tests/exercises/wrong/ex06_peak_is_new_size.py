# ruff: noqa
"""Takes the new size for the peak."""


def my_grow(allocator, old, num_written, new_size):
    if allocator.try_grow(old, new_size):
        return old, old.size
    new = allocator.malloc(new_size)
    peak = new.size
    allocator.copy(old, new, num_written)
    allocator.free(old)
    return new, peak


EXPECT = "the old (20) and the new (30)"  # the message must contain this
