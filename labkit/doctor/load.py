"""Any mix of files or a folder into one `Evidence`. What a file is, its content says; the name only helps with folders.

One damaged file does not spoil the others: it is named in `damaged`. When nothing at all can be used, the first problem
is raised.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from labkit.doctor.evidence import Evidence
from labkit.doctor.load_log import looks_like_log, read_log
from labkit.doctor.load_smi import looks_like_smi, read_smi
from labkit.doctor.load_torch import looks_like_stats, read_snapshot, read_stats
from labkit.doctor.recorded import load_run
from labkit.doctor.signals import FELT_S
from labkit.errors import InputError, LabError
from labkit.observe.scrape import Page, parse_pages, read_pages, series_frame

#: files a folder may hold beside evidence
_IGNORED = ("truth.json", "README.md")


def load_evidence(paths: Sequence[str | Path]) -> Evidence:
    """Read files, folders and `http(s)` addresses. Raises `InputError` when nothing in them is evidence."""
    if not paths:
        raise LabError("no evidence given; name files, a folder, or a server's /metrics address")
    evidence, pages, problems = Evidence(), [], []
    for path in _files(paths):
        try:
            pages += _read(path, evidence)
            evidence.sources.append(str(path))
        except LabError as error:
            problems.append(error)
            evidence.damaged.append(str(error))
    if pages:
        for page in pages:
            _count_short_queues(page)
        if all(page.time_s is not None for page in pages):
            evidence.origin_s = pages[0].time_s
        evidence.series = series_frame(pages)
    if not evidence.sources:
        raise problems[0]
    return evidence


def _count_short_queues(page: Page) -> None:
    """`queue_le_1_count`: requests that queued a second at most, from the histogram's first edge at or above it."""
    edges = page.buckets.get("queue", {})
    edge = min((edge for edge in edges if edge >= FELT_S), default=None)
    if edge is not None:
        page.values["queue_le_1_count"] = edges[edge]


def _files(paths: Iterable[str | Path]) -> list[str | Path]:
    """Files in the order given; a folder's own in order of name (a recorded run's folder stays whole)."""
    found: list[str | Path] = []
    for path in paths:
        if str(path).startswith(("http://", "https://")):
            found.append(str(path))
            continue
        path = Path(path)
        if path.is_dir():
            inside = sorted(
                p for p in path.rglob("*") if p.is_file() and p.name not in _IGNORED and p.name[0] != "."
            )
            if not inside:
                raise InputError(
                    path, "holds no files; expected evidence such as /metrics pages, logs or a recorded run"
                )
            runs = {p.parent for p in inside if p.suffix == ".parquet"}
            found += [*sorted(runs), *(p for p in inside if p.parent not in runs)]
        else:
            found.append(path)
    return found  # fmt: skip


def _read(path: str | Path, evidence: Evidence) -> list[Page]:
    """Add what `path` says to `evidence`; pages come back, because a series needs all of them."""
    if isinstance(path, str):
        return read_pages([path])
    if path.is_dir() or path.suffix == ".parquet":
        load_run(path, evidence)
        return []
    if path.suffix in (".pickle", ".pkl"):
        read_snapshot(path, evidence)
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            path, "no such file; give evidence such as a /metrics page, a log or a recorded run"
        ) from None
    except (UnicodeDecodeError, OSError):
        raise InputError(
            path, "cannot be read as text, and is neither Parquet nor a memory snapshot"
        ) from None
    if not text.strip():
        raise InputError(
            path, "is empty; expected evidence such as a /metrics page, a log, memory_stats or nvidia-smi"
        )
    if looks_like_stats(text):
        read_stats(text, str(path), evidence)
    elif text.lstrip()[0] == "{" and _is_settings(text):
        raise InputError(
            path,
            "is JSON without torch.cuda.memory_stats keys; expected allocated_bytes.all.current and others",
        )
    elif looks_like_smi(text):
        read_smi(text, str(path), evidence)
    elif looks_like_log(text) and "# TYPE" not in text:
        read_log(text, str(path), evidence)
    else:
        return parse_pages(text, str(path))
    return []  # fmt: skip


def _is_settings(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
