"""What an exercise is, what a failed check says, and how the modules are found."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from labkit.errors import LabError


@dataclass(frozen=True)
class Picture:
    """A figure as data, because the check runs in a child: drawn by the parent.

    kind "strip"  `content` is a list of `strip.Piece`; options of `strip.draw_strip` (unit, marks, group)
    kind "bars"   `content` is {label: {series: value}}; options of `labkit.viz.charts.draw_bars` (ylabel, stacked)
    kind "tree"   `content` is a list of `radix_picture.Row`
    kind "step"   `content` is {row: {request: tokens}}; options of `step_picture.draw_step` (budget)
    """

    kind: Literal["strip", "bars", "tree", "step"]
    title: str
    content: Any
    options: dict[str, Any] = field(default_factory=dict)


class Mistake(Exception):
    """What the learner got wrong: one or two sentences that name the mistake and the input, and its picture.

    `kind` is the name of the exception where the learner's code raised one: shortening a sequence must not turn one
    failure into another. `calls` are the lines that lead there, ready to be pasted."""

    def __init__(self, message: str, *pictures: Picture, kind: str = "", calls: Sequence[str] = ()):
        super().__init__(message)
        self.message, self.pictures, self.kind, self.calls = message, pictures, kind, tuple(calls)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_mistake, (self.message, self.pictures, self.kind, self.calls))


def _mistake(message: str, pictures: Sequence[Picture], kind: str, calls: Sequence[str]) -> Mistake:
    return Mistake(message, *pictures, kind=kind, calls=calls)


@dataclass(frozen=True)
class Exercise:
    """`targets` are the names that the learner defines, in the order in which `check` takes them. `run(*learner)` raises
    `Mistake`, or returns one sentence on what was shown. `worker`: the check runs Triton's interpreter, so it goes to the
    worker process as source text (`labkit.teach.triton_worker`)."""

    id: str
    name: str
    title: str
    targets: tuple[str, ...]
    hints: tuple[str, ...]
    run: Callable[..., str]
    #: CPU seconds; on the clock `sandbox.PATIENCE` times as many
    time_s: float = 2.0
    worker: bool = False
    #: runs in this process after a check in the worker passed: compiling, benching; returns a sentence
    afterwards: Callable[[str], str] | None = None

    @property
    def notebook(self) -> str:
        return f"ex{self.id}_{self.name}"


@cache
def _modules() -> dict[str, str]:
    """`{"07": "ex07_block_table"}`."""
    import labkit.teach.exercises as package

    names = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name.startswith("ex")]
    return {name[2:4]: name for name in sorted(names) if name[2:4].isdigit()}


def exercise_ids() -> list[str]:
    return list(_modules())


def find_exercise(exercise_id: object) -> Exercise:
    """By "07", "7" or 7. Raises `LabError` that lists the ids."""
    key = str(exercise_id).strip().removeprefix("ex").split("_")[0].zfill(2)
    if key not in _modules():
        raise LabError(f"exercise {exercise_id!r} is not known; choose one of: {', '.join(exercise_ids())}")
    module = importlib.import_module(f"labkit.teach.exercises.{_modules()[key]}")
    exercise: Exercise = module.EXERCISE
    return exercise


def that(condition: bool, message: str, *pictures: Picture, kind: str = "") -> None:
    """`Mistake(message, *pictures)` unless `condition`."""
    if not condition:
        raise Mistake(message, *pictures, kind=kind)
