"""Exercise 05: PyTorch's rounding and split rule. Checked against the lab's `CachingAllocator`, which follows PyTorch
decision for decision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from labkit.memory.caching import CachingAllocator
from labkit.memory.caching.rounding import device_size, round_size
from labkit.memory.caching.settings import NUM_INTERVALS, AllocatorSettings
from labkit.teach.exercises.base import Exercise, Mistake, Picture
from labkit.teach.exercises.pools import layout
from labkit.teach.exercises.strip import Piece
from labkit.teach.exercises.watch import called, whole, yes_or_no
from labkit.units import MIB

SETTINGS = AllocatorSettings()


def run(
    my_round_size: Callable[[int], int],
    my_segment_size: Callable[[int], int],
    my_should_split: Callable[[int, int], bool],
) -> str:
    my_round_size, my_segment_size = called(my_round_size, whole), called(my_segment_size, whole)
    my_should_split = called(my_should_split, yes_or_no)
    rng = np.random.default_rng(5)
    edges = [
        e + d
        for e in (512, 1024, MIB, 2 * MIB, 10 * MIB, 12 * MIB, 20 * MIB)
        for d in (-513, -512, -1, 0, 1, 512)
    ]
    sizes = [1, *(e for e in edges if e > 0), *(int(2 ** rng.uniform(0, 28)) for _ in range(300))]
    for size in sizes:
        _round(my_round_size, size)
    for size in sizes:
        _segment(my_segment_size, round_size(size, [0] * NUM_INTERVALS))
    num = _split(my_should_split, rng)
    _whole(my_round_size, my_segment_size, my_should_split, rng)
    return (
        f"{len(sizes)} sizes, {num} splits and 200 mallocs through the lab's caching allocator come out as your three "
        "functions say."
    )


def _round(my_round_size: Callable[[int], int], size: int) -> None:
    expected, got = round_size(size, [0] * NUM_INTERVALS), my_round_size(size)
    if got == expected:
        return
    why = "a multiple of 512, rounded up"
    if got == size // 512 * 512 + 512:
        why = "a size that is a multiple of 512 already stays as it is"
    elif got < size:
        why = "a block must not be shorter than what was asked: round up, not down"
    elif got == 1 << (size - 1).bit_length():
        why = "it does not round to powers of two (that is roundup_power2_divisions, off by default)"
    raise Mistake(
        f"my_round_size({size:,}) is {got:,} and should be {expected:,}: {why}.", _bars(got, expected)
    )


def _segment(my_segment_size: Callable[[int], int], rounded: int) -> None:
    expected, got = device_size(rounded, SETTINGS), my_segment_size(rounded)
    if got == expected:
        return
    why = ""
    if expected == 2 * MIB:
        why = ": up to 1 MiB, 1 MiB included, a request is small and its segment is 2 MiB"
    elif rounded >= 10 * MIB and got == 20 * MIB:
        why = ": from 10 MiB on, 10 MiB included, a request gets a segment of its own"
    elif rounded >= 10 * MIB and got == rounded:
        why = ": a segment of its own is rounded up to a multiple of 2 MiB"
    elif rounded >= 10 * MIB:
        why = ": a segment of its own is the size rounded up to a multiple of 2 MiB, no more"
    elif expected == 20 * MIB:
        why = ": between 1 MiB and 10 MiB (10 MiB not included) segments are 20 MiB"
    raise Mistake(
        f"my_segment_size({rounded:,}) is {got:,} and should be {expected:,}{why}.", _bars(got, expected)
    )


def should_split(block_size: int, rounded: int) -> bool:
    """What `labkit.memory.caching.splitting.cut` does with default settings, as one line (a test holds them together)."""
    remaining = block_size - rounded
    return remaining >= 512 if rounded <= MIB else remaining > MIB


def _split(my_should_split: Callable[[int, int], bool], rng: np.random.Generator) -> int:
    cases = []
    for rounded in (512, MIB, MIB + 512, 4 * MIB, 12 * MIB):
        for rest in (0, 512, 1024, MIB - 512, MIB, MIB + 512, 3 * MIB):
            if rounded > MIB or rounded + rest <= 2 * MIB:
                cases.append((rounded + rest, rounded))
    cases += [
        (r + int(rng.integers(0, 6000)) * 512, r)
        for r in (int(rng.integers(2049, 40000)) * 512 for _ in range(100))
    ]
    for block_size, rounded in cases:
        expected, got = should_split(block_size, rounded), bool(my_should_split(block_size, rounded))
        if got == expected:
            continue
        rest = block_size - rounded
        if rounded <= MIB:
            why = "in the small pool a rest of 512 bytes or more is split off"
        elif rest == MIB:
            why = "in the large pool the rest must be MORE than 1 MiB"
        elif rest < MIB:
            why = (
                "in the large pool a rest of up to 1 MiB stays with the caller (it is waste inside the block)"
            )
        else:
            why = "in the large pool a rest of more than 1 MiB is split off"
        spans = [Piece(0, rounded, "asked for (rounded)"), Piece(rounded, rest, "the rest")]
        raise Mistake(
            f"my_should_split(block_size={block_size:,}, rounded={rounded:,}), a rest of {rest:,} bytes, is {got} and "
            f"should be {expected}: {why}.",
            Picture(
                "strip", "the block and what was asked of it", [s for s in spans if s.size], {"unit": "bytes"}
            ),
        )
    return len(cases)


def _whole(
    my_round_size: Callable[[int], int],
    my_segment_size: Callable[[int], int],
    my_should_split: Callable[[int, int], bool],
    rng: np.random.Generator,
) -> None:
    """One malloc in a fresh caching allocator each: reserved and allocated bytes come out as predicted."""
    for _ in range(200):
        size = int(2 ** rng.uniform(0, 27))
        lab = CachingAllocator(1 << 30)
        lab.malloc(size)
        stats = lab.stats()
        rounded = my_round_size(size)
        segment = my_segment_size(rounded)
        allocated = rounded if my_should_split(segment, rounded) else segment
        if (segment, allocated) != (stats.reserved_bytes, stats.allocated_bytes):
            raise Mistake(
                f"malloc({size:,}) in a fresh caching allocator: your functions say {segment:,} reserved and {allocated:,} "
                f"allocated, the lab's allocator has {stats.reserved_bytes:,} and {stats.allocated_bytes:,}.",
                layout("the lab's", lab.layout(), "bytes"),
            )


def _bars(got: int, expected: int) -> Picture:
    return Picture("bars", "bytes", {"yours": {"bytes": got}, "PyTorch's": {"bytes": expected}})


EXERCISE = Exercise(
    "05",
    "pytorch_rules",
    "PyTorch's caching allocator: rounding, segment, split",
    ("my_round_size", "my_segment_size", "my_should_split"),
    (
        "Rounding: multiples of 512, at least 512: -(-size // 512) * 512.",
        "Three kinds of segment, by the rounded size: up to and including 1 MiB; below 10 MiB; from 10 MiB on.",
        "The split rule looks at the rest (block_size - rounded) and at which pool the request belongs to.",
        "Small pool (rounded <= 1 MiB): rest >= 512. Large pool: rest > 1 MiB.",
    ),
    run,
)
