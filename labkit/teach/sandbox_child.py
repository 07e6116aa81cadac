"""The child's side of the sandbox: call the function under its limits, and write down how it ended."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import linecache
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
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
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _limit_time(writer, time_s)
        faulthandler.disable()  # the parent says in one sentence what a crash was
        _limit_memory(memory_bytes)
        outcome = call(function, memory_bytes)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        _limit_memory(None)
        try:
            payload = pickle.dumps(outcome)
        except Exception:
            payload = pickle.dumps(_plain(outcome))
        _write(writer, LENGTH.pack(len(payload)) + payload)
    finally:
        os._exit(0)


def call(function: Callable[[], Any], memory_bytes: int) -> Outcome:
    printed = Tail()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _no_input():
        try:
            outcome = Outcome("value", value=function())
        except MemoryError:
            outcome = Outcome("memory", sentence=too_much(memory_bytes))
        except BaseException as error:
            if "can't allocate memory" in str(error):  # torch's way of saying MemoryError
                outcome = Outcome("memory", sentence=too_much(memory_bytes))
            else:
                outcome = Outcome("error", error=error, place=place_of(error))
    outcome.printed = printed.tail()
    return outcome


def too_long(seconds: float) -> str:
    return f"stopped after {seconds:g} s: the code did not come to an end (a loop whose condition never becomes false?)"


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


def place_of(error: BaseException) -> str:
    """`append, line 12: self.tables[r].pop()`: the last frame that is neither the lab's nor a library's. The line is that of
    the cell; where a cell's text travelled to another file, `line_of_cell` knows the difference."""
    return place_in(traceback.extract_tb(error.__traceback__))


def place_in(frames: Sequence[traceback.FrameSummary]) -> str:
    not_own = (os.path.dirname(labkit.__file__), os.path.dirname(os.__file__), sys.prefix)
    own = [f for f in frames if not f.filename.startswith(not_own)]
    if not own:
        return ""
    last = own[-1]
    line = line_of_cell(last.filename, last.lineno or 0)
    return f"{last.name}, line {line}: {(last.line or '').strip()}".rstrip(": ")


#: in front of a part of a collected source text: the line in its cell that the next line was
CELL_LINE = "# line of the cell: "


def line_of_cell(filename: str, lineno: int) -> int:
    """`lineno` counted from the nearest `CELL_LINE` above it, where there is one."""
    for number in range(lineno - 1, 0, -1):
        text = linecache.getline(filename, number)
        if text.startswith(CELL_LINE):
            return int(text[len(CELL_LINE) :]) + lineno - number - 1
    return lineno


def _write(writer: int, payload: bytes) -> None:
    view = memoryview(payload)
    while view:
        view = view[os.write(writer, view) :]


def _limit_time(writer: int, time_s: float) -> None:
    """After `time_s` of CPU time the handler says where the code was, and ends the child; nothing is raised, so nothing can
    swallow it. One long call into C lets no handler run: a second later the kernel ends it."""

    def stop(_: int, frame: FrameType | None) -> None:
        where = place_in(traceback.StackSummary.extract(traceback.walk_stack(frame))[::-1]) if frame else ""
        outcome = Outcome("timeout", sentence=too_long(time_s), place=where)
        payload = pickle.dumps(outcome)
        _write(writer, LENGTH.pack(len(payload)) + payload)
        os._exit(0)

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, time_s)
    try:
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        last = int(used.ru_utime + used.ru_stime + time_s) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (last, last + 1))
    except (ImportError, ValueError, OSError):
        pass


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


class Tail(io.StringIO):
    """Keeps the last characters only, so that a loop of prints does not eat the memory limit."""

    num_cut = 0

    def write(self, text: str) -> int:
        if self.tell() > 4 * PRINTED:
            kept = self.getvalue()[-PRINTED:]
            self.num_cut += self.tell() - len(kept)
            self.seek(0)
            self.truncate()
            super().write(kept)
        self.num_cut += max(0, len(text) - 4 * PRINTED)
        return super().write(text[-4 * PRINTED :])

    def tail(self) -> str:
        """The last whole lines, and how much is missing before them."""
        text = self.getvalue()
        kept = text[-PRINTED:]
        num_cut = self.num_cut + len(text) - len(kept)
        if not num_cut:
            return kept
        line, newline, rest = kept.partition("\n")
        if newline and rest:
            kept, num_cut = rest, num_cut + len(line) + 1
        return f"(cut: {num_cut:,} characters before this)\n{kept}"


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
