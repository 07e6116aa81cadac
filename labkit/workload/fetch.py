"""Download a public trace: to a temporary name, checked against its SHA-256, then renamed. Nothing is half-written."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from labkit.atomic_file import atomic_path
from labkit.errors import LabError
from labkit.workload.traces import TRACES, TraceFile, trace_cache

TIMEOUT_S = 30.0
_CHUNK = 1 << 16


def known_trace(name: str) -> TraceFile:
    """Raises `LabError` that lists the names."""
    if name not in TRACES:
        raise LabError(f"unknown trace {name!r}; choose one of: {', '.join(sorted(TRACES))}")
    return TRACES[name]


def fetch(trace: TraceFile, folder: Path | None = None, *, url: str | None = None) -> Path:
    """The path of the checked file in `folder` (the cache unless given). A good copy that is there already is kept.

    `url` is another place that holds the same file. Raises `LabError` when it cannot be had or is not the file that
    the checksum names; whatever was there before stays.
    """
    target = (folder or trace_cache()) / trace.file_name
    if target.is_file() and checksum(target) == trace.sha256:
        return target
    address = url or trace.url
    if address is None:
        raise LabError(
            f"trace {trace.name!r} is derived data without a public address; put {trace.file_name} into {target.parent}"
        )
    try:
        with atomic_path(target, parents=True) as temporary:
            with temporary.open("wb") as file:
                digest, size = _download(address, trace, file)
            if digest != trace.sha256:
                raise LabError(
                    f"{address}: the file has SHA-256 {digest[:16]}… and {size:,} bytes, expected {trace.sha256[:16]}… "
                    f"and {trace.num_bytes:,} bytes; nothing was kept"
                )
    except OSError as error:
        raise LabError(
            f"{target.parent}: cannot be written ({error.strerror}); give a folder with --to"
        ) from None
    return target


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _download(address: str, trace: TraceFile, file: object) -> tuple[str, int]:
    if not address.startswith(("https://", "http://")):
        raise LabError(f"{address!r} is not an http(s) address")
    digest, size = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            while chunk := answer.read(_CHUNK):
                size += len(chunk)
                if size > 2 * trace.num_bytes:
                    raise LabError(
                        f"{address}: sends more than {2 * trace.num_bytes:,} bytes; expected {trace.num_bytes:,}"
                    )
                digest.update(chunk)
                file.write(chunk)  # type: ignore[attr-defined]
    except urllib.error.HTTPError as error:
        raise LabError(
            f"{address}: the server answers {error.code} {error.reason}; trace {trace.name!r} was not fetched"
        ) from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise LabError(
            f"{address}: cannot be reached ({reason}); trace {trace.name!r} was not fetched"
        ) from None
    return digest.hexdigest(), size
