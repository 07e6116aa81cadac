"""Every exercise: the stub fails with its own message, the solution passes, wrong solutions are rejected by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from labkit.teach.exercises import find_exercise
from labkit.teach.exercises.run import Report
from labkit.teach.exercises.submission import report_on_file
from labkit.workload.traces import find_trace
from tests.exercises.trees import CHECKED, expected_words, notebook, wrong_solutions

_SPEC = importlib.util.find_spec("triton")
#: `tests/blocked` in front of the path stands for a system without it
TRITON = _SPEC is not None and "blocked" not in str(_SPEC.origin)


def report_on(path: Path) -> Report:
    exercise = find_exercise(path.name[2:4])
    if exercise.worker and not TRITON:
        pytest.skip("triton cannot be imported here")
    return report_on_file(path)


@pytest.mark.parametrize("exercise_id", CHECKED)
def test_stub_fails_with_its_own_message(exercise_id: str) -> None:
    report = report_on(notebook("exercises", exercise_id))
    assert not report.passed
    assert report.message.startswith(f"ex{exercise_id}: "), report.message


@pytest.mark.parametrize("exercise_id", CHECKED)
def test_solution_passes(exercise_id: str) -> None:
    report = report_on(notebook("solutions", exercise_id))
    assert report.passed, report.message
    assert "agree" in report.message or any(c.isdigit() for c in report.message)


@pytest.mark.parametrize("path", wrong_solutions(), ids=lambda path: path.stem)
def test_wrong_solution_is_rejected_by_name(path: Path) -> None:
    if path.stem == "ex16_longest_first" and find_trace("azure-conv") is None:
        pytest.skip("on the synthetic load longest first happens to win; the exercise is about the trace")
    report = report_on(path)
    assert not report.passed
    assert expected_words(path) in report.message
    assert report.pictures or "PICTURE = False" in path.read_text("utf-8"), (
        "a failure is shown, not only said"
    )


@pytest.mark.parametrize("exercise_id", CHECKED)
def test_there_are_at_least_four_wrong_solutions(exercise_id: str) -> None:
    assert sum(path.name.startswith(f"ex{exercise_id}_") for path in wrong_solutions()) >= 4


def test_pictures_can_be_drawn() -> None:
    """One of each exercise: layouts and bars."""
    seen = set()
    for path in wrong_solutions():
        if path.name[:4] in seen:
            continue
        seen.add(path.name[:4])
        for figure in report_on(path).figures():
            assert len(figure._repr_png_()) > 2000


@pytest.mark.parametrize("exercise_id", CHECKED)
def test_hints_rise(exercise_id: str) -> None:
    exercise = find_exercise(exercise_id)
    assert 3 <= len(exercise.hints) <= 6
    assert len(set(exercise.hints)) == len(exercise.hints)
    assert not set(exercise.hints[0].split("`")) & {"### BEGIN SOLUTION"}
