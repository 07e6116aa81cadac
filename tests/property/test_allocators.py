"""Every allocator under random operations, and the fit family against a plain list of holes."""

from __future__ import annotations

from random import Random

import pytest

from labkit.memory import ALLOCATORS, OutOfMemory, make_allocator
from tests.allocator_driver import CASES, drive, make_case


def test_every_variant_is_driven():
    assert {name for name, *_ in CASES.values()} == set(ALLOCATORS)


@pytest.mark.parametrize("case", CASES)
def test_20_000_random_operations_break_no_law(case):
    num_ooms = drive(make_case(case), seed=1, num_ops=20_000, largest=CASES[case][3])
    assert num_ooms > 100, "the case never comes near its capacity"


@pytest.mark.fuzz
@pytest.mark.parametrize("case", CASES)
def test_200_000_random_operations_break_no_law(case):
    for seed in (11, 12):
        print(f"{case}: seed {seed}, 100000 operations")
        drive(make_case(case), seed=seed, num_ops=100_000, largest=CASES[case][3])


class Holes:
    """The four fits as their textbooks have them: one list of holes, searched from end to end."""

    def __init__(self, capacity: int):
        self.holes = [(0, capacity)]
        self.rover = 0

    def malloc(self, size: int, fit: str) -> int | None:
        fitting = [(offset, length) for offset, length in self.holes if length >= size]
        if not fitting:
            return None
        if fit == "first-fit":
            offset, length = fitting[0]
        elif fit == "best-fit":
            offset, length = min(fitting, key=lambda hole: (hole[1], hole[0]))
        elif fit == "worst-fit":
            offset, length = min(fitting, key=lambda hole: (-hole[1], hole[0]))
        else:
            ahead = [hole for hole in fitting if hole[0] >= self.rover]
            offset, length = (ahead or fitting)[0]
            self.rover = offset + size
        self.holes.remove((offset, length))
        if length > size:
            self.holes.append((offset + size, length - size))
            self.holes.sort()
        return offset

    def free(self, offset: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, length in sorted([*self.holes, (offset, size)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self.holes = merged


@pytest.mark.parametrize("fit", ["first-fit", "best-fit", "next-fit", "worst-fit"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fit_places_like_a_plain_list_of_holes(fit, seed):
    rng, capacity = Random(seed), 4000
    allocator, plain, live = make_allocator(fit, capacity), Holes(capacity), []
    for _ in range(1500):
        if live and rng.random() < 0.47:
            allocation = live.pop(rng.randrange(len(live)))
            allocator.free(allocation)
            plain.free(allocation.offset, allocation.size)
            continue
        size = rng.choice([10, 10, 20, 40, 70, 300])
        expected = plain.malloc(size, fit)
        try:
            live.append(allocator.malloc(size))
        except OutOfMemory:
            assert expected is None
        else:
            assert live[-1].offset == expected
    assert [(s.offset, s.size) for s in allocator.layout() if s.state == "free"] == plain.holes


CONFS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:32,max_non_split_rounding_mb:40,roundup_power2_divisions:[1:8,16:4,>:2]",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.8",
    "expandable_segments:True,large_segment_size_mb:12,max_split_size_mb:24",
]


@pytest.mark.parametrize("conf", CONFS)
def test_no_decision_of_the_caching_allocator_depends_on_addresses(conf):
    runs = [decisions(conf, policy) for policy in ("bump", "first-fit", "descending", "last-fit")]
    assert runs[1] == runs[2] == runs[3] == runs[0]
    assert {"refused", "segment"} <= {decision[0] for decision in runs[0]}


def decisions(conf: str, policy: str) -> list[tuple]:
    """What was decided in 1,500 operations, without a single address."""
    rng, live, made = Random(8), [], []
    allocator = make_allocator("caching", 256 << 20, alloc_conf=conf, address_policy=policy)
    for _ in range(1500):
        if live and rng.random() < 0.48:
            allocator.free(live.pop(rng.randrange(len(live))))
        else:
            size, stream = int(2 ** rng.uniform(8, 26)), rng.choice([0, 0, 3])
            try:
                live.append(allocator.malloc(size, stream=stream))
            except OutOfMemory as error:
                made.append(("refused", size, error.free, error.largest_free))
            else:
                segment = live[-1].segment
                made.append(("segment", segment.ordinal, live[-1].offset - segment.address, live[-1].size))
        made.append(("stats", *allocator.memory_stats().values()))
    allocator.check_integrity()
    return made
