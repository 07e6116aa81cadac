"""The limited child: whatever code does, it ends in one sentence and the parent is as it was."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import LabError
from labkit.teach.exercises import report_on
from labkit.teach.exercises.submission import report_on_file
from labkit.teach.sandbox import run_limited
from labkit.units import MIB

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def forever() -> None:
    while True:
        pass


def ten_gb() -> int:
    return len(bytearray(10 * 10**9))


def ten_gb_in_pieces() -> int:
    pieces = []
    while len(pieces) < 10_000:
        pieces.append(bytes([1]) * MIB)
    return len(pieces)


def ten_gb_in_numpy() -> float:
    import numpy as np

    return float(np.ones(10 * 10**9 // 8).sum())


def test_a_value_comes_back_and_nothing_else() -> None:
    state = [1]

    def change() -> int:
        state.append(2)
        os.environ["LABKIT_TEST_LEAK"] = "1"
        print("hello")
        return len(state)

    outcome = run_limited(change)
    assert (outcome.kind, outcome.value, outcome.printed) == ("value", 2, "hello\n")
    assert state == [1]
    assert "LABKIT_TEST_LEAK" not in os.environ


def test_a_loop_is_stopped_at_the_limit() -> None:
    start = time.monotonic()
    outcome = run_limited(forever, time_s=0.3)
    assert outcome.kind == "timeout"
    assert re.match(r"stopped after (0.3|1.2) s: ", outcome.sentence)  # of computing, or on the clock
    assert time.monotonic() - start < 30  # not for ever, even on a machine under load


def test_a_loop_that_catches_everything_is_stopped_too() -> None:
    def stubborn() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                continue

    outcome = run_limited(stubborn, time_s=0.1)
    assert outcome.kind == "timeout"
    assert outcome.sentence.startswith("stopped after 0.4 s: ")  # it slept: the clock counted


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps to RLIMIT_AS")
@pytest.mark.parametrize("eat", [ten_gb, ten_gb_in_pieces, ten_gb_in_numpy])
def test_ten_gigabytes_are_refused(eat: Callable[[], Any]) -> None:
    outcome = run_limited(eat, time_s=20, memory_bytes=256 * MIB)
    assert outcome.kind == "memory"
    assert outcome.sentence == "stopped: the code asked for more memory than the 256 MiB that a check may use"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps to RLIMIT_AS")
def test_the_limit_is_relative_to_what_is_mapped() -> None:
    ballast = bytearray(300 * MIB)
    outcome = run_limited(lambda: len(bytearray(100 * MIB)), memory_bytes=256 * MIB)
    assert outcome.kind == "value"
    assert len(ballast) == 300 * MIB


def test_exit_and_crash_are_named() -> None:
    outcome = run_limited(lambda: os._exit(0))
    assert outcome.kind == "exit"
    assert "the notebook's kernel is unharmed" in outcome.sentence
    outcome = run_limited(lambda: ctypes.string_at(0))
    assert outcome.kind == "crash"
    assert "SIGSEGV" in outcome.sentence
    assert run_limited(lambda: sys.exit(3)).kind == "error"  # an exception like any other


def test_a_child_of_the_child_does_not_survive(tmp_path: Path) -> None:
    mark = tmp_path / "pid"

    def spawn() -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        mark.write_text(str(child.pid))
        forever()

    run_limited(spawn, time_s=1)
    pid = int(mark.read_text())
    for _ in range(100):
        if not _alive(pid):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still lives")


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_errors_cross_with_their_place() -> None:
    outcome = run_limited(lambda: {}["key"])
    assert outcome.kind == "error"
    assert isinstance(outcome.error, KeyError)
    assert "line " in outcome.place

    class Local(Exception):
        """Cannot be pickled: it is defined in a function."""

    def fail() -> None:
        raise Local("why")

    assert str(run_limited(fail).error) == "Local: why"
    assert run_limited(lambda: lambda: 1).kind == "crash"  # a result that cannot leave its process
    assert isinstance(run_limited(lambda: fail_deep(0)).error, RecursionError)


def fail_deep(depth: int) -> int:
    return fail_deep(depth + 1) + 1


def test_prints_are_kept_in_part_and_input_is_refused() -> None:
    def chatty() -> None:
        for number in range(200_000):
            print("line", number)

    outcome = run_limited(chatty, time_s=20)
    assert outcome.kind == "value"
    said, first, *rest = outcome.printed.splitlines(keepends=True)
    assert re.fullmatch(r"line \d+\n", first), "cut between lines, not in one"
    kept = sum(map(len, [first, *rest]))
    assert kept <= 4000
    total = sum(len(f"line {number}\n") for number in range(200_000))
    assert said == f"(cut: {total - kept:,} characters before this)\n"
    assert outcome.printed.endswith("line 199999\n")
    assert "do not call input()" in str(run_limited(lambda: input("?")).error)


def test_a_large_result_comes_back_whole() -> None:
    assert len(run_limited(lambda: b"x" * (20 * MIB), time_s=20).value) == 20 * MIB


# --- the same through a check ----------------------------------------------------------------------------------------

SUBMISSIONS = {
    "loop": ("class MyFirstFit:\n    def __init__(self, capacity):\n        while True: pass\n", "stopped after"),
    "memory": (
        "class MyFirstFit:\n    def __init__(self, capacity):\n        self.x = bytearray(10 * 10**9)\n",
        "more memory than the 1,024 MiB",
    ),
    "exit": ("import os\nclass MyFirstFit:\n    def __init__(self, capacity):\n        os._exit(0)\n", "ended its process"),
    "exit on import": ("import os\nos._exit(0)\n", "ended its process"),
    "syntax": ("class MyFirstFit:\n    def malloc(self, size)\n        return 0\n", "your code is not Python: expected ':' (line 2"),
    "nothing defined": ("x = 1\n", "does not define MyFirstFit"),
}  # fmt: skip


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_a_hostile_submission_ends_in_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, words = SUBMISSIONS[name]
    path = tmp_path / "ex03_mine.py"
    path.write_text(text)
    if name == "memory" and sys.platform != "linux":
        pytest.skip("only Linux keeps to RLIMIT_AS")
    if name == "loop":
        namespace: dict[str, Any] = {}
        exec(text, namespace)
        message = report_on("03", namespace["MyFirstFit"], time_s=1.0).message
    else:
        message = report_on_file(path).message
    assert words in message
    assert "\n" not in message


def test_a_file_without_a_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    with pytest.raises(LabError, match="does not say which exercise"):
        report_on_file(path)
    assert report_on_file(path, "03").message.endswith("mine.py does not define MyFirstFit.")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_child_is_left_behind() -> None:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before, open_files = children.read_text(), len(os.listdir("/proc/self/fd"))
    for function in (lambda: 1, forever, lambda: os._exit(1), lambda: ctypes.string_at(0)):
        run_limited(function, time_s=0.2)
    assert children.read_text() == before
    assert len(os.listdir("/proc/self/fd")) == open_files
