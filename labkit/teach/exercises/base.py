"""What an exercise is, what a failed check says, and how the modules are found."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from labkit.errors import LabError
from labkit.memory.base import Span


@dataclass(frozen=True)
class Picture:
    """A figure as data, because the check runs in a child: drawn by the parent with `labkit.viz`.

    kind "layout"   `content` is a list of `Span`; options of `draw_layout` (unit, highlight, rows)
    kind "bars"     `content` is {label: {series: value}}; options of `draw_bars` (ylabel, stacked)
    """

    kind: Literal["layout", "bars"]
    title: str
    content: Any
    options: dict[str, Any] = field(default_factory=dict)


class Mistake(Exception):
    """What the learner got wrong: one or two sentences that name the mistake and the input, and its picture."""

    def __init__(self, message: str, *pictures: Picture):
        super().__init__(message)
        self.message, self.pictures = message, pictures

    def __reduce__(self) -> tuple[Any, ...]:
        return (Mistake, (self.message, *self.pictures))


@dataclass(frozen=True)
class Exercise:
    """`targets` are the names that the learner defines, in the order in which `check` takes them. `run(*learner)` raises
    `Mistake`, or returns one sentence on what was shown. `worker`: the check runs Triton's interpreter, so it goes to the
    worker process as source text (`labkit.teach.triton_worker`)."""

    id: str
    name: str
    title: str
    targets: tuple[str, ...]
    hints: tuple[str, ...]
    run: Callable[..., str]
    #: CPU seconds; on the clock `sandbox.PATIENCE` times as many
    time_s: float = 2.0
    worker: bool = False
    #: runs in this process after a check in the worker passed: compiling, benching; returns a sentence
    afterwards: Callable[[str], str] | None = None

    @property
    def notebook(self) -> str:
        return f"ex{self.id}_{self.name}"


@cache
def _modules() -> dict[str, str]:
    """`{"07": "ex07_block_table"}`."""
    import labkit.teach.exercises as package

    names = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name.startswith("ex")]
    return {name[2:4]: name for name in sorted(names) if name[2:4].isdigit()}


def exercise_ids() -> list[str]:
    return list(_modules())


def find_exercise(exercise_id: object) -> Exercise:
    """By "07", "7" or 7. Raises `LabError` that lists the ids."""
    key = str(exercise_id).strip().removeprefix("ex").split("_")[0].zfill(2)
    if key not in _modules():
        raise LabError(f"exercise {exercise_id!r} is not known; choose one of: {', '.join(exercise_ids())}")
    module = importlib.import_module(f"labkit.teach.exercises.{_modules()[key]}")
    exercise: Exercise = module.EXERCISE
    return exercise


def that(condition: bool, message: str, *pictures: Picture) -> None:
    """`Mistake(message, *pictures)` unless `condition`."""
    if not condition:
        raise Mistake(message, *pictures)


class Remember:
    """A learner's class that remembers its last instance and how it was made, so that a failure can be drawn."""

    def __init__(self, learner_class: Callable[..., Any]):
        self.learner_class = learner_class
        self.last: Any = None
        self.args: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> Any:
        self.args, self.last = args, None
        self.last = self.learner_class(*args)
        return self.last


@contextlib.contextmanager
def drawn(picture: Callable[[], Picture]) -> Iterator[None]:
    """A mistake raised inside that brings no picture of its own gets this one, as things stand then."""
    try:
        yield
    except Mistake as mistake:
        if mistake.pictures:
            raise
        try:
            shown = picture()
        except Exception:  # what the learner's object is in may be beyond drawing
            raise mistake from None
        raise Mistake(mistake.message, shown) from None


def pool_picture(
    title: str, pool: Any, names: Sequence[str], num_blocks: int, twice: str = "shared"
) -> Picture:
    """The blocks that `pool.block_table(name)` says for each name that is live; those that two
    name stand out as `twice` ("shared", or "twice" where it is a mistake)."""
    owners: list[str | None] = [None] * num_blocks
    for name in names:
        try:
            blocks = list(pool.block_table(name))
        except (KeyError, IndexError, TypeError):
            continue
        for block in blocks:
            if 0 <= block < num_blocks:
                owners[block] = name if owners[block] is None else twice
    return blocks_picture(title, owners)


def framed(ranges: Sequence[tuple[int, int]], limit: int = 8) -> dict[str, tuple[int, int]]:
    """`highlight` of a layout that outlines each (offset, size) without a text, so that free neighbours that were not
    merged are seen; nothing when there are more than `limit`."""
    return {" " * (i + 1): place for i, place in enumerate(ranges)} if len(ranges) <= limit else {}


def blocks_picture(title: str, owners: Sequence[str | None]) -> Picture:
    """A pool of blocks, one step a block: `owners[block]` names who holds it, None is free."""
    spans = [
        Span(block, 1, "free" if owner is None else "allocated", 1, owner or "", _lifetime(owner))
        for block, owner in enumerate(owners)
    ]
    return Picture("layout", title, spans, {"unit": "blocks"})


def _lifetime(owner: str | None) -> str:
    return {
        None: "",
        "shared": "prefix",
        "twice": "activation",
        "lost": "communication",
        "cached": "cached",
    }.get(owner, "request")
