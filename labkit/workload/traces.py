"""Where public traces lie on this machine. They are data of others and not part of the project."""

from __future__ import annotations

import os
from pathlib import Path


def trace_folders() -> list[Path]:
    """Places in the order in which they are searched: beside the checkout, then the cache of `labkit traces fetch`."""
    return [Path(__file__).resolve().parents[3] / "shared" / "traces", trace_cache()]


def trace_cache() -> Path:
    """Folder of `labkit traces fetch`: `$XDG_CACHE_HOME/labkit/traces`, else `~/.cache/labkit/traces`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit" / "traces"


def find_trace(name: str) -> Path | None:
    """The file called `name`, or None where this machine has none (a test then says which one it skips)."""
    for folder in trace_folders():
        if (folder / name).is_file():
            return folder / name
    return None
