"""The contract of every allocator. Variants add rules, never new meanings.

An allocator works on integers: it hands out byte ranges of an address space and never touches memory. `Arena` puts a
real tensor under its offsets. The words are PyTorch's, and they nest:

    requested_bytes <= allocated_bytes <= active_bytes <= reserved_bytes

    requested   what callers asked for
    allocated   what they were given (rounding included)
    active      allocated, plus freed ranges that wait for an event before they may be reused
    reserved    what the allocator holds from the device, in use or cached
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from operator import index
from typing import ClassVar, Literal

from labkit.errors import LabError, require
from labkit.registry import Registry
from labkit.units import format_bytes

SpanState = Literal["allocated", "pending", "free", "unmapped"]


@dataclass(slots=True, eq=False)
class Allocation:
    """A live range `[offset, offset + size)`. `requested <= size`; `lifetime` is a label such as "request"."""

    offset: int
    size: int
    requested: int
    tag: str = ""
    lifetime: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of the address space, in address order; spans of a layout neither overlap nor leave gaps inside
    a segment. `segment` numbers the device allocations a caching allocator made (0 when there is only one)."""

    offset: int
    size: int
    state: SpanState
    requested: int = 0
    tag: str = ""
    lifetime: str = ""
    segment: int = 0

    @property
    def end(self) -> int:
        """One more than its last byte."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """Bytes and counts at one instant. `free_bytes` is reserved and not active; what the device still holds beyond
    `reserved_bytes` is `capacity_bytes - reserved_bytes`."""

    capacity_bytes: int
    reserved_bytes: int
    active_bytes: int
    allocated_bytes: int
    requested_bytes: int
    free_bytes: int
    num_free_spans: int
    largest_free_bytes: int
    num_allocations: int
    num_ooms: int = 0


class OutOfMemory(LabError):
    """A refused allocation, with the numbers that say why.

    `kind` is "capacity" when fewer bytes are free than were asked for, "fragmentation" when enough are free in total
    and no single span is long enough.
    """

    def __init__(
        self,
        asked: int,
        *,
        capacity: int,
        reserved: int,
        allocated: int,
        free: int,
        num_free_spans: int,
        largest_free: int,
    ):
        self.asked, self.capacity, self.reserved, self.allocated = asked, capacity, reserved, allocated
        self.free, self.num_free_spans, self.largest_free = free, num_free_spans, largest_free
        self.kind: Literal["capacity", "fragmentation"] = "fragmentation" if free >= asked else "capacity"
        super().__init__(
            f"out of memory ({self.kind}): asked {format_bytes(asked)}, capacity {format_bytes(capacity)}, "
            f"reserved {format_bytes(reserved)}, allocated {format_bytes(allocated)}, free {format_bytes(free)} "
            f"in {num_free_spans} spans, largest {format_bytes(largest_free)}"
        )

    @classmethod
    def of(cls, asked: int, stats: AllocatorStats) -> OutOfMemory:
        """The refusal of `asked` bytes by an allocator in the state `stats`."""
        return cls(
            asked,
            capacity=stats.capacity_bytes,
            reserved=stats.reserved_bytes,
            allocated=stats.allocated_bytes,
            free=stats.free_bytes,
            num_free_spans=stats.num_free_spans,
            largest_free=stats.largest_free_bytes,
        )


class Allocator(ABC):
    """Hands out byte ranges. All methods either succeed or raise and change nothing (`CachingAllocator`, like
    PyTorch's, has already returned its cached segments when it raises)."""

    #: short name in the registry, e.g. "first-fit"
    name: ClassVar[str]

    #: bytes of the address range or of the device that was given to the constructor
    capacity_bytes: int

    @abstractmethod
    def malloc(self, size: int, *, tag: str = "", lifetime: str = "") -> Allocation:
        """Reserve at least `size` bytes.

        Raises `OutOfMemory` when it cannot, and `LabError` for a size that is not a positive integer.
        """

    @abstractmethod
    def free(self, allocation: Allocation) -> None:
        """Give a live allocation back. Raises `LabError` for one that is not live here (double or foreign free)."""

    @abstractmethod
    def layout(self) -> list[Span]:
        """Every span in address order."""

    @abstractmethod
    def stats(self) -> AllocatorStats:
        """Counters of this instant."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Assert the conservation laws; raises `IntegrityError` that names the broken one."""

    def try_grow(self, allocation: Allocation, size: int) -> bool:
        """Make a live allocation at least `size` bytes long *in place*; False (and nothing changed) when there is
        no room behind it. This default says whether the rounding slack is enough; variants that count requested bytes
        also update them, and the fit family takes the free span behind as well."""
        return checked_size(size) <= allocation.size

    def held_bytes(self) -> tuple[int, int]:
        """`(allocated_bytes, reserved_bytes)` of `stats`: what a recorder reads in every step, where the whole is dear."""
        stats = self.stats()
        return stats.allocated_bytes, stats.reserved_bytes

    @property
    def address_space_bytes(self) -> int:
        """One more than the highest offset this allocator hands out now: what an `Arena` under it must span."""
        return self.capacity_bytes


#: every variant under its registry name; `labkit.memory.make_allocator` builds one by name
ALLOCATORS: Registry[type[Allocator]] = Registry("allocator")


def checked_size(size: int, what: str = "allocation size") -> int:
    """`size` as a Python int; raises `LabError` unless it is a positive integer (bool and float are refused)."""
    try:
        number = -1 if isinstance(size, bool) else index(size)
    except TypeError:
        number = -1
    if number <= 0:
        raise LabError(f"{what} is {size!r}; it must be a positive whole number of bytes")
    return number


def not_live(allocator: Allocator, allocation: object) -> LabError:
    """The error for a double or foreign free."""
    place = f"at offset {allocation.offset}" if isinstance(allocation, Allocation) else repr(allocation)
    return LabError(
        f"free of an allocation {place} that is not live in this {allocator.name} allocator "
        "(freed twice, or it belongs to another one); free each live allocation once"
    )


def require_tiling(layout: list[Span], end: int) -> None:
    """The spans cover `[0, end)` without gap or overlap, and none holds more than it is long."""
    at = 0
    for span in layout:
        require(span.offset == at, "spans tile the range", offset=span.offset, expected=at)
        require(span.requested <= span.size, "requested <= allocated", span=span)
        at = span.end
    require(at == end, "spans tile the range", end=at, expected=end)
