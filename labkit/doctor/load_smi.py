"""nvidia-smi: the CSV of `--query-gpu=timestamp,index,memory.used,memory.total`, or the table that it prints by itself."""

from __future__ import annotations

import re
from datetime import datetime

from labkit.doctor.evidence import CardReading, Evidence
from labkit.errors import InputError
from labkit.units import MIB

_TABLE = re.compile(r"(\d+)MiB */ *(\d+)MiB")
_PROCESS = re.compile(r"^\|\s+(\d+)\s.*?(\d+)MiB \|", re.M)


def looks_like_smi(text: str) -> bool:
    """Whether a text is nvidia-smi's, as CSV or as its table."""
    return "memory.used" in text.splitlines()[0] or "NVIDIA-SMI" in text or bool(_TABLE.search(text))


def read_smi(text: str, where: str, evidence: Evidence) -> None:
    """Add one reading a row or a card. Raises `InputError` with row and field for a number that is none."""
    if "memory.used" in text.splitlines()[0]:
        _csv(text, where, evidence)
        return
    processes: dict[int, list[float]] = {}
    for index, used in _PROCESS.findall(text):
        processes.setdefault(int(index), []).append(float(used) * MIB)
    cards = _TABLE.findall(text)
    if not cards:
        raise InputError(
            where, "has no line with memory such as 39123MiB / 81920MiB; expected nvidia-smi's table"
        )
    for index, (used, total) in enumerate(cards):
        held = tuple(processes.get(index, ()))
        evidence.cards.append(CardReading(None, index, float(used) * MIB, float(total) * MIB, held))  # fmt: skip


def _csv(text: str, where: str, evidence: Evidence) -> None:
    lines = text.splitlines()
    names = [cell.split("[")[0].strip() for cell in lines[0].split(",")]
    for wanted in ("memory.used", "memory.total"):
        if wanted not in names:
            raise InputError(
                where, "is missing in the header; query memory.used and memory.total", field=wanted
            )
    for row, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = dict(zip(names, (cell.strip() for cell in line.split(","))))
        values = {}
        for name in ("memory.used", "memory.total"):
            found = re.match(r"([\d.]+)", cells.get(name, ""))
            if not found:
                raise InputError(
                    where, f"is {cells.get(name, '')!r}; expected a number of MiB", row=row, field=name
                )
            values[name] = float(found[1]) * MIB
        index = int(cells["index"]) if cells.get("index", "").isdigit() else 0
        time_s = _time(cells.get("timestamp", ""))
        evidence.cards.append(CardReading(time_s, index, values["memory.used"], values["memory.total"]))


def _time(text: str) -> float | None:
    try:
        return datetime.strptime(text.split(".")[0], "%Y/%m/%d %H:%M:%S").timestamp()
    except ValueError:
        return None
