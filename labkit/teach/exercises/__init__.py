"""Exercises with instant checks.

    from labkit.teach import check, hint

    check("07", MyBlockTable)     runs it in a limited child, shows what failed on which input, with a picture
    hint("07")                    one hint at a time

One module an exercise, `exNN_name.py`, with `EXERCISE = Exercise(...)` (`base.py`): its hints, and the function that
holds the learner's code against the lab's own. The notebooks are in `exercises/` and `solutions/`, under the same names.
"""

from labkit.teach.exercises.base import Exercise, Mistake, Picture, exercise_ids, find_exercise, that
from labkit.teach.exercises.run import CheckFailed, Report, check, hint, report_on

__all__ = [
    "CheckFailed",
    "Exercise",
    "Mistake",
    "Picture",
    "Report",
    "check",
    "exercise_ids",
    "find_exercise",
    "hint",
    "report_on",
    "that",
]
