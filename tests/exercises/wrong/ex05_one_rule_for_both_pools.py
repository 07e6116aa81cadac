# ruff: noqa
"""Splits off every rest of 512 bytes."""

MIB = 1 << 20


def my_round_size(size):
    return max(512, -(-size // 512) * 512)


def my_segment_size(rounded):
    if rounded <= MIB:
        return 2 * MIB
    if rounded < 10 * MIB:
        return 20 * MIB
    return -(-rounded // (2 * MIB)) * 2 * MIB


def my_should_split(block_size, rounded):
    rest = block_size - rounded
    return rest >= 512


EXPECT = "stays with the caller"  # the message must contain this
