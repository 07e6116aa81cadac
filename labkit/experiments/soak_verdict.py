"""The verdict of a soak: which measures of the drained server rose with age, and what that is called."""

from __future__ import annotations

import numpy as np

from labkit.experiments.soak_result import Window, contiguity_loss
from labkit.experiments.soak_server import WORKSPACE_DEVICE_BYTES
from labkit.experiments.soak_trends import Trend, trend
from labkit.kv.base import KVStats

#: what makes a rise count: shares of the KV pool, of free memory, of the workspace's device share, of the latency itself
THRESHOLDS = {"live": 0.02, "cached": 0.05, "fragmentation": 0.10, "reserved": 0.05, "latency": 0.20}
#: requests that a window needs before its P95 is worth a test
MIN_REQUESTS = 100


def trends_of(life: int, windows: list[Window], fresh: KVStats) -> list[Trend]:
    """The tests of one life: memory after each drain, against `fresh` (an empty server), and P95 of TTFT where windows
    have requests enough."""
    rows = [w for w in windows if w.life == life]
    hours = [w.end_h for w in rows]
    pool = fresh.capacity_bytes

    def of(
        name: str,
        key: str,
        unit: str,
        threshold: float,
        start: float | None,
        scale: float = 1.0,
        less: int = 0,
    ) -> Trend:
        values = [(getattr(w, key) - less) / scale for w in rows]
        return trend(name, unit, life, hours, values, threshold=threshold, fresh=start)

    loss = contiguity_loss(fresh)
    ttft = float(np.median([w.ttft_p95_s for w in rows[: max(1, len(rows) // 4)]]))
    found = [
        of("live after drain", "live_bytes", "share of the pool", THRESHOLDS["live"], fresh.reserved_bytes / pool, pool),
        of("cached after drain", "cached_bytes", "share of the pool", THRESHOLDS["cached"], fresh.cached_bytes / pool, pool),
        of("fragmentation after drain", "fragmentation", "share of the free bytes", THRESHOLDS["fragmentation"], loss),
        of("reserved after drain", "reserved_bytes", "share of the workspace's device memory", THRESHOLDS["reserved"],
           None, WORKSPACE_DEVICE_BYTES, pool),
    ]  # fmt: skip
    if np.median([w.num_requests for w in rows]) >= MIN_REQUESTS:
        found.append(of("TTFT P95", "ttft_p95_s", "s", THRESHOLDS["latency"] * ttft, None))
    return found


def judge(trends: list[Trend]) -> tuple[str, str]:
    """`(verdict, sentence)` from the trends of all lives; what holds in one life is enough, healed by the restart or not."""
    if all(t.num_windows < 6 for t in trends):
        return "too short to say", "No life has six windows; a slope test needs at least as many."
    found = {
        name: max((t for t in trends if t.name == name), key=lambda t: (t.aged, t.rise))
        for name in dict.fromkeys(t.name for t in trends)
    }
    live, cached = found["live after drain"], found["cached after drain"]
    holes, reserved, ttft = (
        found["fragmentation after drain"],
        found["reserved after drain"],
        found.get("TTFT P95"),
    )
    slower = ttft is not None and ttft.aged
    if ttft is None:
        effect = f" TTFT P95 is not judged: windows have fewer than {MIN_REQUESTS} requests."
    elif slower:
        effect = f" TTFT P95 rose from {ttft.fresh:.2f} to {ttft.last:.2f} s."
    else:
        effect = " TTFT P95 did not grow."
    if live.leaks:
        return "leak", (
            f"Live memory in the drained server grew by {100 * live.slope:.2f} % of the pool an hour (p = {live.p:.1g}) to "
            f"{100 * live.last:.1f} %: somebody keeps blocks.{effect}"
        )
    if holes.aged:
        return "fragmentation ageing", (
            f"Of the free memory of the drained server {100 * holes.last:.0f} % lies outside the largest span, {100 * holes.fresh:.0f} % "
            f"when it was fresh, and what is live did not grow.{effect}"
        )
    if reserved.leaks:
        return "allocator growth", (
            f"The allocator's reserved memory grew by {100 * reserved.slope:.2f} % of its device share an hour (p = {reserved.p:.1g}) "
            f"with nothing live.{effect}"
        )
    if slower:
        return "latency ageing", f"Memory came back to what it was.{effect}"
    if cached.aged:
        return "cache fill", (
            f"After the drain {100 * cached.last:.0f} % of the pool is cached and what is live did not grow: the cache is "
            f"full, which is what it is for.{effect}"
        )
    return (
        "no ageing",
        f"Nothing grew by its threshold: memory after each drain stayed what it was.{effect}",
    )
