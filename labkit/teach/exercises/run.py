"""`check` and `hint`: what a learner calls."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import LabError
from labkit.teach.exercises import progress
from labkit.teach.exercises.base import Exercise, Mistake, Picture, find_exercise
from labkit.teach.exercises.watch import short
from labkit.teach.sandbox import Outcome, run_limited


@dataclass(frozen=True)
class Report:
    """The answer of a check. `message` is what the learner reads; `printed` what the code printed meanwhile."""

    exercise: Exercise
    passed: bool
    message: str
    pictures: tuple[Picture, ...] = ()
    printed: str = ""
    seconds: float = field(default=0.0, compare=False)

    def figures(self) -> list[Any]:
        return [draw(picture) for picture in self.pictures]

    def text(self) -> str:
        mark, verdict = ("✓", "passed") if self.passed else ("✗", "not yet")
        printed = f"\n  your code printed: {self.printed.strip()}" if self.printed.strip() else ""
        return f"{mark} exercise {self.exercise.id}, {verdict}: {self.message}{printed}"

    def html(self) -> str:
        mark, verdict, colour = ("✓", "passed", "#1b7837") if self.passed else ("✗", "not yet", "#b2182b")
        printed = (
            f"<details><summary>your code printed</summary><pre>{html.escape(self.printed)}</pre></details>"
            if self.printed.strip()
            else ""
        )
        return (
            f'<div id="exercise-{self.exercise.id}" style="border-left:6px solid {colour};padding:6px 12px;margin:6px 0">'
            f'<b style="color:{colour}">{mark} Exercise {self.exercise.id}: {verdict}</b>'
            f'<div style="white-space:pre-wrap">{html.escape(self.message)}</div>{printed}'
            f'<div style="font-size:90%;opacity:.8">{html.escape(self.exercise.title)}, '
            f"checked in {self.seconds:.1f} s</div></div>"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"text/plain": self.text(), "text/html": self.html()}


class CheckFailed(AssertionError):
    """Raised by `check` after it has shown the report, so that a run of the whole notebook knows. Jupyter prints one line
    of it instead of a traceback."""

    def __init__(self, report: Report):
        super().__init__(report.text())
        self.report = report

    def _render_traceback_(self) -> list[str]:
        return [f"exercise {self.report.exercise.id}: not yet. hint({self.report.exercise.id!r}) helps."]


def check(exercise_id: str, *learner: Any) -> None:
    """Hold the learner's functions or classes against the lab's own, in a child with limits; show the report and note
    the progress. Raises `CheckFailed` when something is wrong, `LabError` for an unknown exercise."""
    report = report_on(exercise_id, *learner)
    progress.note_check(report.exercise.id, report.passed, report.message)
    _show(report)
    if not report.passed:
        raise CheckFailed(report)


def report_on(exercise_id: str, *learner: Any, time_s: float | None = None) -> Report:
    """The same without showing, noting or raising. `learner` may be one string, the source text of a solution, where the
    exercise runs in the worker."""
    exercise = find_exercise(exercise_id)
    limit_s = exercise.time_s if time_s is None else time_s
    if not exercise.worker and len(learner) != len(exercise.targets):
        names = ", ".join(exercise.targets)
        raise LabError(f'check("{exercise.id}", …) takes {len(exercise.targets)} arguments: {names}')
    if wrong := "" if exercise.worker else _not_callable(exercise, learner):
        return Report(exercise, False, wrong)
    start = time.monotonic()
    if exercise.worker:
        report = _in_worker(exercise, learner, limit_s)
    else:
        report = _report(exercise, run_limited(lambda: exercise.run(*learner), time_s=limit_s))
    return Report(
        exercise, report.passed, report.message, report.pictures, report.printed, time.monotonic() - start
    )


def _not_callable(exercise: Exercise, learner: Sequence[Any]) -> str:
    """Somebody gave an object, or what a function returned."""
    for name, item in zip(exercise.targets, learner):
        if not callable(item):
            call = f'check("{exercise.id}", {", ".join(exercise.targets)})'
            return f"{name}: the check got {short(item, 60)}. Give it the class or function itself, without calling it: {call}."
    return ""


def hint(exercise_id: str, start_over: bool = False) -> None:
    """Show the next hint. The place is kept with the progress, so a restarted kernel goes on where the last one was;
    `start_over=True` begins with the first hint again, and so does the call after the last one."""
    exercise = find_exercise(exercise_id)
    entry, total = progress.read_progress().get(exercise.id, {}), len(exercise.hints)
    at = 0 if start_over else entry.get("next_hint", min(entry.get("num_hints", 0), total))
    if at >= total:
        print(f"those were all {total} hints; from the first again:")
        at = 0
    print(f"hint {at + 1} of {total}: {exercise.hints[at]}")
    progress.note(exercise.id, num_hints=1, next_hint=at + 1)


def draw(picture: Picture) -> Any:
    """The figure of a picture."""
    if picture.kind == "bars":
        from labkit.viz.charts import draw_bars

        return draw_bars(picture.content, title=picture.title, **{"ylabel": "", **picture.options})
    if picture.kind == "tree":
        from labkit.teach.exercises.radix_picture import draw_tree

        return draw_tree(picture.content, title=picture.title)
    if picture.kind == "step":
        from labkit.teach.exercises.step_picture import draw_step

        return draw_step(picture.content, title=picture.title, **picture.options)
    from labkit.teach.exercises.strip import draw_strip

    return draw_strip(picture.content, title=picture.title, **picture.options)


def _in_worker(exercise: Exercise, learner: Sequence[Any], limit_s: float) -> Report:
    from labkit.teach.triton_worker import WORKER, source_of, triton_missing

    missing = triton_missing()
    if missing:
        return Report(exercise, False, missing)
    try:
        source = learner[0] if len(learner) == 1 and isinstance(learner[0], str) else source_of(learner)
        report = _report(exercise, WORKER.run(exercise.id, source, limit_s))
    except LabError as error:
        return Report(exercise, False, str(error))
    if report.passed and exercise.afterwards is not None:
        try:
            return Report(exercise, True, f"{report.message} {exercise.afterwards(source)}")
        except Mistake as mistake:
            return Report(exercise, False, mistake.message, mistake.pictures)
    return report


def _report(exercise: Exercise, outcome: Outcome) -> Report:
    """One sentence for whatever ended the child."""
    if outcome.kind == "value":
        return Report(exercise, True, str(outcome.value), printed=outcome.printed)
    error = outcome.error
    if isinstance(error, Mistake):
        return Report(exercise, False, error.message, error.pictures, outcome.printed)
    if isinstance(error, NotImplementedError):
        return Report(exercise, False, str(error) or "not implemented yet", printed=outcome.printed)
    if isinstance(error, SyntaxError):
        line = f" (line {error.lineno}: {(error.text or '').strip()})" if error.lineno else ""
        return Report(
            exercise, False, f"your code is not Python: {error.msg}{line}.", printed=outcome.printed
        )
    if error is not None:
        where = f" ({outcome.place})" if outcome.place else ""
        message = f"your code raised {type(error).__name__}: {error}{where}."
        return Report(exercise, False, message, printed=outcome.printed)
    where = f" It was in {outcome.place}." if outcome.place else ""
    if exercise.worker and "SIGSEGV" in outcome.sentence:
        where = (
            " A load or store went to an address outside every tensor: check the offsets and strides." + where
        )
    return Report(exercise, False, f"{outcome.sentence}.{where}", printed=outcome.printed)


def _show(report: Report) -> None:
    """A box and pictures in Jupyter; text elsewhere."""
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import display
    except ImportError:
        get_ipython = None  # type: ignore[assignment]
    if get_ipython is None or get_ipython() is None:
        print(report.text())
        return
    display(report)  # type: ignore[no-untyped-call]
    for figure in report.figures():
        display(figure)  # type: ignore[no-untyped-call]
