# ruff: noqa
"""Rounds to powers of two."""

MIB = 1 << 20


def my_round_size(size):
    return max(512, 1 << (size - 1).bit_length())


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


EXPECT = "does not round to powers of two"  # the message must contain this
