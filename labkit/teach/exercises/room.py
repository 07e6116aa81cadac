"""The progress of a whole room, read from one file a learner: who passed what, and who is stuck without asking."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.teach.exercises.progress import load, status_rows

#: so many checks of an exercise that is not passed, and no hint: somebody who does not ask
STUCK_CHECKS = 4


def room(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """One row a learner, by file name. `problem` says what is wrong with a file that is empty, damaged or unreadable; the
    counts of such a row are None, since nothing is known. Raises `InputError` for a path that is not there."""
    return [_learner(path) for path in _progress_files(paths)]


def _progress_files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            here = sorted([*path.glob("*.json"), *path.glob("*.damaged")])
            if not here:
                raise InputError(
                    path, "has no progress in it; a folder with one .json file a learner is read"
                )
            found += here
        elif path.exists():
            found.append(path)
        else:
            raise InputError(path, "no such file or folder; give progress files, or a folder of them")
    return list(dict.fromkeys(found))


def _learner(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"learner": path.name.removesuffix(".json"), "file": str(path), "problem": ""}
    row |= dict.fromkeys(("passed", "num_checks", "num_hints", "stuck", "last_failed"))
    if path.suffix == ".damaged":
        return row | {"problem": "was damaged and is kept aside"}
    try:
        exercises = status_rows(load(path))
    except OSError as error:
        return row | {"problem": f"cannot be read ({error.strerror or error})"}
    except InputError as error:
        return row | {"problem": error.problem}
    failed = [e for e in exercises if e["last_failed_message"]]
    last = max(failed, key=lambda e: e["last_failed_at"] or "", default=None)
    return row | {
        "passed": [e["id"] for e in exercises if e["state"] == "passed"],
        "num_checks": sum(e["num_checks"] for e in exercises),
        "num_hints": sum(e["num_hints"] for e in exercises),
        "stuck": [
            e["id"]
            for e in exercises
            if e["state"] != "passed" and e["num_checks"] >= STUCK_CHECKS and not e["num_hints"]
        ],
        "last_failed": last and {"id": last["id"], "message": last["last_failed_message"]},
    }


def room_text(rows: Sequence[dict[str, Any]], width: int = 160) -> str:
    """The table of the room, cut at `width` characters (the whole messages are in the JSON)."""
    lines = [("learner", "passed", "checks", "hints", "stuck", "last failed message")]
    for row in rows:
        if row["problem"]:
            continue
        last = row["last_failed"]
        lines.append(
            (
                row["learner"],
                " ".join(row["passed"]) or "-",
                str(row["num_checks"]),
                str(row["num_hints"]),
                " ".join(row["stuck"]) or "-",
                f"{last['id']}: {' '.join(last['message'].split())}" if last else "-",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    shown = ["  ".join([*map(str.ljust, line, widths), line[5]]) for line in lines]
    shown = [line if len(line) <= width else f"{line[: width - 1]}…" for line in shown]
    unread = [f"{row['file']}: {row['problem']}" for row in rows if row["problem"]]
    num_read = len(rows) - len(unread)
    said = f"{num_read} learners; stuck: {STUCK_CHECKS} or more checks of an open exercise and no hint"
    return "\n".join([*shown, said, *unread])
