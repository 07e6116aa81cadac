"""Drives any allocator with random operations and keeps its own books beside it.

Used by the property tests, the long fuzz and the mutants. The books are a sorted list of live ranges and two sums;
nothing of the allocator's own bookkeeping is trusted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from random import Random

from labkit.errors import LabError, require
from labkit.memory import Allocation, Allocator, OutOfMemory, make_allocator
from labkit.memory.caching import CachingAllocator
from labkit.units import KIB, MIB

#: name of the case -> (registry name, capacity, options, largest request)
CASES: dict[str, tuple[str, int, dict, int]] = {
    "first-fit": ("first-fit", 64 * KIB, {}, 8 * KIB),
    "best-fit": ("best-fit", 64 * KIB, {}, 8 * KIB),
    "next-fit": ("next-fit", 64 * KIB, {"alignment_bytes": 16}, 8 * KIB),
    "worst-fit": ("worst-fit", 64 * KIB, {}, 8 * KIB),
    "buddy": ("buddy", 100_000, {"min_block_bytes": 64}, 8 * KIB),
    "size-class": ("size-class", 256 * KIB, {"slab_bytes": 4 * KIB, "min_class_bytes": 64}, 16 * KIB),
    "pooled": (
        "pooled",
        64 * KIB,
        {"budgets": {"short": 20 * KIB, "long": 30 * KIB}, "borrow": True, "inner": "best-fit"},
        6 * KIB,
    ),
    "pooled, no borrowing": ("pooled", 64 * KIB, {"budgets": {"short": 20 * KIB, "long": 30 * KIB}}, 6 * KIB),
    "virtual-memory": (
        "virtual-memory",
        256 * KIB,
        {"granule_bytes": 2 * KIB, "virtual_bytes": 768 * KIB},
        16 * KIB,
    ),
    "caching": ("caching", 256 * MIB, {}, 60 * MIB),
    "caching, expandable": ("caching", 256 * MIB, {"alloc_conf": "expandable_segments:True"}, 60 * MIB),
    "caching, all knobs": (
        "caching",
        256 * MIB,
        {
            "alloc_conf": "max_split_size_mb:24,garbage_collection_threshold:0.6,roundup_power2_divisions:4",
            "memory_fraction": 0.9,
            "address_policy": "descending",
        },
        60 * MIB,
    ),
}


def make_case(case: str) -> Allocator:
    name, capacity, options, _ = CASES[case]
    return make_allocator(name, capacity, **options)


@dataclass
class Books:
    """What the driver knows: live allocations in address order."""

    starts: list[int] = field(default_factory=list)
    live: list[Allocation] = field(default_factory=list)
    extent: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset -> (size, requested)

    def add(self, a: Allocation, requested: int) -> None:
        require(a.requested == requested <= a.size, "an allocation is as long as was asked", allocation=a)
        place = bisect_left(self.starts, a.offset)
        if place < len(self.starts):
            require(a.offset + a.size <= self.starts[place], "live ranges do not overlap", allocation=a)
        if place:
            before = self.starts[place - 1]
            require(before + self.extent[before][0] <= a.offset, "live ranges do not overlap", allocation=a)
        insort(self.starts, a.offset)
        self.live.append(a)
        self.extent[a.offset] = (a.size, requested)

    def remove(self, place: int) -> Allocation:
        a = self.live.pop(place)
        del self.starts[bisect_left(self.starts, a.offset)], self.extent[a.offset]
        return a

    def check(self, allocator: Allocator) -> None:
        stats = allocator.stats()
        require(stats.num_allocations == len(self.live), "live allocations are counted", stats=stats)
        require(
            stats.allocated_bytes == sum(size for size, _ in self.extent.values()),
            "allocated bytes are those of live allocations",
            stats=stats,
        )
        require(
            stats.requested_bytes >= sum(asked for _, asked in self.extent.values()),
            "requested bytes hold those of live allocations",
            stats=stats,
        )
        require(
            stats.requested_bytes <= stats.active_bytes <= stats.reserved_bytes <= stats.capacity_bytes
            and stats.allocated_bytes <= stats.active_bytes
            and stats.free_bytes == stats.reserved_bytes - stats.active_bytes,
            "requested <= allocated <= active <= reserved <= capacity",
            stats=stats,
        )


def drive(allocator: Allocator, seed: int, num_ops: int, largest: int, check_every: int = 1) -> int:
    """Run `num_ops` random operations; raises `IntegrityError` or `AssertionError` when a law is broken.

    Returns the number of refused allocations.
    """
    rng, books, stale, num_ooms = Random(seed), Books(), [], 0
    caching = isinstance(allocator, CachingAllocator)
    for index in range(num_ops):
        kind = rng.random()
        if kind < 0.02:
            _misuse(allocator, rng, stale, caching)
        elif caching and kind < 0.06:
            _device_side(allocator, rng, books)
        elif kind < 0.10 and books.live:
            _grow(allocator, rng, books)
        elif kind < 0.56 or not books.live:
            num_ooms += _malloc(allocator, rng, books, _size(rng, largest))
        else:
            stale = [books.remove(rng.randrange(len(books.live))), *stale[:7]]
            allocator.free(stale[0])
        if index % check_every == 0:
            allocator.check_integrity()
            books.check(allocator)
    for _ in range(len(books.live)):
        allocator.free(books.remove(0))
    if isinstance(allocator, CachingAllocator):
        allocator.empty_cache()
    allocator.check_integrity()
    stats = allocator.stats()
    require(stats.active_bytes == stats.requested_bytes == 0, "all comes back", stats=stats)
    return num_ooms


def _size(rng: Random, largest: int) -> int:
    """Log-uniform in the top six doublings, and now and then anything at all."""
    return rng.randrange(1, largest) if rng.random() < 0.1 else int(largest * 2 ** -rng.uniform(0, 6)) + 1


def _malloc(allocator: Allocator, rng: Random, books: Books, size: int) -> int:
    watched = rng.random() < 0.1 and not isinstance(allocator, CachingAllocator)
    before = allocator.stats(), (allocator.layout() if watched else None)
    options = {"stream": rng.choice([0, 0, 5])} if isinstance(allocator, CachingAllocator) else {}
    if allocator.name == "virtual-memory":
        options = {"reserve": size * rng.choice([1, 1, 3])}
    try:
        a = allocator.malloc(size, tag="t", lifetime=rng.choice(["short", "long", "other"]), **options)
    except OutOfMemory as error:
        if before[1] is not None:
            require(allocator.layout() == before[1], "a refusal changes nothing", asked=size)
        require(
            (error.kind == "fragmentation") == (error.free >= size),
            "the kind of refusal is right",
            asked=size,
        )
        require(allocator.stats().allocated_bytes == before[0].allocated_bytes, "a refusal allocates nothing")
        return 1
    require(a.offset >= -(1 << 60) and a.offset + a.size <= allocator.address_space_bytes, "in range", a=a)
    books.add(a, size)
    return 0


def _grow(allocator: Allocator, rng: Random, books: Books) -> None:
    a = rng.choice(books.live)
    size, requested = a.size, a.requested
    wanted = requested + rng.randrange(1, requested + 2)
    if allocator.try_grow(a, wanted):
        require(a.requested == wanted <= a.size, "it grew as far as was asked", allocation=a)
        books.remove(next(i for i, other in enumerate(books.live) if other is a))
        books.add(a, wanted)
    else:
        require((a.size, a.requested) == (size, requested), "a refused growth changes nothing", allocation=a)


def _misuse(allocator: Allocator, rng: Random, stale: list[Allocation], caching: bool) -> None:
    """Nonsense must be refused with a sentence and leave everything as it was."""
    before = allocator.stats(), allocator.layout()
    foreign = make_allocator(allocator.name, 4 * MIB).malloc(512)
    for bad in [*stale[:2], foreign, Allocation(0, 512, 512), None]:
        _must_refuse(lambda bad=bad: allocator.free(bad), f"free({bad!r})")
    size = rng.choice([0, -1, 1.5, True, "7", None])
    _must_refuse(lambda: allocator.malloc(size), f"malloc({size!r})")
    require((allocator.stats(), allocator.layout()) == before, "a refused misuse changes nothing")


def _must_refuse(action, what: str) -> None:
    try:
        action()
    except OutOfMemory as error:
        raise AssertionError(f"{what} was taken for a real request: {error}") from error
    except LabError as error:
        require("\n" not in str(error), "an error is one sentence", text=str(error))
        return
    require(False, "misuse is refused", what=what)


def _device_side(allocator: CachingAllocator, rng: Random, books: Books) -> None:
    choice = rng.randrange(6)
    if choice == 0:
        allocator.empty_cache()
    elif choice <= 2 and books.live:
        allocator.record_stream(rng.choice(books.live), rng.choice([8, 9]))
    elif choice == 3:
        allocator.hold_stream(rng.choice([8, 9]))
    elif choice == 4:
        allocator.finish_stream(rng.choice([8, 9]))
    else:
        pool = allocator.create_pool()
        with allocator.use_pool(pool):
            _malloc(allocator, rng, books, rng.randrange(1, 3 * MIB))
        allocator.release_pool(pool)
