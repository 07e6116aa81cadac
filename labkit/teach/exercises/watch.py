"""A learner's class or function under watch: calls are noted, and what goes wrong at the border is said in words.

    make = Watched(MyFirstFit, {"malloc": offset_or_none, "free": anything}, asks={"free_spans": pairs})
    heap = make(1000)
    heap.malloc(30)                  # noted; the answer is held against its rule
    make.last.calls()                # ["c = MyFirstFit(1000)", "c.malloc(30)  # 0"]

Without it a learner sees Python's view of such slips: an attribute `self.free` that hides the method `free` is "'list' object
is not callable", without a line.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from labkit.teach.exercises.base import Mistake, Picture
from labkit.teach.sandbox_child import place_of

#: what is wrong with an answer ("must be True or False"), or an empty string
Rule = Callable[[Any], str]
SHOWN = 12  # calls of a failure that are printed
NO_ARTICLE = ("NoneType",)


class Watched:
    """`acts` are methods that change something and are noted, `asks` those that only answer, `reads` the properties.
    Exceptions in `passes` are part of the exercise and come through as they are. `follow(object, method, arguments, answer)` is
    called after every act (for a picture that needs the past)."""

    def __init__(
        self,
        learner_class: Callable[..., Any],
        acts: Mapping[str, Rule],
        asks: Mapping[str, Rule] | None = None,
        reads: Mapping[str, Rule] | None = None,
        passes: tuple[type[Exception], ...] = (),
        follow: Callable[[Seen, str, tuple[Any, ...], Any], None] | None = None,
    ):
        self.learner_class, self.acts, self.asks = learner_class, dict(acts), dict(asks or {})
        self.reads, self.passes, self.follow = dict(reads or {}), passes, follow
        self.name = getattr(learner_class, "__name__", "MyClass")
        self.last: Seen | None = None

    def __call__(self, *args: Any) -> Seen:
        self.last = Seen(self, args)
        return self.last


class Seen:
    """One object of the learner's class. Its methods and properties are the learner's; `calls()` is the check's."""

    def __init__(self, watched: Watched, args: tuple[Any, ...]):
        self._watched, self._args = watched, args
        self._log: list[tuple[str, tuple[Any, ...], str]] = []
        self._object: Any = None
        try:
            self._object = watched.learner_class(*args)
        except Exception as error:
            _raise(error, f"{watched.name}({_listed(args)})", watched.passes)
        own = getattr(self._object, "__dict__", {})
        for name in (*watched.acts, *watched.asks):
            if not hasattr(self._object, name):
                raise Mistake(f"the class has no method `{name}`: the table of the task lists what it needs.")
            if name in own and not callable(own[name]):
                _hidden(name, own[name])

    def __getattr__(self, name: str) -> Any:
        watched: Watched = self._watched
        if name in watched.reads:
            return self._read(name, watched.reads[name])
        acts = name in watched.acts
        if not acts and name not in watched.asks:
            raise AttributeError(name)
        rule = watched.acts[name] if acts else watched.asks[name]
        found = getattr(self._object, name)
        if not callable(found):
            _hidden(name, found)

        def call(*args: Any) -> Any:
            entry = [name, args, ""]
            if acts:
                self._log.append(entry)  # type: ignore[arg-type]
            try:
                answer = found(*args)
            except Exception as error:
                entry[2] = type(error).__name__
                _raise(error, f"{name}({_listed(args)})", watched.passes)
            entry[2] = "" if answer is None and rule is anything else short(answer)
            problem = rule(answer)
            if problem:
                raise Mistake(f"{name}({_listed(args)}) returned {short(answer)}: {problem}.")
            if acts and watched.follow is not None:
                watched.follow(self, name, args, answer)
            return answer

        return call

    def _read(self, name: str, rule: Rule) -> Any:
        try:
            value = getattr(self._object, name)
        except AttributeError as error:
            if not hasattr(type(self._object), name):
                raise Mistake(
                    f"the class has no `{name}`: the table of the task says that it is a property."
                ) from None
            _raise(error, name, self._watched.passes)
        except Exception as error:
            _raise(error, name, self._watched.passes)
        if inspect.ismethod(value):
            raise Mistake(
                f"`{name}` is a method, and the task asks for a property: keep the line @property above its `def`, so that "
                f"it is read without brackets."
            )
        problem = rule(value)
        if problem:
            raise Mistake(f"{name} is {short(value)}: {problem}.")
        return value

    def calls(self) -> list[str]:
        """The calls so far, ready to be pasted; what came back stands behind them."""
        lines = [f"c = {self._watched.name}({_listed(self._args)})"]
        for name, args, answer in self._log:
            lines.append(f"c.{name}({_listed(args)})" + (f"  # {answer}" if answer else ""))
        return lines


def called(
    function: Callable[..., Any], rule: Rule | None = None, passes: tuple[type[Exception], ...] = ()
) -> Callable[..., Any]:
    """A learner's function under watch: an exception of it says for which call, and the answer is held against `rule`."""

    def text(args: tuple[Any, ...], named: dict[str, Any]) -> str:
        listed = [*map(short, args), *(f"{key}={short(value)}" for key, value in named.items())]
        return f"{getattr(function, '__name__', 'your function')}({', '.join(listed)})"

    def call(*args: Any, **named: Any) -> Any:
        try:
            answer = function(*args, **named)
        except Exception as error:
            _raise(error, text(args, named), passes)
        problem = rule(answer) if rule is not None else ""
        if problem:
            raise Mistake(f"{text(args, named)} returned {short(answer)}: {problem}.")
        return answer

    return call


@contextlib.contextmanager
def shown(make: Watched, picture: Callable[[Seen], Sequence[Picture]]) -> Iterator[None]:
    """A mistake raised inside gets the calls that led there, and pictures of how things stood, unless it has its own."""
    try:
        yield
    except Mistake as mistake:
        pictures, calls = mistake.pictures, mistake.calls
        if make.last is not None:
            calls = calls or tuple(make.last.calls())
            if not pictures:
                with contextlib.suppress(Exception):  # what the object is in may be beyond drawing
                    pictures = tuple(picture(make.last))
        message = mistake.message
        if 1 < len(calls) <= SHOWN:
            message += "\nCalls that show it (paste them into a cell):\n" + "\n".join(
                f"    {c}" for c in calls
            )
        elif len(calls) > SHOWN:
            message += "\nThe last calls before it:\n" + "\n".join(f"    {c}" for c in calls[-SHOWN:])
        raise Mistake(message, *pictures, kind=mistake.kind, calls=calls) from None


@contextlib.contextmanager
def because(why: str) -> Iterator[None]:
    """A lookup or a removal that finds nothing, in the learner's code inside, gets the cause that this case is about."""
    try:
        yield
    except Mistake as mistake:
        if mistake.kind not in ("KeyError", "IndexError"):
            raise
        raise Mistake(
            f"{mistake.message} {why[:1].upper()}{why[1:]}", *mistake.pictures, kind=mistake.kind
        ) from None


# --- rules -----------------------------------------------------------------------------------------------------------


def anything(answer: Any) -> str:
    """For methods whose answer nobody looks at."""
    return ""


def whole(answer: Any) -> str:
    return "" if _is_int(answer) else "it must be an int"


def offset_or_none(answer: Any) -> str:
    return (
        ""
        if answer is None or _is_int(answer)
        else "it must be an int, the offset, or None when there is no room"
    )


def yes_or_no(answer: Any) -> str:
    """None is taken for False, as Python does: some write only the `return True`."""
    good = answer is None or isinstance(answer, bool) or type(answer).__name__ in ("bool", "bool_")
    return "" if good else "it must be True or False"


def block_ids(answer: Any) -> str:
    """A list (or tuple) of whole numbers."""
    if isinstance(answer, set | frozenset | dict):
        return f"a {type(answer).__name__} has no order; return a list of block ids in the order of the positions"
    try:
        blocks = list(answer)
    except TypeError:
        return "it must be a list of block ids"
    return "" if all(_is_int(block) for block in blocks) else "it must be a list of block ids, each an int"


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


# --- words -----------------------------------------------------------------------------------------------------------


def short(value: Any, limit: int = 200) -> str:
    """`repr`, cut where it is long."""
    try:
        text = repr(value)
    except Exception as error:
        return f"an object whose repr raises {type(error).__name__}"
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."


def _listed(args: tuple[Any, ...]) -> str:
    return ", ".join(short(arg) for arg in args)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return name if name in NO_ARTICLE else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _hidden(name: str, value: Any) -> NoReturn:
    raise Mistake(
        f"`{name}` is {_kind(value)} on your object: an attribute self.{name} hides the method {name}; rename the attribute."
    )


def _raise(error: Exception, call: str, passes: tuple[type[Exception], ...]) -> NoReturn:
    """The learner's exception as a mistake that says where, in which call, and why where Python's words do not."""
    if isinstance(error, (Mistake, NotImplementedError, MemoryError, SyntaxError, *passes)):
        raise error
    if "can't allocate memory" in str(error):  # torch's way of saying MemoryError
        raise error
    place, words = place_of(error), str(error)
    where = f" ({place})" if place else ""
    kind = type(error).__name__
    if found := re.search(r"property '(\w+)' of '[^']*' object has no setter", words):
        raise Mistake(
            f"`{found[1]}` is computed when it is read (a property) and cannot be assigned{where}: keep the number under "
            "another name."
        ) from None
    text = f"your code raised {kind}: {words}{where}, in the call {call}."
    if isinstance(error, TypeError) and not place:
        text = f"the call {call} failed: {words}. Keep the parameters of the task."
    raise Mistake(text, kind=kind) from None
