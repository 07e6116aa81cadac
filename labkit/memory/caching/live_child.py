"""The part of `labkit verify --live` that touches the real allocator: a child process, because PyTorch reads
PYTORCH_CUDA_ALLOC_CONF once for each process. JSON in on stdin, JSON out on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

#: statistics read after every operation, under the names of `torch.cuda.memory_stats`
STATS = (
    "reserved_bytes.all.current",
    "allocated_bytes.all.current",
    "requested_bytes.all.current",
    "active_bytes.all.current",
    "inactive_split_bytes.all.current",
    "inactive_split.all.current",
    "segment.all.current",
    "num_ooms",
    "num_alloc_retries",
)


def run_operations(ops: list[list[Any]], total_memory: int) -> dict[str, Any]:
    """Run alloc, free and empty_cache on device 0, allowed to reserve `total_memory` bytes.

    Returns the release, the device's size, the fraction that was set, `rows` ([status, *STATS] after each
    operation) and `trace` ([action, address, size] of everything the allocator did).
    """
    import torch

    device_bytes = torch.cuda.get_device_properties(0).total_memory
    fraction = min(total_memory / device_bytes, 1.0)
    torch.cuda.set_per_process_memory_fraction(fraction, 0)
    streams = [0, torch.cuda.Stream(device=0).cuda_stream if any(len(op) == 4 for op in ops) else 0]
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=100 * len(ops) + 1000)
    before = torch.cuda.memory_stats(0)
    live: dict[int, int] = {}
    rows = []
    for op in ops:
        status = "ok"
        if op[0] == "empty_cache":
            torch.cuda.empty_cache()
        elif op[0] == "free":
            if op[1] in live:
                torch.cuda.caching_allocator_delete(live.pop(op[1]))
            else:
                status = "skipped"
        elif op[2]:
            try:
                stream = streams[op[3] if len(op) == 4 else 0]
                live[op[1]] = torch.cuda.caching_allocator_alloc(op[2], 0, stream)
            except torch.OutOfMemoryError:
                status = "oom"
        stats = torch.cuda.memory_stats(0)
        rows.append([status, *(stats.get(key, 0) - before.get(key, 0) for key in STATS)])
    trace = torch.cuda.memory._snapshot(0)["device_traces"][0]
    return {
        "release": torch.__version__,
        "device_bytes": device_bytes,
        "fraction": fraction,
        "rows": rows,
        "trace": [[e["action"], e.get("addr", 0), e["size"]] for e in trace],
    }


def main() -> None:
    task = json.load(sys.stdin)
    json.dump(run_operations(task["ops"], task["total_memory"]), sys.stdout)


if __name__ == "__main__":
    main()
