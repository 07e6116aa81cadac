# ruff: noqa
"""Adds 512 to a size that is a multiple already."""

MIB = 1 << 20


def my_round_size(size):
    return size // 512 * 512 + 512


def my_segment_size(rounded):
    if rounded <= MIB:
        return 2 * MIB
    if rounded < 10 * MIB:
        return 20 * MIB
    return -(-rounded // (2 * MIB)) * 2 * MIB


def my_should_split(block_size, rounded):
    rest = block_size - rounded
    if rounded <= MIB:
        return rest >= 512
    return rest > MIB


EXPECT = "stays as it is"  # the message must contain this
