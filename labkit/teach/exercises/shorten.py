"""A failing random sequence, cut to the calls that matter.

Nobody finds a mistake in "seed 0, operation 51". `judge` plays a sequence of operations; when one fails, it tries the same
with operations left out, with smaller numbers and shorter lists, and keeps whatever still fails in the same way (the idea of
delta debugging: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002). What is left is shown
to the learner as calls to paste.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from labkit.teach.exercises.base import Mistake

#: ("malloc", "m3", 120): a name and its arguments; texts are ids, numbers and lists may be made smaller
Op = tuple[Any, ...]
#: makes the learner's object and the lab's for these parameters; what it returns plays one operation or raises `Mistake`
Start = Callable[..., Callable[[Op], None]]

SECONDS = 1.0  # of computing, at most
SHARE = 0.6  # of what the sandbox leaves
ONE_TRY = 0.2
CHOOSE = "?"


def any_of(number: int) -> str:
    """In an operation: the id of whatever is live then, `number` choosing. What `start` returns has `live`, the ids."""
    return f"{CHOOSE}{number}"


def judge(start: Start, params: Sequence[int], ops: Sequence[Op], *, smaller_params: bool = True) -> None:
    """Play `ops`; raise the `Mistake` of the shortest sequence found that fails in the same way."""
    found = failure(start, params, ops)
    if found is None:
        return
    played, mistake = found
    shrinker = _Shrinker(start, tuple(params), played, mistake)
    with contextlib.suppress(_TimeIsUp):
        shrinker.run(smaller_params)
    shortest = failure(
        start, shrinker.params, shrinker.ops
    )  # again, so that the object left behind is that one
    raise (mistake if shortest is None else shortest[1]) from None


def failure(start: Start, params: Sequence[int], ops: Sequence[Op]) -> tuple[list[Op], Mistake] | None:
    """The operations up to the first that fails, with ids in place of choices, and how it fails; None when all are as they
    should be."""
    played: list[Op] = []
    try:
        play = start(*params)
        for op in ops:
            concrete = _chosen(op, list(getattr(play, "live", ())))
            if concrete is not None:
                played.append(concrete)
                play(concrete)
    except Mistake as mistake:
        return played, mistake
    return None


def _chosen(op: Op, live: list[str]) -> Op | None:
    """None when there is nothing to choose from."""
    chosen = []
    for value in op:
        if isinstance(value, str) and value.startswith(CHOOSE):
            if not live:
                return None
            value = live[int(value[1:]) % len(live)]
        chosen.append(value)
    return tuple(chosen)


class _Shrinker:
    def __init__(self, start: Start, params: tuple[int, ...], ops: list[Op], mistake: Mistake):
        self.start, self.params, self.ops, self.kind = start, params, ops, mistake.kind
        self.deadline = time.process_time() + _seconds()

    def run(self, smaller_params: bool) -> None:
        before = None
        while before != (self.params, self.ops):
            before = (self.params, list(self.ops))
            self._leave_out()
            self._make_smaller()
            if smaller_params:
                self._smaller_params()
        self._rename()

    def _fails(self, params: tuple[int, ...], ops: list[Op]) -> bool:
        """Whether these fail in the same way; then they are what is kept."""
        if time.process_time() > self.deadline:
            raise _TimeIsUp
        try:
            with _at_most(ONE_TRY):
                found = failure(self.start, params, ops)
        except _TimeIsUp:
            return False
        except Exception:  # the lab's side refuses what a shortened sequence asks of it
            return False
        if found is None or found[1].kind != self.kind:
            return False
        self.params, self.ops = params, found[0]
        return True

    def _leave_out(self) -> None:
        size = max(1, len(self.ops) // 2)
        while True:
            at = 0
            while at < len(self.ops):
                if not self._fails(self.params, self.ops[:at] + self.ops[at + size :]):
                    at += size
            if size == 1:
                return
            size //= 2

    def _make_smaller(self) -> None:
        for number in range(len(self.ops)):
            for place in range(1, len(self.ops[number]) if number < len(self.ops) else 0):
                for value in _smaller(self.ops[number][place]):
                    op = self.ops[number]
                    if self._fails(
                        self.params,
                        [*self.ops[:number], (*op[:place], value, *op[place + 1 :]), *self.ops[number + 1 :]],
                    ):
                        break
                if number >= len(self.ops):
                    return

    def _smaller_params(self) -> None:
        for place in range(len(self.params)):
            for value in _smaller(self.params[place]):
                if self._fails((*self.params[:place], value, *self.params[place + 1 :]), list(self.ops)):
                    break

    def _rename(self) -> None:
        """Ids in order of appearance: a, b, c, ..."""
        names: dict[str, str] = {}
        for op in self.ops:
            for value in op[1:]:
                if isinstance(value, str):
                    names.setdefault(value, "abcdefghijklmnopqrstuvwxyz"[len(names) % 26])
        if len(names) <= 26:
            ops = [(op[0], *(names[v] if isinstance(v, str) else v for v in op[1:])) for op in self.ops]
            self._fails(self.params, ops)


def _smaller(value: Any) -> list[Any]:
    if isinstance(value, (bool, str)):
        return []
    if isinstance(value, int):
        return [
            n for n in dict.fromkeys((1, value // 4, value // 2, value * 3 // 4, value - 1)) if 1 <= n < value
        ]
    if isinstance(value, list | tuple) and len(value) > 1:
        half = len(value) // 2
        return [value[:1], value[:half], value[half:], value[:-1], value[1:]]
    return []


class _TimeIsUp(BaseException):
    """Not an `Exception`, so that a learner's `except Exception` does not swallow it."""


def _seconds() -> float:
    """What may be spent: the sandbox's clock (`ITIMER_PROF`) runs on."""
    try:
        left = signal.getitimer(signal.ITIMER_PROF)[0]
    except (AttributeError, ValueError):
        left = 0.0
    return min(SECONDS, SHARE * left) if left else SECONDS


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """A shortened sequence may send the learner's code into a loop that the original did not have."""

    def stop(*_: Any) -> None:
        raise _TimeIsUp

    try:
        before = signal.signal(signal.SIGVTALRM, stop)
    except (AttributeError, ValueError):  # Windows, or not the main thread
        yield
        return
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
