"""Pools by lifetime or tag, each with its own part of the range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from labkit.errors import LabError, require
from labkit.memory.base import (
    ALLOCATORS,
    Allocation,
    Allocator,
    AllocatorStats,
    OutOfMemory,
    Span,
    checked_size,
    not_live,
)

#: the pool of every label that has no budget of its own
REST = "rest"
_INNER = ("first-fit", "best-fit", "next-fit", "worst-fit", "buddy", "size-class")


@ALLOCATORS.register("pooled")
class PooledAllocator(Allocator):
    """Objects that live alike share a pool, so that short ones punch no holes between long ones.

    `budgets` maps a label (the value of `by`: "lifetime" or "tag") to bytes; the pools lie side by side in that
    order, and what is left of the range is the pool "rest" for all other labels. Each pool is an allocator of its own
    (`inner`). With `borrow=True` a request that its pool cannot serve goes to the pool with the largest free span;
    without, it fails and the other pools are untouched. Cost: that of `inner`.
    Source: region and lifetime segregation, Hanson (1990), "Fast allocation and deallocation of memory based on
    object lifetimes"; `torch.cuda.MemPool` is the same idea in PyTorch.
    """

    name = "pooled"

    def __init__(
        self,
        capacity_bytes: int,
        *,
        budgets: Mapping[str, int] | None = None,
        by: Literal["lifetime", "tag"] = "lifetime",
        inner: str = "first-fit",
        borrow: bool = False,
    ):
        self.capacity_bytes = checked_size(capacity_bytes, "capacity_bytes")
        if by not in ("lifetime", "tag"):
            raise LabError(f"by is {by!r}; pools are made by 'lifetime' or 'tag'")
        if inner not in _INNER:
            raise LabError(f"inner is {inner!r}; choose one of: {', '.join(_INNER)}")
        self.by, self.borrow, self.budgets = by, borrow, dict(budgets or {})
        for label, budget in self.budgets.items():
            checked_size(budget, f"budget of {label!r}")
        rest = self.capacity_bytes - sum(self.budgets.values())
        if rest < 0 or REST in self.budgets:
            raise LabError(
                f"budgets {self.budgets} do not fit: they add up to at most the capacity ({capacity_bytes}), and the pool "
                f"{REST!r} is what they leave"
            )
        self.pools: dict[str, Allocator] = {}
        self._base: dict[str, int] = {}
        base = 0
        for label, budget in {**self.budgets, **({REST: rest} if rest else {})}.items():
            self.pools[label] = ALLOCATORS[inner](budget)  # type: ignore[call-arg]
            self._base[label] = base
            base += budget
        self._live: dict[int, tuple[Allocation, str, Allocation]] = {}
        self._num_ooms = 0

    def malloc(self, size: int, *, tag: str = "", lifetime: str = "") -> Allocation:
        requested = checked_size(size)
        home = self.pool_of(tag=tag, lifetime=lifetime)
        for label in [home, *self._lenders(home)]:
            try:
                inner = self.pools[label].malloc(requested, tag=tag, lifetime=lifetime)
            except OutOfMemory as error:
                refused = error
                continue
            offset = self._base[label] + inner.offset
            allocation = Allocation(offset, inner.size, requested, tag, lifetime)
            self._live[offset] = (allocation, label, inner)
            return allocation
        self._num_ooms += 1
        raise OutOfMemory.of(requested, self.stats()) if self.borrow else refused

    def free(self, allocation: Allocation) -> None:
        label, inner = self._find(allocation)
        self.pools[label].free(inner)
        del self._live[allocation.offset]

    def try_grow(self, allocation: Allocation, size: int) -> bool:
        label, inner = self._find(allocation)
        grown = self.pools[label].try_grow(inner, size)
        allocation.size, allocation.requested = inner.size, inner.requested
        return grown

    def pool_of(self, *, tag: str = "", lifetime: str = "") -> str:
        """The pool that a label belongs to; raises `LabError` for one without a budget when nothing is left over."""
        label = lifetime if self.by == "lifetime" else tag
        if label in self.budgets:
            return label
        if REST not in self.pools:
            known = ", ".join(map(repr, self.budgets))
            raise LabError(
                f"{self.by} {label!r} has no pool; budgets exist for {known} and nothing is left over"
            )
        return REST

    def borrowed_bytes(self) -> dict[str, int]:
        """Bytes that live in each pool and belong to another one."""
        borrowed = dict.fromkeys(self.pools, 0)
        for allocation, label, _ in self._live.values():
            if self.pool_of(tag=allocation.tag, lifetime=allocation.lifetime) != label:
                borrowed[label] += allocation.size
        return borrowed

    def layout(self) -> list[Span]:
        """`Span.segment` is the number of the pool."""
        return [
            Span(
                base + span.offset,
                span.size,
                span.state,
                span.requested,
                span.tag,
                span.lifetime,
                segment=number,
            )
            for number, (label, base) in enumerate(self._base.items())
            for span in self.pools[label].layout()
        ]

    def stats(self) -> AllocatorStats:
        parts = [pool.stats() for pool in self.pools.values()]
        return AllocatorStats(
            capacity_bytes=self.capacity_bytes,
            reserved_bytes=sum(part.reserved_bytes for part in parts),
            active_bytes=sum(part.active_bytes for part in parts),
            allocated_bytes=sum(part.allocated_bytes for part in parts),
            requested_bytes=sum(part.requested_bytes for part in parts),
            free_bytes=sum(part.free_bytes for part in parts),
            num_free_spans=sum(part.num_free_spans for part in parts),
            largest_free_bytes=max(part.largest_free_bytes for part in parts),
            num_allocations=len(self._live),
            num_ooms=self._num_ooms,
        )

    def check_integrity(self) -> None:
        for label, pool in self.pools.items():
            pool.check_integrity()
            held = sum(1 for _, where, _ in self._live.values() if where == label)
            require(held == pool.stats().num_allocations, "each pool holds its own", pool=label, held=held)
        for offset, (allocation, label, inner) in self._live.items():
            require(
                offset == allocation.offset == self._base[label] + inner.offset
                and allocation.size == inner.size,
                "allocation lies where its pool put it",
                allocation=allocation,
            )
            home = self.pool_of(tag=allocation.tag, lifetime=allocation.lifetime)
            require(self.borrow or home == label, "nothing is borrowed", allocation=allocation, pool=label)

    def _lenders(self, home: str) -> list[str]:
        if not self.borrow:
            return []
        others = [label for label in self.pools if label != home]
        return sorted(others, key=lambda label: -self.pools[label].stats().largest_free_bytes)

    def _find(self, allocation: Allocation) -> tuple[str, Allocation]:
        found = self._live.get(getattr(allocation, "offset", -1))
        if found is None or found[0] is not allocation:
            raise not_live(self, allocation)
        return found[1], found[2]
