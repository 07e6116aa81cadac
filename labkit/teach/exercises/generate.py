"""`exercises/` from `solutions/`: the same notebooks with every solution replaced by one line.

nbgrader's preprocessors do it (`ClearSolutions`, `ClearHiddenTests`, `LockCells`, `ClearOutput`), with its metadata kept
and enforced, so an instructor can use nbgrader on the result; learners need none of it. Nothing else is changed: cell
ids, order and text stay, so generating twice gives the same bytes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from labkit.atomic_file import write_atomic
from labkit.errors import InputError, LabError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
PART = "this part"


def generate(solutions: Path, exercises: Path) -> dict[str, str]:
    """Write every exercise whose text differs; remove notebooks that no solution stands behind. Returns
    `{file name: "written", "unchanged" or "removed"}`."""
    names = sorted(path.name for path in solutions.glob("ex*.ipynb"))
    if not names:
        raise LabError(
            f"{solutions}: no notebook ex*.ipynb is there; run from the repository's root, or give --solutions"
        )
    exercises.mkdir(parents=True, exist_ok=True)
    done = {}
    for name in names:
        text, target = stripped(solutions / name), exercises / name
        if target.exists() and target.read_text(encoding="utf-8") == text:
            done[name] = "unchanged"
            continue
        write_atomic(target, text)
        done[name] = "written"
    for stray in sorted(exercises.glob("*.ipynb")):
        if stray.name not in names:
            stray.unlink()
            done[stray.name] = "removed"
    return done


def stripped(path: Path) -> str:
    """The exercise's text for the solution at `path`. Raises `InputError` when no solution is marked, or nbgrader is not
    installed."""
    try:
        from nbgrader.preprocessors import ClearHiddenTests, ClearOutput, ClearSolutions, LockCells
        from traitlets.config import Config
    except ImportError as error:
        raise LabError(f"generating exercises needs nbgrader ({error}); install the lab with [dev]") from None
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    if not any(BEGIN in cell.source for cell in notebook.cells):
        raise InputError(path, f"no cell has a solution between {BEGIN!r} and {END!r}")
    config = Config()
    config.ClearSolutions.code_stub = {"python": stub(path.name)}
    config.ClearSolutions.enforce_metadata = True
    resources: dict[str, Any] = {}
    for preprocessor in (ClearSolutions, ClearHiddenTests, LockCells, ClearOutput):
        notebook, resources = preprocessor(config=config).preprocess(notebook, resources)
    for cell in notebook.cells:
        cell.source = named_stubs(cell.source)
    return str(nbformat.writes(notebook, version=4)) + "\n"


def stub(name: str) -> str:
    """`raise NotImplementedError("ex07: …")`: what stands where the solution was; `named_stubs` puts the function's name in."""
    found = re.match(r"ex(\d\d)_", name)
    if not found:
        raise InputError(name, "is not named exNN_name.ipynb")
    return f'raise NotImplementedError("ex{found[1]}: {PART} is not written yet; replace this line by your code")'


def named_stubs(source: str) -> str:
    """`PART` of every stub becomes the name of the function (and class) around it: "MyBlockTable.append"."""
    lines, owner, function = [], "", ""
    for line in source.splitlines():
        if found := re.match(r"class (\w+)", line):
            owner, function = f"{found[1]}.", ""
        elif found := re.match(r"( *)def (\w+)", line):
            function = found[2] if not found[1] else owner + found[2]
        lines.append(line.replace(PART, function) if "NotImplementedError" in line else line)
    return "\n".join(lines)


def solution_lines(path: Path) -> list[str]:
    """The lines between the markers, without indentation: what must not occur in the exercise."""
    import nbformat

    lines: list[str] = []
    for cell in nbformat.read(path, as_version=4).cells:
        inside = False
        for line in cell.source.splitlines():
            if line.strip() in (BEGIN, END):
                inside = line.strip() == BEGIN
            elif inside and line.strip():
                lines.append(line.strip())
    return lines
