"""torch.cuda.memory_stats as JSON (one dictionary, or one a line with `time_s`), and pickled memory snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.doctor.evidence import Evidence
from labkit.errors import InputError
from labkit.memory.snapshot import read_snapshot as parse_snapshot_file
from labkit.memory.snapshot_sums import snapshot_sums

#: column -> key of torch.cuda.memory_stats
KEYS = {
    "allocated": "allocated_bytes.all.current",
    "active": "active_bytes.all.current",
    "reserved": "reserved_bytes.all.current",
    "inactive_split": "inactive_split_bytes.all.current",
    "num_retries": "num_alloc_retries",
    "num_ooms": "num_ooms",
}


def looks_like_stats(text: str) -> bool:
    """Whether a text is `torch.cuda.memory_stats` as JSON lines."""
    return text.lstrip()[0] == "{" and "bytes.all.current" in text


def read_stats(text: str, where: str, evidence: Evidence) -> None:
    """Add rows. Raises `InputError` for a line that is not JSON or has no reserved bytes."""
    try:
        whole = json.loads(text)
        lines: list[tuple[int | None, Any]] = [(None, whole)]
    except ValueError:
        lines = []
        for row, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                try:
                    lines.append((row, json.loads(line)))
                except ValueError:
                    raise InputError(
                        where, "is not JSON; expected one dictionary of memory_stats a line", row=row
                    ) from None
    _add([_row(stats, where, row) for row, stats in lines], evidence)  # fmt: skip


def read_snapshot(path: Path, evidence: Evidence) -> None:
    """Add the sums of a snapshot, and the largest free block of its default pool."""
    snapshot = parse_snapshot_file(path)
    row = _row(snapshot_sums(snapshot), str(path), None)
    free = [
        b.size for s in snapshot.of_device(0) for b in s.blocks if b.state == "free" and s.pool_id == (0, 0)
    ]
    row["largest_free"], row["free"] = float(max(free, default=0)), float(sum(free))
    _add([row], evidence)


def _row(stats: Any, where: str, row: int | None) -> dict[str, float]:
    if not isinstance(stats, dict) or not isinstance(stats.get(KEYS["reserved"]), int | float):
        raise InputError(
            where,
            "is missing; expected a dictionary of torch.cuda.memory_stats",
            row=row,
            field=KEYS["reserved"],
        )
    found = {
        column: float(stats[key]) for column, key in KEYS.items() if isinstance(stats.get(key), int | float)
    }
    if "active" not in found and "allocated" in found:
        found["active"] = found["allocated"]
    if isinstance(stats.get("time_s"), int | float):
        found["time_s"] = float(stats["time_s"])
    return found  # fmt: skip


def _add(rows: list[dict[str, float]], evidence: Evidence) -> None:
    import pandas as pd

    frame = pd.DataFrame(rows)
    evidence.memory = frame if evidence.memory is None else pd.concat([evidence.memory, frame], ignore_index=True)  # fmt: skip
