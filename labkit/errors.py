"""Errors that a person reads. Every one is a single sentence: what was wrong, where, and what is accepted."""

from __future__ import annotations


class LabError(Exception):
    """A mistake in the input or a refused request. The command line prints its text and exits with code 2."""


class InputError(LabError):
    """A file, row or field that cannot be used.

    `InputError("trace.csv", "is negative (-3); token counts start at 0", row=17, field="prompt_tokens")` reads
    "trace.csv, row 17, field prompt_tokens: is negative (-3); token counts start at 0".
    """

    def __init__(self, where: object, problem: str, *, row: int | None = None, field: str | None = None):
        place = str(where)
        if row is not None:
            place += f", row {row}"
        if field is not None:
            place += f", field {field}"
        super().__init__(f"{place}: {problem}")
        self.where, self.problem, self.row, self.field = where, problem, row, field


def shown(value: object, limit: int = 60) -> str:
    """`repr(value)` for a sentence, cut in the middle when it is longer than `limit` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number beyond Python's digit limit; endless nesting
        return f"a {type(value).__name__} too long to show"
    half = limit // 2 - 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"


class IntegrityError(AssertionError):
    """A conservation law does not hold: a bug in the lab (or in an exercise), never bad input."""


def require(condition: bool, invariant: str, **values: object) -> None:
    """Raise `IntegrityError` that names the invariant and prints the values that break it."""
    if not condition:
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise IntegrityError(f"{invariant} does not hold: {shown}" if shown else f"{invariant} does not hold")
