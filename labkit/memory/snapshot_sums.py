"""The statistics that follow from a snapshot's blocks, under the names of `torch.cuda.memory_stats`.

Only values of the instant can follow (`….current`): peaks and totals over time are not in the segments.
Rules: docs/allocators.md; with expandable segments PyTorch counts no segments and no inactive splits.
"""

from __future__ import annotations

from collections import defaultdict

from labkit.memory.snapshot import Snapshot, SnapshotSegment

METRICS = (
    "active", "active_bytes", "allocated_bytes", "allocation", "inactive_split", "inactive_split_bytes",
    "requested_bytes", "reserved_bytes", "segment",
)  # fmt: skip


def snapshot_sums(snapshot: Snapshot, device: int = 0) -> dict[str, int]:
    """`{"allocated_bytes.all.current": …}` for one device; private pools as `reserved_bytes_by_private_pools.0_1.…`."""
    sums: dict[str, int] = defaultdict(int)
    for metric in METRICS:
        for family in ("all", "small_pool", "large_pool"):
            sums[f"{metric}.{family}.current"] = 0
    limit = snapshot.settings.get("max_split_size", -1)
    limit = limit if isinstance(limit, int) else -1
    sums["oversize_allocations.current"] = sums["oversize_segments.current"] = 0
    for segment in snapshot.of_device(device):
        for family in ("all", "small_pool" if segment.is_small else "large_pool"):
            for metric, value in _segment_sums(segment).items():
                sums[f"{metric}.{family}.current"] += value
            if segment.pool_id != (0, 0):
                pool = "_".join(map(str, segment.pool_id))
                sums[f"reserved_bytes_by_private_pools.{pool}.{family}.current"] += segment.size
        if limit > 0:
            sums["oversize_segments.current"] += segment.size >= limit and not segment.is_expandable
            sums["oversize_allocations.current"] += sum(
                block.size >= limit and block.state == "allocated" for block in segment.blocks
            )
    return dict(sums)


def _segment_sums(segment: SnapshotSegment) -> dict[str, int]:
    allocated = [block for block in segment.blocks if block.state == "allocated"]
    active = [block for block in segment.blocks if block.state != "free"]
    split = [block for block in segment.blocks if block.state == "free" and len(segment.blocks) > 1]
    if segment.is_expandable:
        split = []
    return {
        "active": len(active),
        "active_bytes": sum(block.size for block in active),
        "allocated_bytes": sum(block.size for block in allocated),
        "allocation": len(allocated),
        "inactive_split": len(split),
        "inactive_split_bytes": sum(block.size for block in split),
        "requested_bytes": sum(block.requested for block in active),
        "reserved_bytes": segment.size,
        "segment": 0 if segment.is_expandable else 1,
    }
