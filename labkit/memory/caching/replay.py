"""Replays a recording of PyTorch's allocator (format `cuda-caching-allocator-golden/1`) on `CachingAllocator` and
compares every recorded field.

What the driver decided (where segments lie, the streams' handles) is no decision of the allocator: it is read off the
recording.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Any

from labkit.memory.caching.device import AddressPolicy
from labkit.memory.caching.replay_format import COLUMNS, FORMAT, RELEASE, check_shape
from labkit.memory.caching.replay_run import Run
from labkit.recording import Comparison


def replay(recording: dict[str, Any], max_kept: int = 20) -> Comparison:
    """Every row, device event, layout digest, reservation, and the final layout, device counters and statistics."""
    check_shape(recording)
    comparison = Comparison(FORMAT, max_kept=max_kept)
    policy, top = _heap(recording)
    run = Run(recording, streams=_stream_handles(recording), address_policy=policy, heap_top=top)
    for key, release in RELEASE.items():
        comparison.compare(key, recording.get(key, "<absent>"), release)
    comparison.compare("columns", recording["columns"], COLUMNS)
    for index, (op, row) in enumerate(zip(recording["ops"], recording["rows"], strict=True)):
        values = run.step(op)
        comparison.num_ops += 1
        for column, recorded, replayed in zip(COLUMNS, row, values, strict=False):
            if recorded != replayed:
                comparison.compare(f"rows[{index}].{column}", recorded, replayed)
    comparison.compare("events", recording["events"], run.events)
    comparison.compare("layout_digests", recording["layout_digests"], run.digests)
    comparison.compare("reservations", recording["reservations"], [list(r) for r in run.device.reservations])
    final = {"segments": run.final_segments(), "device": run.device.counters(), "stats": run.final_stats()}
    comparison.compare("final", recording["final"], final)
    return comparison


def _stream_handles(recording: dict[str, Any]) -> tuple[int, int]:
    """The driver's handles of the two streams: like addresses they are its own, and no decision depends on their
    values. Read off the final layout: the handle of the segment where most allocations of each stream lie."""
    if not recording["config"]["two_streams"]:
        return 0, 1
    segments = sorted(
        (s["addr"], s["addr"] + s["total_size"], s["stream"]) for s in recording["final"]["segments"]
    )
    votes: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for op, row in zip(recording["ops"], recording["rows"], strict=True):
        if op[0] == "alloc" and isinstance(row[1], int):
            place = bisect_right(segments, (row[1], 1 << 63)) - 1
            if place >= 0 and row[1] < segments[place][1]:
                votes[op[3] if len(op) == 4 else 0][segments[place][2]] += 1
    first = votes[0].most_common(1)[0][0] if votes[0] else 0
    return first, votes[1].most_common(1)[0][0] if votes[1] else first + 1


def _heap(recording: dict[str, Any]) -> tuple[AddressPolicy, int]:
    """How the driver placed segments, and where its heap ends when it grows downwards: the distance that most
    recorded addresses have from those of a heap that ends at 0. A descending heap may reuse gaps or not; the way that
    agrees with more recorded addresses is taken. The other policies begin at 0."""
    if recording["config"]["address_policy"] != "descending":
        return recording["config"]["address_policy"], 0
    best: tuple[int, AddressPolicy, int] = (-1, "descending", 0)
    policies: tuple[AddressPolicy, AddressPolicy] = ("descending", "last-fit")
    for policy in policies:
        run = Run(recording, address_policy=policy)
        distances = Counter(
            row[1] - values[1]
            for row, values in zip(recording["rows"], map(run.step, recording["ops"]), strict=True)
            if isinstance(row[1], int) and values[1] is not None
        )
        for top, num_agreeing in distances.most_common(1):
            best = max(best, (num_agreeing, policy, top), key=lambda found: found[0])
    return best[1], best[2]
