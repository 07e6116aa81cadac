"""The child's side of the sandbox: call the function under its limits, and write down how it ended."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import labkit
from labkit.units import MIB

Kind = Literal["value", "error", "timeout", "memory", "exit", "crash"]

PRINTED = 4000  # characters of the learner's own prints that are kept
#: length of the pickled outcome, in front of it
LENGTH = struct.Struct("<Q")


@dataclass
class Outcome:
    """`value` is what the function returned, `error` the exception it raised (both pickled across), `sentence` says in
    one sentence what ended it otherwise. `printed` is the tail of what it printed; `place` the last line of the
    learner's own code that an error passed through."""

    kind: Kind
    value: Any = None
    error: BaseException | None = None
    sentence: str = ""
    printed: str = ""
    place: str = ""


def run_child(function: Callable[[], Any], writer: int, time_s: float, memory_bytes: int) -> None:
    """Call the function under the limits, write the outcome, end. Nothing that belongs to the parent runs: no `finally`,
    no `atexit`, no flush of its buffers."""
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, time_s)  # ends in SIGPROF
        faulthandler.disable()  # the parent says in one sentence what a crash was
        _limit_memory(memory_bytes)
        outcome = call(function, memory_bytes)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _limit_memory(None)
        try:
            payload = pickle.dumps(outcome)
        except Exception:
            payload = pickle.dumps(_plain(outcome))
        _write(writer, LENGTH.pack(len(payload)) + payload)
    finally:
        os._exit(0)


def call(function: Callable[[], Any], memory_bytes: int) -> Outcome:
    printed = _Tail()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _no_input():
        try:
            outcome = Outcome("value", value=function())
        except MemoryError:
            outcome = Outcome("memory", sentence=too_much(memory_bytes))
        except BaseException as error:
            if "can't allocate memory" in str(error):  # torch's way of saying MemoryError
                outcome = Outcome("memory", sentence=too_much(memory_bytes))
            else:
                outcome = Outcome("error", error=error, place=_place(error))
    outcome.printed = printed.getvalue()[-PRINTED:]
    return outcome


def too_much(memory_bytes: int) -> str:
    return (
        f"stopped: the code asked for more memory than the {memory_bytes // MIB:,} MiB that a check may use"
    )


def _plain(outcome: Outcome) -> Outcome:
    """The same without what cannot be pickled (an exception class of the notebook, a lambda in a result)."""
    if outcome.error is not None:
        text = f"{type(outcome.error).__name__}: {outcome.error}"
        return Outcome("error", error=RuntimeError(text), printed=outcome.printed, place=outcome.place)
    return Outcome(
        "crash", sentence="the code returned something that cannot leave its process", printed=outcome.printed
    )


def _place(error: BaseException) -> str:
    """`append, line 12: self.tables[r].pop()`: the last frame that is neither the lab's nor a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    not_own = (os.path.dirname(labkit.__file__), os.path.dirname(os.__file__), sys.prefix)
    own = [f for f in frames if not f.filename.startswith(not_own)]
    if not own:
        return ""
    last = own[-1]
    return f"{last.name}, line {last.lineno}: {(last.line or '').strip()}".rstrip(": ")


def _write(writer: int, payload: bytes) -> None:
    view = memoryview(payload)
    while view:
        view = view[os.write(writer, view) :]


def _limit_memory(extra_bytes: int | None) -> None:
    """Soft limit = what is mapped now + `extra_bytes`; None lifts it again (the result needs memory too)."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = hard if extra_bytes is None else _mapped_bytes() + extra_bytes
        if hard not in (-1, resource.RLIM_INFINITY):
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass  # macOS refuses; the time limit remains


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


class _Tail(io.StringIO):
    """Keeps the last characters only, so that a loop of prints does not eat the memory limit."""

    def write(self, text: str) -> int:
        if self.tell() > 4 * PRINTED:
            kept = self.getvalue()[-PRINTED:]
            self.seek(0)
            self.truncate()
            super().write(kept)
        return super().write(text[-4 * PRINTED :])


@contextlib.contextmanager
def _no_input() -> Iterator[None]:
    """`input()` would wait for ever in a child: make it say so."""
    import builtins

    before = builtins.input

    def refuse(*_: Any) -> str:
        raise RuntimeError("a check runs without a keyboard: do not call input()")

    builtins.input = refuse
    try:
        yield
    finally:
        builtins.input = before
