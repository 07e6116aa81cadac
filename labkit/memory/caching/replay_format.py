"""The format `cuda-caching-allocator-golden/1`: its columns, the release it was recorded from, and what a file must hold.
docs/recordings.md describes it."""

from __future__ import annotations

from typing import Any

from labkit.errors import InputError

FORMAT = "cuda-caching-allocator-golden/1"
#: the release that the model equals; a recording of another one shows as a difference in these two fields
RELEASE = {"torch_version": "2.14.1+cu130", "torch_git": "5c4886908584029761b579af026dcfb627c84070"}
#: what a row holds after its operation: where it was placed, gauges of the statistics, counters
COLUMNS = [
    "status", "addr", "seg", "off", "block_size",
    "reserved_bytes", "allocated_bytes", "requested_bytes", "active_bytes", "inactive_split_bytes",
    "inactive_split_blocks", "segments", "snapshot_segments",
    "num_ooms", "num_alloc_retries", "num_device_alloc", "num_device_free", "largest_free_block", "free_blocks",
]  # fmt: skip


def check_shape(recording: dict[str, Any]) -> None:
    """One sentence for a file that is not such a recording."""
    where = recording.get("name", "recording")
    for key, kind in {
        "config": dict,
        "ops": list,
        "columns": list,
        "rows": list,
        "events": list,
        "layout_digests": list,
        "reservations": list,
        "final": dict,
    }.items():
        if not isinstance(recording.get(key), kind):
            raise InputError(where, f"is missing or not a {kind.__name__}", field=key)
    for key in ("total_memory", "alloc_conf", "memory_fraction", "address_policy", "two_streams"):
        if key not in recording["config"]:
            raise InputError(where, "is missing", field=f"config.{key}")
    if len(recording["ops"]) != len(recording["rows"]):
        raise InputError(
            where, f"has {len(recording['rows'])} rows for {len(recording['ops'])} operations", field="rows"
        )
    for index, op in enumerate(recording["ops"]):
        accepted = (
            isinstance(op, list)
            and op
            and {"alloc": len(op) in (3, 4), "free": len(op) == 2, "empty_cache": len(op) == 1}.get(op[0])
            and all(isinstance(value, int) and value >= 0 for value in op[1:])
            and (len(op) < 4 or op[3] in (0, 1))
        )
        if not accepted:
            raise InputError(
                where, f"is {op!r}; an alloc, free or empty_cache is expected", row=index, field="ops"
            )
        if not isinstance(recording["rows"][index], list) or len(recording["rows"][index]) != len(COLUMNS):
            raise InputError(where, f"is not a list of {len(COLUMNS)} values", row=index, field="rows")
    if not isinstance(recording["final"].get("segments"), list):
        raise InputError(where, "is missing or not a list", field="final.segments")
