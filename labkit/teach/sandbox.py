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
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from labkit.teach.sandbox_child import LENGTH, Outcome, call, run_child, too_long, too_much
from labkit.units import MIB

__all__ = ["MEMORY_BYTES", "PATIENCE", "Outcome", "run_limited"]

MEMORY_BYTES = 1024 * MIB
PATIENCE = 4  # seconds on the clock for each second of computing


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
        run_child(function, writer, time_s, memory_bytes)  # does not return
    os.close(writer)
    try:
        payload, in_time = _read(reader, time.monotonic() + PATIENCE * time_s)
    finally:
        os.close(reader)
        status = _end(pid)
    if not in_time:
        return Outcome("timeout", sentence=too_long(PATIENCE * time_s))
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
        if len(whole) >= LENGTH.size and len(whole) >= LENGTH.size + LENGTH.unpack(whole[: LENGTH.size])[0]:
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
    if len(payload) > LENGTH.size:
        try:
            outcome: Outcome = pickle.loads(payload[LENGTH.size :])
            return outcome
        except Exception as error:
            return Outcome("crash", sentence=f"the result of the code could not be read back ({error})")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return Outcome("timeout", sentence=too_long(time_s))
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
    return Outcome("memory", sentence=too_much(memory_bytes))


def _run_here(function: Callable[[], Any]) -> Outcome:
    outcome = call(function, MEMORY_BYTES)
    outcome.printed += (
        "\n(this system has no fork: the code ran in the notebook's own process, without limits)"
    )
    return outcome
