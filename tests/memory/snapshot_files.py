"""The handed snapshots, and small ones made on the spot."""

import contextlib
import gzip
import io
import json
from pathlib import Path

import numpy as np

from labkit.memory import OutOfMemory
from labkit.memory.caching import CachingAllocator
from labkit.memory.snapshot import Snapshot, parse_snapshot
from labkit.memory.snapshot_export import export_snapshot
from labkit.memory.snapshot_pickle import _Plain

FOLDER = Path(__file__).parent / "snapshots"
NAMES = ("plain", "expandable")


def raw(name: str) -> bytes:
    return gzip.decompress((FOLDER / f"{name}.pickle.gz").read_bytes())


def handed(name: str) -> Snapshot:
    return parse_snapshot(_Plain(raw(name), name).load(), name)


def handed_stats(name: str) -> dict[str, int]:
    return json.load(io.BytesIO(gzip.decompress((FOLDER / f"{name}_stats.json.gz").read_bytes())))


def churned(seed: int, conf: str, *, capacity: int = 256 << 20, num_ops: int = 300) -> CachingAllocator:
    """A caching allocator after random work on two streams, with its history."""
    rng = np.random.default_rng(seed)
    allocator = CachingAllocator(capacity, alloc_conf=conf)
    allocator.history, live = [], []
    for index in range(num_ops):
        if rng.random() < 0.55:
            size = int(
                rng.choice(
                    [
                        rng.integers(1, 1 << 20),
                        rng.integers(1 << 20, 12 << 20),
                        rng.integers(12 << 20, 40 << 20),
                    ]
                )
            )
            with contextlib.suppress(OutOfMemory):
                live.append(
                    allocator.malloc(
                        size, tag=f"r{index}", lifetime="request", stream=int(rng.random() < 0.1) * 7
                    )
                )
        elif live:
            allocator.free(live.pop(int(rng.integers(len(live)))))
        if rng.random() < 0.01:
            allocator.empty_cache()
    return allocator


def snapshot_of(allocator: CachingAllocator) -> Snapshot:
    return parse_snapshot(export_snapshot(allocator))
