"""Who has solved what: a small JSON file, `~/.cache/labkit/exercises.json` (or where `LABKIT_PROGRESS` points)."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.atomic_file import write_atomic
from labkit.errors import InputError
from labkit.teach.exercises.base import exercise_ids, find_exercise

Progress = dict[str, dict[str, Any]]


def progress_file() -> Path:
    given = os.environ.get("LABKIT_PROGRESS")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "labkit" / "exercises.json"


def load(path: Path) -> Progress:
    """The progress in a file:

        {"07": {"num_checks": 3, "num_hints": 1, "passed_at": "..." or None, "last_message": "...",
                "last_check_passed": True, "last_failed_message": "...", "last_failed_at": "..." or None}}

    `last_failed_message` outlives a pass, and `passed_at` a later failure. Raises `OSError` for a file that cannot be read
    and `InputError` for one that is empty or damaged.
    """
    content = path.read_bytes()
    if not content.strip():
        raise InputError(path, "is empty")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(path, f"is damaged, not JSON ({' '.join(str(error).split())[:80]})") from None
    if not isinstance(found, dict) or not all(_is_entry(entry) for entry in found.values()):
        raise InputError(path, "is damaged: not the progress of the exercises")
    return found


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and all(
        isinstance(value, int) for name, value in entry.items() if name.startswith("num_")
    )


def read_progress() -> Progress:
    """What `load` finds in one's own file; a file that cannot be read counts as empty."""
    try:
        return load(progress_file())
    except (OSError, InputError):
        return {}


def note_check(exercise_id: str, passed: bool, message: str) -> None:
    """Note one check and its message."""
    changes = {"passed_at": now()} if passed else {"last_failed_message": message, "last_failed_at": now()}
    note(exercise_id, num_checks=1, last_message=message, last_check_passed=passed, **changes)


def note(exercise_id: str, **changes: Any) -> None:
    """Write changes; a number named `num_...` is added. A place that cannot be written is no reason to stop a check: a
    sentence on stderr says so. A damaged file is kept aside as `NAME.damaged`, which is said too."""
    path = progress_file()
    try:
        progress = _load_or_keep_aside(path)
        entry = progress.setdefault(
            exercise_id, {"num_checks": 0, "num_hints": 0, "passed_at": None, "last_message": ""}
        )
        for name, value in changes.items():
            entry[name] = entry.get(name, 0) + value if name.startswith("num_") else value
        write_atomic(path, json.dumps(progress, indent=1), parents=True)
    except OSError as error:
        print(f"progress is not saved: {path}: {error.strerror or error}", file=sys.stderr)


def _load_or_keep_aside(path: Path) -> Progress:
    try:
        return load(path)
    except FileNotFoundError:
        return {}
    except InputError as error:
        if path.stat().st_size:
            aside, number = path.with_name(f"{path.name}.damaged"), 1
            while aside.exists():
                number += 1
                aside = path.with_name(f"{path.name}.{number}.damaged")
            path.rename(aside)
            print(f"{error}; it is kept as {aside.name} and the progress begins again", file=sys.stderr)
        return {}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def status_rows(progress: Progress | None = None) -> list[dict[str, Any]]:
    """One row an exercise (default: of one's own progress): id, title, notebook, state ("passed", "tried" or "open";
    what was passed once stays passed), checks, hints, and the messages of the last check and of the last failed one."""
    progress = read_progress() if progress is None else progress
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
                "last_check_passed": entry.get("last_check_passed"),
                "last_failed_message": entry.get("last_failed_message", ""),
                "last_failed_at": entry.get("last_failed_at"),
            }
        )
    return rows
