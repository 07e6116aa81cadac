"""A learner's file: the code cells of a notebook, or a Python file, executed in a limited child and checked there.

report_on_file("exercises/ex07_block_table.ipynb")
report_on_file("my_table.py", exercise_id="07")
"""

from __future__ import annotations

import json
import linecache
import re
import time
from pathlib import Path
from typing import Any

from labkit.errors import InputError, LabError
from labkit.teach.exercises.base import Exercise, find_exercise
from labkit.teach.exercises.run import Report, _in_worker, _report
from labkit.teach.sandbox import run_limited
from labkit.teach.sandbox_child import CELL_LINE


def report_on_file(path: Path | str, exercise_id: str | None = None) -> Report:
    """Execute the file and check what it defines. Raises `LabError` for a file that cannot be read; whatever its code
    does ends in the report."""
    path = Path(path)
    found = re.match(r"ex(\d\d)_", path.name)
    if exercise_id is None and not found:
        raise LabError(f"{path}: its name does not say which exercise it is; name the number too")
    exercise = find_exercise(exercise_id if exercise_id is not None else found[1])  # type: ignore[index]
    source = read_source(path)
    start = time.monotonic()
    if exercise.worker:
        report = _in_worker(exercise, (source,), exercise.time_s)
    else:
        report = _report(exercise, run_limited(lambda: _run(exercise, source, path), time_s=exercise.time_s))
    return Report(
        exercise, report.passed, report.message, report.pictures, report.printed, time.monotonic() - start
    )


def read_source(path: Path) -> str:
    """The Python text of a .py file, or of a notebook's code cells without magics and without the check cells."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, f"cannot be read ({error}); give a .py file or a notebook") from None
    if path.suffix != ".ipynb":
        return text
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, KeyError, TypeError):
        raise InputError(path, "is not a notebook; give a .py file or a notebook") from None
    code = [
        "".join(cell["source"]) for cell in cells if cell.get("cell_type") == "code" and not is_example(cell)
    ]
    return "\n\n".join(f"{CELL_LINE}1\n{without_checks(cell)}" for cell in code)


def is_example(cell: dict[str, Any]) -> bool:
    """A cell to play with: it may do anything, and no check depends on it."""
    return "example" in cell.get("metadata", {}).get("tags", ())


def without_checks(cell: str) -> str:
    """A cell without its magics and without calls of `check` and `hint` that stand at the start of a line."""
    dropped = ("%", "!", "check(", "hint(")
    return "\n".join("" if line.startswith(dropped) else line for line in cell.splitlines())


def _run(exercise: Exercise, source: str, path: Path) -> str:
    namespace: dict[str, Any] = {"__name__": "submission"}
    lines = [line + "\n" for line in source.splitlines()]
    linecache.cache[str(path)] = (len(source), None, lines, str(path))  # a notebook's own lines are JSON
    exec(compile(source, str(path), "exec"), namespace)
    missing = [name for name in exercise.targets if name not in namespace]
    if missing:
        raise LabError(f"{path.name} does not define {' or '.join(missing)}")
    return exercise.run(*(namespace[name] for name in exercise.targets))
