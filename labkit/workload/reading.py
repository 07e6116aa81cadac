"""Reading text files of other people: every mistake names the file, the row and the field.

Rows are counted as an editor counts lines, so the header of a CSV file is row 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from labkit.errors import InputError, shown


def read_rows(path: Path) -> Iterator[tuple[int, str]]:
    """Yield `(row, line)` without line ends; CRLF and a missing last newline make no difference. Empty lines are
    skipped. Raises `InputError` when the file cannot be opened or is not UTF-8 text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(path, "no such file; give the path of a trace") from None
    except IsADirectoryError:
        raise InputError(path, "is a folder; give the path of a trace file") from None
    except UnicodeDecodeError:
        raise InputError(path, "is not UTF-8 text; traces are CSV or JSON lines") from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror}); give a readable trace file") from None
    for row, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield row, line


def first_line(path: Path) -> str:
    """The first line that is not empty, or "" for an empty file. Reads at most 64 KiB."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except FileNotFoundError:
        raise InputError(path, "no such file; give the path of a trace") from None
    except IsADirectoryError:
        raise InputError(path, "is a folder; give the path of a trace file") from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror}); give a readable trace file") from None
    for line in head.decode("utf-8", errors="replace").lstrip("\ufeff").splitlines():
        if line.strip():
            return line
    return ""


def parse_count(value: object, path: object, row: int, field: str, *, minimum: int = 0) -> int:
    """A whole number of tokens (or anything counted) that is at least `minimum`."""
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            raise InputError(path, f"is {shown(value)}; write a whole number", row=row, field=field)
        count = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        count = value
    elif isinstance(value, float) and value.is_integer():
        count = int(value)
    else:
        raise InputError(path, f"is {shown(value)}; write a whole number", row=row, field=field)
    if count < minimum:
        what = "is negative" if count < 0 else "is too small"
        raise InputError(
            path, f"{what} ({shown(count)}); counts here start at {minimum}", row=row, field=field
        )
    return count


def parse_number(value: object, path: object, row: int, field: str, *, minimum: float = -math.inf) -> float:
    """A finite number that is at least `minimum`."""
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        if isinstance(value, str) and ("_" in value or not value.isascii()):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise InputError(path, f"is {shown(value)}; write a number", row=row, field=field) from None
    if not math.isfinite(number):
        raise InputError(path, f"is {shown(value)}; write a finite number", row=row, field=field)
    if number < minimum:
        raise InputError(
            path, f"is {number:g}; the smallest value accepted is {minimum:g}", row=row, field=field
        )
    return number
