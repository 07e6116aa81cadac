"""Run a learner's code where it can do no harm: a forked child with a time limit and a memory limit.

    outcome = run_limited(lambda: check(MyFirstFit), time_s=2.0)
    outcome.kind      "value", "error", "timeout", "memory", "exit" or "crash"

The child is a fork, so it sees what was defined in a notebook and costs milliseconds. It cannot change the parent: its
result comes back through a pipe, and a child that loops, eats memory, calls `os._exit` or crashes is reported in one
sentence. The parent must not have run torch operators on several threads (a fork does not copy threads): code that
needs torch goes to the worker of `labkit.teach.triton_worker`.

Time is CPU time of the child, so that a busy machine stops no good solution; a child that sleeps is stopped when
`PATIENCE` times as many seconds have passed. Memory is limited relative to what the process maps already (RLIMIT_AS). Where there is no `fork` (Windows) the function
runs in this process, without limits, and the outcome says so; where the kernel ignores RLIMIT_AS (macOS) only the time
limit holds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import select
import signal
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import labkit
from labkit.units import MIB

Kind = Literal["value", "error", "timeout", "memory", "exit", "crash"]

MEMORY_BYTES = 1024 * MIB
PATIENCE = 4  # seconds on the clock for each second of computing
PRINTED = 4000  # characters of the learner's own prints that are kept
_LENGTH = struct.Struct("<Q")


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


def run_limited(
    function: Callable[[], Any], *, time_s: float = 2.0, memory_bytes: int = MEMORY_BYTES
) -> Outcome:
    """Call `function()` in a child; never raises for anything that the function does. `time_s` is CPU time."""
    if not hasattr(os, "fork"):
        return _run_here(function)
    reader, writer = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # fork in a process with threads: see the module's text
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(function, writer, time_s, memory_bytes)  # does not return
    os.close(writer)
    try:
        payload, in_time = _read(reader, time.monotonic() + PATIENCE * time_s)
    finally:
        os.close(reader)
        status = _end(pid)
    if not in_time:
        return Outcome("timeout", sentence=_too_long(PATIENCE * time_s))
    return _outcome(payload, status, time_s, memory_bytes)


def _read(reader: int, deadline: float) -> tuple[bytearray, bool]:
    """All bytes of the message; False when the time was up first."""
    whole = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return whole, False
        part = os.read(reader, 1 << 20)
        if not part:
            return whole, True
        whole += part
        if (
            len(whole) >= _LENGTH.size
            and len(whole) >= _LENGTH.size + _LENGTH.unpack(whole[: _LENGTH.size])[0]
        ):
            return whole, True


def _end(pid: int) -> int:
    """Kill the child and whatever it started, and collect it. Returns the wait status."""
    done, status = os.waitpid(pid, os.WNOHANG)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    if not done:
        _, status = os.waitpid(pid, 0)
    return status


def _outcome(payload: bytearray, status: int, time_s: float, memory_bytes: int) -> Outcome:
    if len(payload) > _LENGTH.size:
        try:
            outcome: Outcome = pickle.loads(payload[_LENGTH.size :])
            return outcome
        except Exception as error:
            return Outcome("crash", sentence=f"the result of the code could not be read back ({error})")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return Outcome("timeout", sentence=_too_long(time_s))
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
        name = signal.Signals(os.WTERMSIG(status)).name
        return Outcome(
            "crash", sentence=f"the code crashed its process ({name}); the notebook's kernel is unharmed"
        )
    if os.WIFEXITED(status):
        return Outcome(
            "exit",
            sentence="the code ended its process (os._exit?) before the check was over; the notebook's kernel is "
            "unharmed",
        )
    return Outcome("memory", sentence=_too_much(memory_bytes))


def _too_long(seconds: float) -> str:
    return f"stopped after {seconds:g} s: the code did not come to an end (a loop whose condition never becomes false?)"


def _too_much(memory_bytes: int) -> str:
    return (
        f"stopped: the code asked for more memory than the {memory_bytes // MIB:,} MiB that a check may use"
    )


def _child(function: Callable[[], Any], writer: int, time_s: float, memory_bytes: int) -> None:
    """Call the function under the limits, write the outcome, end. Nothing that belongs to the parent runs: no `finally`,
    no `atexit`, no flush of its buffers."""
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, time_s)  # ends in SIGPROF
        faulthandler.disable()  # the parent says in one sentence what a crash was
        _limit_memory(memory_bytes)
        outcome = _call(function, memory_bytes)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _limit_memory(None)
        try:
            payload = pickle.dumps(outcome)
        except Exception:
            payload = pickle.dumps(_plain(outcome))
        _write(writer, _LENGTH.pack(len(payload)) + payload)
    finally:
        os._exit(0)


def _call(function: Callable[[], Any], memory_bytes: int) -> Outcome:
    printed = _Tail()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _no_input():
        try:
            outcome = Outcome("value", value=function())
        except MemoryError:
            outcome = Outcome("memory", sentence=_too_much(memory_bytes))
        except BaseException as error:
            if "can't allocate memory" in str(error):  # torch's way of saying MemoryError
                outcome = Outcome("memory", sentence=_too_much(memory_bytes))
            else:
                outcome = Outcome("error", error=error, place=_place(error))
    outcome.printed = printed.getvalue()[-PRINTED:]
    return outcome


def _run_here(function: Callable[[], Any]) -> Outcome:
    outcome = _call(function, MEMORY_BYTES)
    outcome.printed += (
        "\n(this system has no fork: the code ran in the notebook's own process, without limits)"
    )
    return outcome


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
def _no_input() -> Any:
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
