"""What a snapshot says: where the free bytes are, who pins them, the largest request that would succeed, and a verdict.

Free bytes are of four kinds, told apart because each needs another cure:

    holes       free blocks beside live ones, in segments of the default pool     (fragmentation)
    cached      segments of the default pool that are wholly free                 (empty_cache returns them)
    private     free blocks of private pools: CUDA graphs, MemPool                (nobody else may use them)
    pending     freed, waiting for another stream                                 (record_stream)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError
from labkit.memory.measures import Fragmentation, measure
from labkit.memory.snapshot import Frames, Snapshot, SnapshotBlock, SnapshotSegment
from labkit.memory.snapshot_largest import largest_request
from labkit.memory.snapshot_sums import snapshot_sums
from labkit.memory.snapshot_trace import capacity_of, device_free_of
from labkit.units import format_bytes


@dataclass(frozen=True)
class Pinner:
    """Live blocks allocated at one place that have free bytes right beside them. `hole_bytes` of a hole between two places count for both."""

    frames: Frames
    num_blocks: int
    block_bytes: int
    num_holes: int
    hole_bytes: int


@dataclass(frozen=True)
class SnapshotReport:
    """All of it for one device. `largest_request` counts the default pool and `stream` 0 or the busiest one; it includes what
    the device still has when the trace tells (`device_free` not None)."""

    device: int
    capacity: int | None
    device_free: int | None
    sums: dict[str, int]
    fragmentation: Fragmentation
    hole_bytes: int
    cached_bytes: int
    private_free_bytes: int
    private_reserved_bytes: int
    pending_bytes: int
    stream: int
    largest_free_block: int
    largest_request: int
    last_failed: int | None
    pinners: list[Pinner]
    verdict: str
    sentence: str
    advice: list[str]
    #: what the unused bytes are, whatever request failed
    state: str
    state_sentence: str

    def as_dict(self) -> dict[str, Any]:
        from dataclasses import asdict

        return asdict(self)


def report(snapshot: Snapshot, device: int | None = None, *, capacity: int | None = None) -> SnapshotReport:
    """Analyse one device (the first that holds anything). `capacity`: bytes PyTorch may have, if the trace does not say."""
    if device is None:
        device = next(iter(snapshot.devices()), 0)
    segments = snapshot.of_device(device)
    if not segments and not snapshot.trace(device):
        known = ", ".join(map(str, snapshot.devices())) or "none"
        raise LabError(f"{snapshot.name}: holds nothing of device {device}; it has: {known}")
    sums = snapshot_sums(snapshot, device)
    reserved = sums["reserved_bytes.all.current"]
    free_on_device = device_free_of(snapshot, device)
    if capacity is None:
        capacity = capacity_of(snapshot, device)
    else:
        free_on_device = max(capacity - reserved, 0)
    stream = _busiest_stream(segments)
    kinds = _free_kinds(segments)
    failed = [event.size for event in snapshot.trace(device) if event.action == "oom"]
    largest = largest_request(snapshot, device, stream, free_on_device)
    facts: dict[str, Any] = {
        "capacity": capacity, "device_free": free_on_device, "sums": sums, "fragmentation": measure(snapshot.spans(device)),
        **kinds, "stream": stream, "largest_free_block": largest.block, "largest_request": largest.request,
        "last_failed": failed[-1] if failed else None,
    }  # fmt: skip
    state, state_sentence = judge_state(facts)
    verdict, sentence = judge_failure(facts) or (state, state_sentence)
    return SnapshotReport(
        device=device, **facts, pinners=pinners(segments), verdict=verdict, sentence=sentence,
        advice=CURES[verdict], state=state, state_sentence=state_sentence,
    )  # fmt: skip


def pinners(segments: list[SnapshotSegment], depth: int = 3) -> list[Pinner]:
    """Who keeps holes from closing: live blocks with a free neighbour, grouped by their `depth` innermost frames, most hole bytes first."""
    blocks: dict[Frames, dict[int, SnapshotBlock]] = defaultdict(dict)
    holes: dict[Frames, dict[int, int]] = defaultdict(dict)
    for segment in segments:
        for left, right in zip(segment.blocks, segment.blocks[1:]):
            for hole, pin in ((left, right), (right, left)):
                if hole.state == "free" and pin.state != "free":
                    where = pin.frames[:depth]
                    blocks[where][pin.address] = pin
                    holes[where][hole.address] = hole.size
    found = [
        Pinner(
            where, len(own), sum(b.size for b in own.values()), len(holes[where]), sum(holes[where].values())
        )
        for where, own in blocks.items()
    ]
    return sorted(found, key=lambda pinner: (-pinner.hole_bytes, pinner.frames))


def judge_failure(facts: dict[str, Any]) -> tuple[str, str] | None:
    """Why the last failed request of the trace failed: verdict and sentence. None without one."""
    asked, capacity = facts["last_failed"], facts["capacity"]
    if asked is None or capacity is None:
        return None
    holes, private, pending = facts["hole_bytes"], facts["private_free_bytes"], facts["pending_bytes"]
    reach = (facts["device_free"] or 0) + facts["cached_bytes"]
    size, want = format_bytes, f"The failed request of {format_bytes(asked)}"
    if asked > capacity:
        return (
            "exceeds capacity",
            f"{want} is larger than all PyTorch can have ({size(capacity)}); no setting helps.",
        )
    if reach + holes >= asked:
        return "fragmentation", (
            f"{want} fits into what is free ({size(reach + holes)}), but {size(holes)} of it are holes between live blocks."
        )
    if reach + holes + pending >= asked:
        return (
            "pending frees",
            f"{want} fits once {size(pending)} that wait for other streams are really free.",
        )
    if reach + holes + pending + private >= asked:
        return "private pools", (
            f"{want} lacks what lies free in private pools ({size(private)} of {size(facts['private_reserved_bytes'])} reserved there)."
        )
    return "truly full", (
        f"{want} needs more than everything that is free ({size(reach + holes + pending + private)}): "
        f"live tensors hold {size(facts['sums']['allocated_bytes.all.current'])}."
    )


def judge_state(facts: dict[str, Any]) -> tuple[str, str]:
    """What most of the bytes that are reserved and not in use are; "truly full" when they are under 2 %."""
    sums = facts["sums"]
    reserved, allocated = sums["reserved_bytes.all.current"], sums["allocated_bytes.all.current"]
    unused = {
        "fragmentation": (facts["hole_bytes"], "holes between live blocks"),
        "cached segments": (facts["cached_bytes"], "whole free segments, kept for reuse"),
        "private pools": (facts["private_free_bytes"], "free blocks inside private pools"),
        "pending frees": (facts["pending_bytes"], "freed blocks that wait for another stream"),
    }
    name, (most, what) = max(unused.items(), key=lambda item: item[1][0])
    if most < 0.02 * reserved or not reserved:
        return "truly full", (
            f"Of {format_bytes(reserved)} reserved, live tensors hold {format_bytes(allocated)}: what is reserved is in use."
        )
    return name, (
        f"Of {format_bytes(reserved)} reserved, {format_bytes(reserved - allocated)} are not in use; "
        f"most of them ({format_bytes(most)}) are {what}."
    )


CURES = {
    "exceeds capacity": ["find the tensor of that size; the state of the allocator did not matter"],
    "fragmentation": [
        "see who pins the holes",
        "expandable_segments:True lets a request grow over the hole at the end of a run; the replay says how much it would have saved",
    ],
    "cached segments": [
        "torch.cuda.empty_cache() returns them to the device; PyTorch does so itself before it gives up"
    ],
    "private pools": [
        "capture fewer CUDA graph sizes, or let graphs share one pool; expandable segments do not help"
    ],
    "pending frees": [
        "find Tensor.record_stream on long side streams; synchronise, or free after the side stream has finished"
    ],
    "truly full": [
        "hold less (smaller batch, KV pool, sequence, quantised weights); allocator settings cannot help"
    ],
}


def _free_kinds(segments: list[SnapshotSegment]) -> dict[str, int]:
    kinds = dict.fromkeys(
        ("hole_bytes", "cached_bytes", "private_free_bytes", "private_reserved_bytes", "pending_bytes"), 0
    )
    for segment in segments:
        free = sum(block.size for block in segment.blocks if block.state == "free")
        if segment.pool_id != (0, 0):
            kinds["private_free_bytes"] += free
            kinds["private_reserved_bytes"] += segment.size
        elif _wholly_free(segment):
            kinds["cached_bytes"] += free
        else:
            kinds["hole_bytes"] += free
        kinds["pending_bytes"] += sum(block.size for block in segment.blocks if block.state == "pending")
    return kinds


def _wholly_free(segment: SnapshotSegment) -> bool:
    return all(block.state == "free" for block in segment.blocks)


def _busiest_stream(segments: list[SnapshotSegment]) -> int:
    size: dict[int, int] = defaultdict(int)
    for segment in segments:
        size[segment.stream] += segment.size if segment.pool_id == (0, 0) else 0
    return max(size, key=lambda stream: (size[stream], -stream), default=0)
