"""Who has solved what: a small JSON file, `~/.cache/labkit/exercises.json` (or where `LABKIT_PROGRESS` points)."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.atomic_file import write_atomic
from labkit.teach.exercises.base import exercise_ids, find_exercise


def progress_file() -> Path:
    given = os.environ.get("LABKIT_PROGRESS")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "labkit" / "exercises.json"


def read_progress() -> dict[str, dict[str, Any]]:
    """`{"07": {"num_checks": 3, "num_hints": 1, "passed_at": "..." or None, "last_message": "..."}}`; a file that
    cannot be read counts as empty."""
    try:
        found = json.loads(progress_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def note(exercise_id: str, **changes: Any) -> None:
    """Write changes; a number named `num_...` is added. A place that cannot be written is no reason to stop a check."""
    progress = read_progress()
    entry = progress.setdefault(
        exercise_id, {"num_checks": 0, "num_hints": 0, "passed_at": None, "last_message": ""}
    )
    for name, value in changes.items():
        entry[name] = entry.get(name, 0) + value if name.startswith("num_") else value
    with contextlib.suppress(OSError):
        write_atomic(progress_file(), json.dumps(progress, indent=1), parents=True)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def status_rows() -> list[dict[str, Any]]:
    """One row an exercise: id, title, notebook, state ("passed", "tried" or "open"), checks, hints."""
    progress = read_progress()
    rows = []
    for exercise_id in exercise_ids():
        exercise, entry = find_exercise(exercise_id), progress.get(exercise_id, {})
        state = "passed" if entry.get("passed_at") else "tried" if entry.get("num_checks") else "open"
        rows.append(
            {
                "id": exercise_id,
                "title": exercise.title,
                "notebook": exercise.notebook,
                "state": state,
                "num_checks": entry.get("num_checks", 0),
                "num_hints": entry.get("num_hints", 0),
                "passed_at": entry.get("passed_at"),
                "last_message": entry.get("last_message", ""),
            }
        )
    return rows
