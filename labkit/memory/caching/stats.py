"""Counters under the names of `torch.cuda.memory_stats`, kept for all blocks together and for each pool."""

from __future__ import annotations

from labkit.errors import require


class Stat:
    """One metric: its value now, its highest, and how much was ever added and taken away."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def increase(self, amount: int) -> None:
        """`amount` more, in bytes or counts."""
        self.allocated += amount
        self.current += amount
        if self.current > self.peak:
            self.peak = self.current

    def decrease(self, amount: int) -> None:
        """`amount` less; the peak stays."""
        self.freed += amount
        self.current -= amount

    def change(self, amount: int) -> None:
        """One net change, up or down."""
        if amount > 0:
            self.increase(amount)
        elif amount < 0:
            self.decrease(-amount)

    def as_dict(self) -> dict[str, int]:
        return {"current": self.current, "peak": self.peak, "allocated": self.allocated, "freed": self.freed}


METRICS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


class PoolStats:
    """The nine metrics of one family of blocks: all, the small pools, or the large pools.

    allocation, segment, active, inactive_split count blocks or segments; the others are bytes.
    inactive_split: free blocks in segments that hold more than one block.
    """

    __slots__ = METRICS

    allocation: Stat
    segment: Stat
    active: Stat
    inactive_split: Stat
    allocated_bytes: Stat
    reserved_bytes: Stat
    active_bytes: Stat
    inactive_split_bytes: Stat
    requested_bytes: Stat

    def __init__(self) -> None:
        for metric in METRICS:
            setattr(self, metric, Stat())

    def flat(self, family: str) -> dict[str, int]:
        """`{"allocation.all.current": 3, ...}` for family "all"."""
        return {
            f"{metric}.{family}.{name}": value
            for metric in METRICS
            for name, value in getattr(self, metric).as_dict().items()
        }

    def check(self, family: str, counted: dict[str, int]) -> None:
        """Each metric in `counted` has this value now, and nothing has leaked: current = allocated - freed <= peak."""
        for metric, value in counted.items():
            stat = getattr(self, metric)
            require(stat.current == value, f"{metric}.{family} is right", current=stat.current, counted=value)
        for metric in METRICS:
            stat = getattr(self, metric)
            require(
                stat.current == stat.allocated - stat.freed <= stat.peak,
                f"{metric}.{family} adds up",
                **stat.as_dict(),
            )
