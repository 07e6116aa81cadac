"""JSON that somebody else wrote: whatever is wrong with it becomes one sentence that names the file and the row.

Python's parser has three ways to fail that are no `JSONDecodeError`: a text nested thousands of levels deep
(`RecursionError`), a whole number of more than 4,300 digits (`ValueError`), and bytes that are not UTF-8.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.errors import InputError


def read_json(path: str | Path, expected: str, *, missing: str = "no such file") -> Any:
    """The parsed file. `expected` ends the sentences: "is not JSON; expected a list of printed lines". Raises `InputError`."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(path, f"{missing}; expected {expected}") from None
    except IsADirectoryError:
        raise InputError(path, f"is a folder; expected {expected}") from None
    except UnicodeDecodeError:
        raise InputError(path, f"is not JSON; expected {expected}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = getattr(error, "strerror", None) or "no usable path"
        raise InputError(path, f"cannot be read ({reason}); expected {expected}") from None
    return parse_json(text, path, expected)


def parse_json(text: str, where: object, expected: str, *, row: int | None = None) -> Any:
    """The parsed text. Raises `InputError`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(where, f"is not JSON ({error.msg}); expected {expected}", row=row) from None
    except RecursionError:
        raise InputError(
            where, f"is nested too deeply to be read as JSON; expected {expected}", row=row
        ) from None
    except ValueError:
        raise InputError(
            where, f"has a whole number of more than 4,300 digits; expected {expected}", row=row
        ) from None
