"""What machine code says: registers and spills from `ptxas -v`, load widths from the disassembly.

Load instructions are attributed to source lines by the line table (`nvdisasm --print-line-info`), and the lines on which
loads begin carry tags: `# kv` where keys, values or copied rows are read, `# table` where a block id is read. So "the KV
path uses 16-byte loads" is a statement about exactly those instructions: `LDG…128`, or `LDGSTS…128` (global to shared
memory, asynchronous).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r'//## File "([^"]+)", line (\d+)')
_LOAD = re.compile(r"\b(LDG|LDGSTS)(\.[A-Z0-9.]+)? ")
_TAG = re.compile(r"#\s*(kv|table)\s*$")
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}


@dataclass(frozen=True, slots=True)
class Ptxas:
    """Figures of one kernel from ptxas's own report."""

    registers: int
    spill_bytes: int


def parse_ptxas(report: str) -> Ptxas:
    """From the text of `ptxas -v`. Raises `ValueError` where the report lacks a figure: silence is not zero spills."""
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    if registers is None or spills is None:
        raise ValueError(f"ptxas -v did not report registers and spills: {report!r}")
    return Ptxas(int(registers[1]), int(spills[1]) + int(spills[2]))


def load_widths(sass: str) -> dict[str, Counter[tuple[str, int]]]:
    """Global loads by tag of their source line ("kv", "table" or ""): `{tag: {(instruction, bits): count}}`."""
    loads: dict[str, Counter[tuple[str, int]]] = {"kv": Counter(), "table": Counter(), "": Counter()}
    tag = ""
    for text in sass.splitlines():
        if line := _LINE.search(text):
            tag = _tag_of(line[1], int(line[2]))  # the innermost line, before any "inlined at"
        elif load := _LOAD.search(text):
            parts = (load[2] or "").split(".")
            bits = next((_WIDTHS[part] for part in parts if part in _WIDTHS), 32)
            loads[tag][load[1], bits] += 1
    return loads


_TAGS: dict[str, dict[int, str]] = {}


def _tag_of(path: str, line: int) -> str:
    if path not in _TAGS:
        file = Path(path)
        lines = file.read_text().splitlines() if file.is_file() else []
        _TAGS[path] = {n: match[1] for n, text in enumerate(lines, 1) if (match := _TAG.search(text))}
    return _TAGS[path].get(line, "")
