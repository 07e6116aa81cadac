"""What stands between a learner's object and the check: words for slips at the border, calls to paste, short sequences."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from labkit.teach.exercises import Mistake, report_on
from labkit.teach.exercises.shorten import Op, any_of, failure, judge
from labkit.teach.exercises.watch import (
    Watched,
    anything,
    because,
    block_ids,
    called,
    offset_or_none,
    shown,
    whole,
    yes_or_no,
)


class Counter:
    """Counts up; breaks at 5 or when told to."""

    def __init__(self, start: int = 0):
        self.count = start

    def add(self, number: int) -> int:
        self.count += number
        if self.count >= 5:
            raise ValueError("five or more")
        return self.count

    def drop(self) -> None:
        self.count = 0

    @property
    def size(self) -> int:
        return self.count


def watched(cls: type, **options: Any) -> Watched:
    return Watched(cls, {"add": whole, "drop": anything}, reads={"size": whole}, **options)


def message(run: Callable[[], Any]) -> str:
    with pytest.raises(Mistake) as found:
        run()
    return found.value.message


def test_calls_are_noted_with_what_came_back() -> None:
    make = watched(Counter)
    counter = make(1)
    counter.add(2)
    counter.drop()
    assert counter.size == 0
    with pytest.raises(Mistake):
        counter.add(7)
    assert make.last is counter
    assert counter.calls() == ["c = Counter(1)", "c.add(2)  # 3", "c.drop()", "c.add(7)  # ValueError"]


def test_an_exception_says_where_and_in_which_call() -> None:
    counter = watched(Counter)()
    text = message(lambda: counter.add(9))
    assert text.startswith("your code raised ValueError: five or more (add, line ")
    assert text.endswith('raise ValueError("five or more")), in the call add(9).')


def test_slips_at_the_border_are_said_in_words() -> None:
    class Hidden(Counter):
        def __init__(self) -> None:
            self.add = {}  # type: ignore[assignment,method-assign]

    class HiddenLater(Counter):
        def drop(self) -> None:
            self.add = 3  # type: ignore[assignment,method-assign]

    class Missing:
        pass

    class NoProperty(Counter):
        def size(self) -> int:  # type: ignore[override]
            return 1

    class Assigned(Counter):
        def __init__(self) -> None:
            self.size = 0  # type: ignore[misc]

    class Parameters(Counter):
        def add(self) -> int:  # type: ignore[override]
            return 1

    def later() -> None:
        counter = watched(HiddenLater)()
        counter.drop()
        counter.add(1)

    assert "`add` is a dict on your object: an attribute self.add hides" in message(lambda: watched(Hidden)())
    assert "`add` is an int on your object" in message(later)
    assert "no method `add`" in message(lambda: watched(Missing)())
    assert "keep the line @property" in message(lambda: watched(NoProperty)().size)
    assert "keep the number under another name" in message(lambda: watched(Assigned)())
    assert "Keep the parameters of the task" in message(lambda: watched(Parameters)().add(1))


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (whole, [0, -3], [1.0, "1", None, True]),
        (offset_or_none, [None, 0], [False, (0, 1), "0"]),
        (yes_or_no, [True, False, None], [1, [], "yes"]),
        (block_ids, [[], [1, 2], (3,)], [{1}, None, [1.5], {1: 2}]),
    ],
)
def test_rules(rule: Callable[[Any], str], good: list[Any], bad: list[Any]) -> None:
    assert [rule(value) for value in good] == [""] * len(good)
    assert all(rule(value) for value in bad)


def test_stubs_and_exceptions_of_the_exercise_pass_through() -> None:
    class Stub(Counter):
        def add(self, number: int) -> int:
            raise NotImplementedError("ex99: Stub.add is not written yet")

    with pytest.raises(NotImplementedError, match=r"Stub\.add"):
        watched(Stub)().add(1)
    with pytest.raises(ValueError, match="five"):
        watched(Counter, passes=(ValueError,))().add(9)


def test_a_cause_is_added_to_exceptions_only() -> None:
    def with_cause(call: Callable[[], Any]) -> None:
        with because("That is what this case is about."):
            call()

    def wrong() -> None:
        raise Mistake("2 is not 3.")

    class Forgets(Counter):
        def add(self, number: int) -> int:
            return dict[int, int]()[number]

    assert message(lambda: with_cause(lambda: watched(Forgets)().add(9))).endswith("case is about.")
    assert "case" not in message(lambda: with_cause(lambda: watched(Counter)().add(9))), (
        "a slip of another kind"
    )
    assert message(lambda: with_cause(wrong)) == "2 is not 3."


def test_long_histories_show_their_end() -> None:
    make = watched(Counter)

    def many() -> None:
        with shown(make, lambda counter: []):
            counter = make(-100)
            for _ in range(30):
                counter.add(1)
            raise Mistake("wrong.")

    text = message(many)
    assert "The last calls before it:\n" in text
    assert text.count("c.add(1)") == 12
    assert text.endswith("c.add(1)  # -70")


def test_a_function_under_watch_names_its_call() -> None:
    def half(number: int, *, by: int = 2) -> float:
        return number / by

    assert "in the call half(3, by=0)" in message(lambda: called(half)(3, by=0))
    assert message(lambda: called(half, whole)(3)) == "half(3) returned 1.5: it must be an int."


# --- short sequences ---------------------------------------------------------------------------------------------


class Play:
    """Wrong as soon as more than `limit` are in and somebody left before."""

    def __init__(self, limit: int, noise: int = 7):
        self.limit, self.live, self.total, self.left = limit, list[str](), 0, 0

    def __call__(self, op: Op) -> None:
        if op[0] == "out":
            self.live.remove(op[1])
            self.left += 1
            return
        self.live.append(op[1])
        self.total += op[2]
        if self.total > self.limit and self.left:
            raise Mistake(f"{self.total} is more than {self.limit}")


def sequence(num: int) -> list[Op]:
    ops: list[Op] = []
    for step in range(num):
        ops.append(("in", f"r{step}", 1 + step % 5))
        if step % 3 == 2:
            ops.append(("out", any_of(step)))
    return ops


def test_a_failing_sequence_is_cut_to_what_matters() -> None:
    made: list[Play] = []
    played: list[list[Op]] = []

    def start(limit: int, noise: int) -> Callable[[Op], None]:
        play = Play(limit, noise)
        made.append(play)
        played.append([])

        def one(op: Op) -> None:
            played[-1].append(op)
            play(op)

        one.live = play.live  # type: ignore[attr-defined]
        return one

    with pytest.raises(Mistake, match="is more than 1"):
        judge(start, (40, 9), sequence(60))
    assert len(played[-1]) == 3, "somebody comes, somebody leaves, one more comes"
    assert {op[1] for op in played[-1]} <= {"a", "b"}, "ids in order of appearance"
    assert all(op[2] <= 2 for op in played[-1] if op[0] == "in"), "small numbers"


def test_a_right_sequence_is_played_once() -> None:
    assert failure(Play, (10_000,), sequence(60)) is None
    judge(Play, (10_000,), sequence(60))


def test_shortening_keeps_to_one_kind_of_failure_and_survives_loops() -> None:
    """Without its first operation this learner's code never ends; with it, it fails."""

    class Loops:
        live: tuple[str, ...] = ()

        def __init__(self) -> None:
            self.ready = self.odd = False

        def __call__(self, op: Op) -> None:
            if op[0] == "first":
                self.ready = True
            elif op[0] == "odd":
                self.odd = True
            elif op[0] == "last":
                while not self.ready:
                    pass
                kind = "" if self.odd else "KeyError"
                raise Mistake("as it was" if self.odd else "another failure", kind=kind)

    start = time.process_time()
    with pytest.raises(Mistake, match="as it was"):
        judge(Loops, (), [("first",), ("x",), ("odd",), ("x",), ("last",)])
    assert time.process_time() - start < 3


# --- whole checks ------------------------------------------------------------------------------------------------


class OneFlagAUnit:
    """Exercise 03, right and slow: every unit of the heap has a flag, and nothing is ever merged."""

    def __init__(self, capacity: int):
        self.used, self.sizes = [False] * capacity, dict[int, int]()

    def malloc(self, size: int) -> int | None:
        for at in range(len(self.used) - size + 1):
            if not any(self.used[at : at + size]):
                self.used[at : at + size] = [True] * size
                self.sizes[at] = size
                return at
        return None

    def free(self, offset: int) -> None:
        size = self.sizes.pop(offset)
        self.used[offset : offset + size] = [False] * size

    def free_spans(self) -> list[tuple[int, int]]:
        spans, start = [], None
        for unit, used in enumerate([*self.used, True]):
            if not used and start is None:
                start = unit
            elif used and start is not None:
                spans.append((start, unit - start))
                start = None
        return spans


def test_a_slow_right_solution_passes_with_room_to_spare() -> None:
    report = report_on("03", OneFlagAUnit, time_s=1.0)
    assert report.passed, report.message


def test_a_failure_of_the_random_part_is_a_few_calls() -> None:
    class Forgets(OneFlagAUnit):
        """Frees one unit too few of a span of 3 while another of 3 is live."""

        def free(self, offset: int) -> None:
            twins = list(self.sizes.values()).count(3) > 1 and self.sizes[offset] == 3
            super().free(offset)
            if twins:
                self.used[offset] = True

    report = report_on("03", Forgets)
    assert not report.passed
    assert "seed" not in report.message
    calls = [line for line in report.message.splitlines() if line.startswith("    c")]
    assert len(calls) == 4, report.message
    assert calls[0].startswith("    c = Forgets(")
    assert [picture.title.partition(":")[0] for picture in report.pictures] == ["yours", "expected"]
