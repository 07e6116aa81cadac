# ruff: noqa
"""Does not round a segment of its own to 2 MiB."""

MIB = 1 << 20


def my_round_size(size):
    return max(512, -(-size // 512) * 512)


def my_segment_size(rounded):
    if rounded <= MIB:
        return 2 * MIB
    if rounded < 10 * MIB:
        return 20 * MIB
    return rounded


def my_should_split(block_size, rounded):
    rest = block_size - rounded
    if rounded <= MIB:
        return rest >= 512
    return rest > MIB


EXPECT = "rounded up to a multiple of 2 MiB"  # the message must contain this
