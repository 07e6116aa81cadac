"""What the replayers of the three systems have in common: a recorded field that is gone counts as a difference.

A header's release and rules are compared with those of the release that the model follows; other words in a header
("note", "name", "recorded") are remarks, which no model can reproduce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from labkit.errors import InputError, shown
from labkit.recording import Comparison

ABSENT = "<absent>"


def compare_header(
    comparison: Comparison,
    recording: Mapping[str, Any],
    expected: Mapping[str, Any],
    *,
    body: Iterable[str],
    remarks: Iterable[str] = (),
) -> None:
    """`expected` by value; `remarks` must be there, whatever they say. Of what is neither and not in `body`, words and
    numbers are taken as remarks, containers are a difference."""
    for name, value in expected.items():
        comparison.compare(name, recording.get(name, ABSENT), value)
    for name in remarks:
        if name not in recording:
            comparison.compare(name, ABSENT, "a remark of the recorder")
    for name in recording.keys() - {*expected, *remarks, *body}:
        if isinstance(recording[name], list | dict):
            comparison.compare(name, recording[name], ABSENT)


def check_parts(recording: Any, parts: Mapping[str, type], what: str) -> None:
    """Raise `InputError` for a part that is missing or of another kind."""
    if not isinstance(recording, Mapping):
        raise InputError(what, f"is a {type(recording).__name__}; expected an object")
    for name, kind in parts.items():
        if name not in recording:
            raise InputError(what, f"is missing; expected {', '.join(parts)}", field=name)
        if not isinstance(recording[name], kind):
            raise InputError(what, f"is {shown(recording[name])}; expected a {kind.__name__}", field=name)


def check_workload(workload: Sequence[Mapping[str, Any]], what: str) -> None:
    """Every row has its four fields, and a priority where the others have one. Raises `InputError`."""
    needed = ["id", "arrival_step", "prompt_token_ids", "output_len"]
    if any(isinstance(row, Mapping) and "priority" in row for row in workload):
        needed.append("priority")
    for i, row in enumerate(workload):
        if not isinstance(row, Mapping):
            raise InputError(what, f"is {shown(row)}; expected an object", field=f"workload[{i}]")
        for name in needed:
            if name not in row:
                raise InputError(what, "is missing", field=f"workload[{i}].{name}")


def left_out(rows: Sequence[Mapping[str, Any]], optional: Iterable[str]) -> set[str]:
    """Names of `optional` that no row has: a recorder that leaves a detail out leaves it out everywhere."""
    return {name for name in optional if not any(name in row for row in rows)}
