"""Part 1 of a scheduler: who comes first. An order gives each waiting request a number; the smallest is the head, and
ties go to the earlier arrival.

Preempted requests come back under the same key, so first come, first served brings the last admitted back to the front.

What happens behind a head that cannot be admitted is also a matter of order (`blocked`):

    stop    everyone waits behind it (head-of-line blocking, nobody starves)
    skip    the next ones are tried; with `max_skips` a request that was passed over that often stops the queue
            (ageing: a bounded wait for all), without it a large request may starve
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Any, Literal

from labkit.errors import LabError
from labkit.registry import Registry
from labkit.serving.request import Request
from labkit.serving.space import Space

ORDERS: Registry[type[QueueOrder]] = Registry("queue order")


class QueueOrder:
    """`key` must not change while a request waits, unless `dynamic` is set: then the queue is sorted again each time
    it is read (after an admission, an arrival or a release)."""

    dynamic = False

    def __init__(self, blocked: Literal["stop", "skip"] = "stop", max_skips: int | None = None):
        if blocked not in ("stop", "skip"):
            raise LabError(f"blocked={blocked!r} is not known; choose one of: stop, skip")
        self.blocked, self.max_skips = blocked, max_skips

    def key(self, request: Request, space: Space) -> float:
        """The smallest goes first; ties by arrival."""
        raise NotImplementedError

    def passes_over(self, request: Request) -> bool:
        """May the queue go on behind this blocked request? Counts the skip."""
        if self.blocked == "stop" or (self.max_skips is not None and request.num_skips >= self.max_skips):
            return False
        request.num_skips += 1
        return True


@ORDERS.register("fcfs")
class FirstComeFirstServed(QueueOrder):
    """By arrival."""

    def key(self, request: Request, space: Space) -> float:
        return request.arrival


@ORDERS.register("shortest-prompt")
class ShortestPrompt(QueueOrder):
    """Short prompts first; a long one may starve."""

    def key(self, request: Request, space: Space) -> float:
        return request.spec.num_prompt_tokens


@ORDERS.register("priority")
class Priority(QueueOrder):
    """Smaller is more urgent (vLLM `v1/request.py`, `Request.__lt__`)."""

    def key(self, request: Request, space: Space) -> float:
        return request.spec.priority


@ORDERS.register("longest-prefix")
class LongestPrefix(QueueOrder):
    """Longest cached prefix first (SGLang `schedule_policy.py`, LPM): keeps a hot prefix hot, and may starve the cold."""

    dynamic = True

    def key(self, request: Request, space: Space) -> float:
        return -space.lookup(space.known(request))


@ORDERS.register("ageing")
class Ageing(QueueOrder):
    """Shortest prompt first, but every step of waiting counts like `tokens_per_step` tokens less.

    All keys fall at the same rate, so their order never changes: length + tokens_per_step * arrival step.
    """

    def __init__(self, tokens_per_step: float = 1.0, **options: Any):
        super().__init__(**options)
        self.tokens_per_step = tokens_per_step

    def key(self, request: Request, space: Space) -> float:
        return request.spec.num_prompt_tokens + self.tokens_per_step * request.arrival_step


class WaitingQueue:
    """Requests in the order's order. The head is the last element of a list that is kept sorted downwards, so taking
    it is O(1) and a new arrival costs one binary search."""

    def __init__(self, order: QueueOrder, space: Space):
        self.order, self.space = order, space
        self._rows: list[tuple[float, int, Request]] = []  # (-key, -arrival, request), ascending
        self._stale = False

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Request]:
        """Head first. The one just yielded may be removed before going on."""
        if self.order.dynamic and self._stale:
            self._rows = sorted(self._row(request) for _, _, request in self._rows)
            self._stale = False
        rows = self._rows.copy() if self.order.blocked == "skip" else self._rows
        for row in reversed(rows):
            yield row[2]

    def push(self, request: Request) -> None:
        """Put it in its place."""
        insort(self._rows, self._row(request))

    def remove(self, request: Request) -> None:
        """It waits no longer."""
        if self._rows[-1][2] is request:
            self._rows.pop()
        else:
            self._rows = [row for row in self._rows if row[2] is not request]

    def touch(self) -> None:
        """The cache has changed: dynamic keys are no longer valid."""
        self._stale = True

    def _row(self, request: Request) -> tuple[float, int, Request]:
        return (-self.order.key(request, self.space), -request.arrival, request)
