"""The process in which learners' Triton kernels run under the interpreter.

Triton decides while a kernel is *defined* whether it is compiled or interpreted, so a notebook's own process cannot do
both. The worker starts once (torch and Triton take seconds to import), stays warm, and forks a limited child
(`labkit.teach.sandbox`) for every check: a learner's loop or crash ends with the child. The learner's code travels as
source text.

    WORKER.run("13", source, time_s=10)                        -> Outcome of the check
    WORKER.run("14", source, time_s=10, compile_as=request)    -> Outcome with the compiler's figures

On its side (`python -m labkit.teach.triton_worker`): one pickled job a message on stdin, one pickled `Outcome` back.
"""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import os
import pickle
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from labkit.errors import LabError
from labkit.teach.sandbox import PATIENCE, Outcome, run_limited
from labkit.teach.sandbox_child import CELL_LINE
from labkit.units import GIB

PRELUDE = "import math\n\nimport torch\nimport triton\nimport triton.language as tl\n"
START_S = 60.0  # a cold disk under load; usually 3
_LENGTH = struct.Struct("<Q")


def triton_missing() -> str:
    """Why this exercise cannot be checked here, or an empty string."""
    try:
        found = importlib.util.find_spec("triton")
    except (ImportError, ValueError):
        found = None
    if found is None:
        return "not checked here: this exercise needs triton, which exists for Linux only (`pip install triton`)."
    if not hasattr(os, "fork"):
        return "not checked here: this exercise needs a system with fork (Linux)."
    return ""


def source_of(learner: Sequence[Any]) -> str:
    """Source text of the learner's functions and of everything in the same module that they use: kernels, helpers, plain
    constants. Raises `LabError` when a part has no source (defined by exec)."""
    parts: dict[str, str] = {}
    for item in learner:
        _collect(item, parts)
    return "\n\n".join([PRELUDE, *reversed(parts.values())])


def _collect(item: Any, parts: dict[str, str]) -> None:
    function = getattr(item, "fn", item)  # a @triton.jit object keeps the function inside
    while hasattr(function, "fn"):
        function = function.fn
    if not isinstance(function, types.FunctionType) or function.__name__ in parts:
        return
    try:
        lines, first = inspect.getsourcelines(function)
        parts[function.__name__] = f"{CELL_LINE}{first}\n{''.join(lines)}"
    except (OSError, TypeError):
        raise LabError(f"the source of {function.__name__} cannot be found; define it in a cell") from None
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        inner = getattr(value, "fn", value)
        if name in parts:
            parts[name] = parts.pop(name)  # used by a later one too: it must stand before that
        elif isinstance(inner, types.FunctionType) and inner.__module__ == function.__module__:
            _collect(value, parts)
        elif type(value) in (int, float, str, bool):
            parts[name] = f"{name} = {value!r}"
        elif type(value).__name__ == "constexpr":
            inner = getattr(value, "value", None)
            parts[name] = f"{name} = tl.constexpr({inner!r})"


def _names(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names(constant)
    return names


class _Worker:
    """The parent's side. One job at a time; a worker that died is started again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(self, exercise_id: str, source: str, time_s: float, compile_as: Any = None) -> Outcome:
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            send(process.stdin, (exercise_id, source, time_s, compile_as))
            answer = receive(process.stdout, PATIENCE * time_s + 10)
            if answer is None:
                self.stop()
                return Outcome("crash", sentence="the process that checks Triton kernels died; check again")
            outcome: Outcome = answer
            return outcome

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        env = {k: v for k, v in os.environ.items() if k != "LABKIT_KERNELS"}
        env |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (it belongs to the process)
        process = subprocess.Popen(
            [sys.executable, "-m", "labkit.teach.triton_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=env,
        )
        atexit.register(self.stop)
        self._process = process
        assert process.stdout is not None
        if receive(process.stdout, START_S) is None:
            self.stop()
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            raise LabError(
                f"not checked here: the process that runs Triton kernels did not start ({' '.join(last)})."
            )
        errors.close()
        return process

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


WORKER = _Worker()


def send(stream: IO[bytes], message: Any) -> None:
    payload = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(payload)) + payload)
    stream.flush()


def receive(stream: IO[bytes], time_s: float) -> Any:
    """The next message; None at the end of the stream or after `time_s`."""
    deadline = time.monotonic() + time_s
    data = b""
    while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack(data[: _LENGTH.size])[0]:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([stream], [], [], left)[0]:
            return None
        part = os.read(stream.fileno(), 1 << 16)
        if not part:
            return None
        data += part
    return pickle.loads(data[_LENGTH.size :])


# --- the worker's own side -------------------------------------------------------------------------------------------


def load_source(source: str, folder: Path, name: str = "learner_kernels") -> types.ModuleType:
    """The learner's text as a module that lies in a file: Triton reads the source of a kernel back."""
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _job(exercise_id: str, source: str) -> str:
    from labkit.teach.exercises.base import find_exercise

    exercise = find_exercise(exercise_id)
    with tempfile.TemporaryDirectory() as folder:
        module = load_source(source, Path(folder))
        missing = [name for name in exercise.targets if not hasattr(module, name)]
        if missing:
            raise LabError(f"the code does not define {' or '.join(missing)}")
        try:
            # NumPy's, in the interpreter; this child ends soon
            warnings.simplefilter("ignore", RuntimeWarning)
            return exercise.run(*(getattr(module, name) for name in exercise.targets))
        except Exception as error:
            from labkit.teach.exercises.kernel_watch import explained

            if type(error).__name__ == "InterpreterError" and isinstance(error.__cause__, Exception):
                error = error.__cause__  # what the kernel itself raised
            raise explained(error) from None  # here, while its file is there to quote from


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between the messages
    import torch
    import triton.language  # noqa: F401

    import labkit.kernels  # noqa: F401

    torch.set_num_threads(1)  # a fork has one thread
    send(out, "ready")
    while True:
        job = receive(sys.stdin.buffer, float(1 << 30))
        if job is None:
            return
        exercise_id, source, time_s, compile_as = job

        def run(exercise_id: str = exercise_id, source: str = source, compile_as: Any = compile_as) -> Any:
            if compile_as is not None:
                from labkit.teach.exercises.machine_code import compile_here

                return compile_here(source, compile_as)
            return _job(exercise_id, source)

        send(out, run_limited(run, time_s=time_s, memory_bytes=4 * GIB))


if __name__ == "__main__":
    main()
