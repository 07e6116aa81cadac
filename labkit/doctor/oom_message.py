"""PyTorch's out-of-memory message, read and written, in its three generations (`labkit/data/oom_templates.json`).

Numbers are printed with two decimals, so each is known only to half a hundredth of its unit: `Printed` keeps that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from labkit.errors import LabError

_UNIT_BYTES = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"([0-9]+(?:\.[0-9]+)?) (bytes|B|KiB|MiB|GiB|TiB)"


@dataclass(frozen=True)
class Printed:
    """A size as it was printed; the true one lies within `slack` bytes of `num_bytes`."""

    num_bytes: float
    slack: float
    text: str

    @staticmethod
    def parse(number: str, unit: str) -> Printed:
        """`("1.50", "GiB")` -> bytes, and half of the last printed digit as slack."""
        decimals = len(number.partition(".")[2])
        scale = _UNIT_BYTES[unit]
        slack = 0.0 if unit in ("bytes", "B") else scale * 10.0**-decimals / 2
        return Printed(float(number) * scale, slack, f"{number} {unit}")


@dataclass(frozen=True)
class OomMessage:
    """What one message says. None: the message does not say it (older generations say less)."""

    generation: str
    gpu_index: int
    tried: Printed
    total: Printed
    free: Printed
    allocated: Printed
    reserved_unallocated: Printed
    private_pools: Printed | None = None
    this_process: Printed | None = None
    allowed: Printed | None = None
    #: other lines "Process N has X memory in use"; in a container this process may be among them
    processes: tuple[tuple[int | None, Printed], ...] = ()


def parse_oom(text: str) -> OomMessage:
    """Find the message in `text` (a whole log is fine; line breaks do not matter).

    Raises `LabError` in one sentence when there is none or a number is missing.
    """
    flat = " ".join(text.split())
    start = re.search(r"(?:CUDA|HIP) out of memory\. ?Tried to allocate ", flat)
    if not start:
        raise LabError(
            f"no PyTorch out-of-memory message in the text ({len(text)} characters); it starts with "
            '"CUDA out of memory. Tried to allocate"'
        )
    flat = flat[start.start() :]
    return _parse_old(flat) if re.match(rf".*?allocate {_SIZE} \(GPU", flat) else _parse_new(flat)


def render_oom(printed: Mapping[str, Any], generation: str) -> str:
    """The message's text from its printed numbers, e.g. `{"tried": "1.33 GiB", "gpu_index": 0, …}`.

    Optional keys: `private_pools`, `this_process`, `allowed`, `process_lines` (sizes) and `process_ids`.
    """
    templates = oom_templates()
    if generation not in templates:
        raise LabError(f"unknown message generation {generation!r}; choose one of: {', '.join(templates)}")
    sizes: Sequence[str] = printed.get("process_lines", ())
    pids: Sequence[int] = printed.get("process_ids", range(1001, 1001 + len(sizes)))
    lines = "".join(f"Process {pid} has {size} memory in use. " for pid, size in zip(pids, sizes))
    if "this_process" in printed:
        lines += f"Including non-PyTorch memory, this process has {printed['this_process']} memory in use. "
    return templates[generation].format_map(
        {
            **printed,
            "processes": lines,
            "allowed": f"{printed['allowed']} allowed; " if "allowed" in printed else "",
            "private": f"with {printed['private_pools']} allocated in private pools (e.g., CUDA Graphs), "
            if "private_pools" in printed
            else "",
        }
    )


@cache
def oom_templates() -> dict[str, str]:
    """Generation -> template."""
    data = json.loads(files("labkit").joinpath("data/oom_templates.json").read_text(encoding="utf-8"))
    return {name: entry["template"] for name, entry in data["generations"].items()}


def _parse_old(flat: str) -> OomMessage:
    tried, allocated = _size(flat, "tried", "allocate {}"), _size(flat, "allocated", "{} already allocated")
    reserved = _size(flat, "reserved", "{} reserved in total")
    unallocated = Printed(
        max(0.0, reserved.num_bytes - allocated.num_bytes), reserved.slack + allocated.slack, "difference"
    )
    return OomMessage(
        "2.0", _gpu(flat), tried, _size(flat, "total capacity", "{} total capacity"), _size(flat, "free", "{} free;"),
        allocated, unallocated,
    )  # fmt: skip


def _parse_new(flat: str) -> OomMessage:
    processes = tuple(
        (int(pid), Printed.parse(number, unit))
        for pid, number, unit in re.findall(rf"Process (\d+) has {_SIZE} memory in use", flat)
    )
    return OomMessage(
        "2.1" if "capacty" in flat else "2.2",
        _gpu(flat),
        _size(flat, "tried", "allocate {}"),
        _size(flat, "total capacity", "total capaci?ty of {}"),
        _size(flat, "free", "of which {} is free"),
        _size(flat, "allocated", "allocated memory {} is allocated"),
        _size(flat, "reserved but unallocated", "and {} is reserved"),
        _find(flat, "with {} allocated in private pools"),
        _find(flat, "this process has {} memory in use"),
        _find(flat, "{} allowed;"),
        processes,
    )


def _gpu(flat: str) -> int:
    match = re.search(r"GPU (\d+)", flat)
    if not match:
        raise LabError(
            "the out-of-memory message does not say which GPU; it is cut off after the size it tried"
        )
    return int(match[1])


def _find(flat: str, pattern: str) -> Printed | None:
    match = re.search(pattern.replace("{}", _SIZE), flat)
    return Printed.parse(match[1], match[2]) if match else None


def _size(flat: str, name: str, pattern: str) -> Printed:
    found = _find(flat, pattern)
    if found is None:
        raise LabError(
            f"the out-of-memory message has no readable size for {name}; expected a text like {pattern.format('1.33 GiB')!r}"
        )
    return found
