"""Who takes part: a class, or FILE.py:Class, always run in a limited child; and what disqualifies it.

reads the future   its decisions up to an instant change when only what comes later is changed
corrupts memory    spans overlap, a law of the pool breaks, or tokens appear that were never computed
mutates the trace  the requests are not what they were
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from labkit.errors import InputError, LabError
from labkit.teach.sandbox import Outcome, run_limited
from labkit.units import MIB

T = TypeVar("T")
#: one run of one entry on one load (CPU seconds)
TIME_S, MEMORY_BYTES = 10.0, 1024 * MIB

Entry = str | type


class Disqualified(LabError):
    """`cheat` is one of the kinds above, "fails" for an entry that broke, "is not deterministic"."""

    def __init__(self, cheat: str, what: str):
        super().__init__(f"{cheat}: {what}")
        self.cheat, self.what = cheat, what

    def __reduce__(self) -> tuple[Any, ...]:
        return (Disqualified, (self.cheat, self.what))


def name_of(entry: Entry) -> str:
    """A text stands for itself, a class for its name."""
    return entry if isinstance(entry, str) else entry.__name__


def check_exists(entry: Entry) -> None:
    """Raises `LabError` for text that is not FILE.py:Class, or a file that is not there; the code is not run yet."""
    if not isinstance(entry, str):
        return
    path, _, name = entry.rpartition(":")
    if not path or not name.isidentifier():
        raise LabError(f"{entry!r} is not an entry; write FILE.py:Class")
    if not Path(path).is_file():
        raise InputError(path, "no such file; write FILE.py:Class")


def load_class(entry: Entry) -> type:
    """The class; a file is executed here, so call this in the child only."""
    if not isinstance(entry, str):
        return entry
    path, _, name = entry.rpartition(":")
    spec = importlib.util.spec_from_file_location("leaderboard_entry_file", path)
    if spec is None or spec.loader is None:
        raise LabError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["leaderboard_entry_file"] = module
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        own = [n for n, c in vars(module).items() if isinstance(c, type) and c.__module__ == module.__name__]
        raise LabError(f"{Path(path).name} has no class {name!r}; it has: {', '.join(own) or 'none'}")
    return found


def in_child(function: Callable[[], T], *, time_s: float = TIME_S) -> T:
    """The value of `function()` in a fresh child; raises `Disqualified` that says in one sentence how it ended otherwise."""
    outcome = run_limited(function, time_s=time_s, memory_bytes=MEMORY_BYTES)
    if outcome.kind == "value":
        value: T = outcome.value
        return value
    raise _reason(outcome)


def _reason(outcome: Outcome) -> Disqualified:
    error = outcome.error
    if isinstance(error, Disqualified):
        return error
    if isinstance(error, SyntaxError):
        return Disqualified("fails", f"it is not Python: {error.msg}, line {error.lineno}")
    if error is not None:
        where = f" ({outcome.place})" if outcome.place else ""
        if isinstance(error, NotImplementedError) and not str(error):
            return Disqualified("fails", f"a method that is called is not written{where}")
        if isinstance(error, TypeError) and "NoneType" in str(error):
            where += "; did a method, key for instance, return None?"
        return Disqualified("fails", f"it raised {type(error).__name__}: {str(error)[:200]}{where}")
    return Disqualified("fails", outcome.sentence)
