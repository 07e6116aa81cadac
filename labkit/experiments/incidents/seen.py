"""What a simulated server shows: scrapes, waits, and the effect on its users."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

BYTES_PER_TOKEN = 131_072
EDGES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
#: a scrape every so often, and how long they go on after the last request
SCRAPE_S, TAIL_S = 6.0, 260.0


@dataclass
class Histogram:
    """Cumulative counts by upper edge, as servers publish them."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(EDGES) + 1))
    total: float = 0.0

    def add(self, value: float) -> None:
        """One observation, in seconds."""
        self.counts[bisect_left(EDGES, value)] += 1
        self.total += value

    def snapshot(self) -> tuple[list[int], float]:
        """Cumulative counts by edge, and the sum in seconds."""
        return np.cumsum(self.counts).tolist(), self.total


@dataclass(frozen=True)
class Row:
    """One scrape. Tokens and counts; histograms as `(cumulative counts, sum)`."""

    time_s: float
    values: dict[str, float]
    histograms: dict[str, tuple[list[int], float]]


@dataclass(frozen=True)
class Wait:
    """The head of the queue at a scrape: what it needs and what there is, in tokens."""

    time_s: float
    request_id: str
    limit: str
    needed: int
    free: int
    evictable: int
    largest_free: int


@dataclass
class Watched:
    """A run as its operator sees it, and its effect on users: P95 of TTFT and refusals of all requests."""

    rows: list[Row]
    waits: list[Wait]
    ttft_s: list[float]
    num_requests: int
    num_refused: int
    num_preempted: int
    capacity_tokens: int
    peak_live_tokens: int
    prefill_steps: list[tuple[float, int]]

    @property
    def ttft_p95_s(self) -> float:
        return float(np.percentile(self.ttft_s, 95)) if self.ttft_s else 0.0

    @property
    def is_blocked_often(self) -> bool:
        """The queue waits for memory, or for a limit that was set, in two stretches at least or a twentieth of the time."""
        times = [wait.time_s for wait in self.waits if wait.limit != "token_budget"]
        stretches = sum(b - a > 10 for a, b in pairwise(times)) + bool(times)
        busy_s = SCRAPE_S * sum(
            row.values["num_running"] + row.values["num_waiting"] > 0 for row in self.rows
        )
        return stretches >= 2 or len(times) >= 0.05 * busy_s

    @property
    def refusal_share(self) -> float:
        return self.num_refused / max(1, self.num_requests)
