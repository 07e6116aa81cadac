"""`labkit verify --live`: a recording's operations on the PyTorch and CUDA device of this machine, beside the model.

A real device has another size than the recorded one and other addresses, so nothing is compared with the recording.
Both sides run the same operations from an empty cache, with a memory fraction that leaves them the recorded capacity,
and are compared in what does not depend on addresses: status and statistics after every operation, every device call
in order with its size, and for each allocation the segment (by order of creation) and the offset in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from labkit.errors import LabError
from labkit.memory.base import Allocation, OutOfMemory
from labkit.memory.caching.allocator import CachingAllocator
from labkit.memory.caching.live_child import STATS
from labkit.memory.caching.replay_format import FORMAT, check_shape
from labkit.recording import Comparison
from labkit.units import format_bytes

Task = dict[str, Any]
_NATIVE_CALLS = ("segment_alloc", "segment_free")
_EXPANDABLE_CALLS = ("segment_map", "segment_unmap")


def replay_live(recording: dict[str, Any], run_child: Callable[[Task], Task] | None = None) -> Comparison:
    """Differences between this machine's PyTorch ("recorded" in the output) and the model ("replayed").

    Raises `LabError` without a CUDA device, or when the device is smaller than the recorded one. `run_child` runs the
    operations on the real allocator (tests put another one here).
    """
    check_shape(recording)
    config, ops = recording["config"], recording["ops"]
    total = int(config["total_memory"] * (config["memory_fraction"] or 1))
    real = (run_child or _run_child)({"ops": ops, "total_memory": total, "alloc_conf": config["alloc_conf"]})
    if real["device_bytes"] < total:
        raise LabError(
            f"the device has {format_bytes(real['device_bytes'])}; this recording needs {format_bytes(total)}"
        )
    model = _run_model(ops, config["alloc_conf"], real["device_bytes"], real["fraction"])
    comparison = Comparison(f"{FORMAT} on torch {real['release']}", num_ops=len(ops))
    for index, (live, own) in enumerate(zip(real["rows"], model["rows"], strict=True)):
        for name, left, right in zip(("status", *STATS), live, own, strict=True):
            comparison.compare(f"rows[{index}].{name}", left, right)
    comparison.compare("device_calls", _device_calls(real["trace"]), _device_calls(model["trace"]))
    comparison.compare("places", _places(real["trace"]), _places(model["trace"]))
    return comparison


def _run_child(task: Task) -> Task:
    import torch

    if not torch.cuda.is_available():
        raise LabError(f"--live needs a CUDA device, and torch {torch.__version__} sees none on this machine")
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    }
    if task["alloc_conf"]:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = task["alloc_conf"]
    child = subprocess.run(
        [sys.executable, "-m", "labkit.memory.caching.live_child"],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        env=environment,
    )
    if child.returncode:
        lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        raise LabError(f"the run on the real allocator failed: {lines[-1]}")
    answer: Task = json.loads(child.stdout)
    return answer


def _run_model(ops: list[list[Any]], alloc_conf: str, device_bytes: int, fraction: float) -> Task:
    allocator = CachingAllocator(
        device_bytes, alloc_conf=alloc_conf, memory_fraction=fraction, address_policy="bump"
    )
    allocator.history = []
    live: dict[int, Allocation] = {}
    rows = []
    for op in ops:
        status = "ok"
        if op[0] == "empty_cache":
            allocator.empty_cache()
        elif op[0] == "free":
            if op[1] in live:
                allocator.free(live.pop(op[1]))
            else:
                status = "skipped"
        elif op[2]:
            try:
                live[op[1]] = allocator.malloc(op[2], stream=op[3] if len(op) == 4 else 0)
            except OutOfMemory:
                status = "oom"
        stats = allocator.memory_stats()
        rows.append([status, *(stats[key] for key in STATS)])
    return {"rows": rows, "trace": [[entry.action, entry.addr, entry.size] for entry in allocator.history]}


def _device_calls(trace: list[list[Any]]) -> list[list[Any]]:
    """[action, size] of every call to the device, in order."""
    return [[action, size] for action, _, size in trace if action in _NATIVE_CALLS + _EXPANDABLE_CALLS]


def _places(trace: list[list[Any]]) -> list[list[int]]:
    """[segment, offset] of every allocation in order; segments count in order of creation. Empty when segments are
    expandable: where their ranges begin is not in a trace."""
    segments: dict[int, tuple[int, int]] = {}  # address -> (number, size)
    places, num_segments = [], 0
    for action, address, size in trace:
        if action in _EXPANDABLE_CALLS:
            return []
        if action == "segment_alloc":
            segments[address] = (num_segments, size)
            num_segments += 1
        elif action == "segment_free":
            del segments[address]
        elif action == "alloc":
            base = next(a for a, (_, length) in segments.items() if a <= address < a + length)
            places.append([segments[base][0], address - base])
    return places
