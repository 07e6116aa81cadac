"""Server logs: what a start printed (the ledger), what made the head of the queue wait, and out-of-memory messages.

Lines of vLLM and SGLang, and the lab's own; a line nobody knows is passed over.
"""

from __future__ import annotations

import re
from datetime import datetime

from labkit.doctor.evidence import Evidence, HeadWait
from labkit.doctor.oom import explain_oom
from labkit.errors import LabError
from labkit.units import GIB

_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_WAIT = re.compile(
    r"request (\S+) waits \((\S+)\): needs (\d+) tokens, free (\d+), evictable (\d+), largest free span (\d+)"
)
_OOM = re.compile(r"(?:CUDA|HIP) out of memory\. ?Tried to allocate")
#: setting -> pattern of a number, and what one of it is worth
_NUMBERS: dict[str, tuple[re.Pattern[str], float]] = {
    "weights_bytes": (re.compile(r"(?:Model loading took|Loading model weights took|[Mm]odel weights take) ([\d.]+) ?Gi?B"), GIB),
    "kv_bytes": (re.compile(r"(?:Available KV cache memory:|KV [Cc]ache is allocated.*?[KV] size:|reserved for KV Cache is) (-?[\d.]+) ?Gi?B"), GIB),
    "kv_tokens": (re.compile(r"(?:GPU KV cache size: |max_total_num_tokens=)([\d,]+)"), 1),
    "activation_bytes": (re.compile(r"(?:Peak activation memory:|PyTorch activation peak memory takes) ([\d.]+) ?Gi?B"), GIB),
    "graph_bytes": (re.compile(r"(?:Graph capturing finished in .*?took|Capture cuda graph end.*?mem usage=) ?([\d.]+) ?Gi?B"), GIB),
    "max_num_seqs": (re.compile(r"max_num_seqs['\"]?[=:] ?(\d+)"), 1),
    "utilisation": (re.compile(r"gpu_memory_utilization['\"]?[=:] ?([\d.]+)"), 1),
}  # fmt: skip
_QUANTISATION = re.compile(r"quantization['\"]?[=:] ?'?(\w+)")
_KV_DTYPE = re.compile(r"kv_cache_dtype['\"]?[=:] ?'?(\w+)")
_BITS = {
    "none": 16,
    "fp8": 8,
    "w8a8": 8,
    "bitsandbytes": 4,
    "awq": 4,
    "gptq": 4,
    "marlin": 4,
    "int4": 4,
    "int8": 8,
}


def looks_like_log(text: str) -> bool:
    """A line with a log level, or an out-of-memory message."""
    return bool(re.search(r"^.*\b(INFO|WARNING|ERROR|DEBUG)\b", text, re.M) or _OOM.search(text))


def read_log(text: str, where: str, evidence: Evidence) -> None:
    """Add settings, waits and failures. Raises `LabError` when no line says anything that is known."""
    before = len(evidence.settings) + len(evidence.waits) + len(evidence.ooms)
    for name, (pattern, unit) in _NUMBERS.items():
        if found := pattern.search(text):
            evidence.settings[name] = float(found[1].replace(",", "")) * unit
    if found := _QUANTISATION.search(text):
        evidence.settings["weight_bits"] = next(
            (bits for name, bits in _BITS.items() if name in found[1].lower()), 16
        )
    if found := _KV_DTYPE.search(text):
        evidence.settings["kv_bits"] = 8 if "8" in found[1] else 16
    for line in text.splitlines():
        if wait := _WAIT.search(line):
            name, limit, *numbers = wait.groups()
            evidence.waits.append(HeadWait(_time(line) or 0.0, name, limit, *map(int, numbers)))
        elif _OOM.search(line):
            try:
                evidence.ooms.append(explain_oom(line))
            except LabError as error:
                evidence.damaged.append(f"{where}: {error}")
    if not evidence.ooms and _OOM.search(text):  # a message over several lines
        evidence.ooms.append(explain_oom(text))
    if before == len(evidence.settings) + len(evidence.waits) + len(evidence.ooms):
        raise LabError(f"{where}: is a log without a line that says anything about memory; expected what a server prints at start, waits or out-of-memory messages")  # fmt: skip


def _time(line: str) -> float | None:
    found = _STAMP.search(line)
    return None if found is None else datetime(*map(int, found.groups())).timestamp()  # type: ignore[arg-type]
