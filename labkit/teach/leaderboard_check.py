"""What is wrong with an entry before it is run: no such class, the wrong base, a method missing or of the wrong shape.

Said at once, before the built-in rows are computed. Whatever needs a load to show is left to the board.
"""

from __future__ import annotations

import dis
import inspect
from numbers import Real
from typing import Any

from labkit.errors import LabError
from labkit.teach.leaderboard_entry import Disqualified, Entry, in_child, load_class, name_of
from labkit.units import MIB

#: CPU seconds for executing the file and making one object
CHECK_S = 5.0


def check_entry(kind: str, entry: Entry) -> None:
    """Look at the entry of a board in a limited child. Raises `LabError` in one sentence."""
    try:
        in_child(lambda: _look_at(kind, entry), time_s=CHECK_S)
    except Disqualified as problem:
        raise LabError(f"{name_of(entry)}: {problem.what}") from None


def _look_at(kind: str, entry: Entry) -> None:
    try:
        cls: Any = load_class(entry)
    except LabError as error:
        raise Disqualified("fails", str(error)) from None
    bases, arguments = _expected(kind, cls)
    base: Any = next((b for b in bases if issubclass(cls, b)), None)
    if base is None:
        one_of = ", ".join(f"{b.__module__}.{b.__name__}" for b in bases)
        raise Disqualified("fails", f"it is not a subclass of {one_of}")
    for name in _methods(base):
        _method(cls, base, name)
    made = _made(cls, arguments)
    if made is not None and hasattr(made, "key"):
        _key(kind, made)


def _expected(kind: str, cls: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """The bases of a board, and what an entry's class is called with."""
    if kind == "allocator":
        from labkit.memory.base import Allocator

        return [Allocator], (64 * MIB,)
    if kind == "eviction":
        from labkit.kv.eviction import EvictionQueue

        return [EvictionQueue], ()
    from labkit.serving.lab import LabScheduler
    from labkit.teach.leaderboard_scheduler import PARTS

    bases = [*PARTS.values(), LabScheduler]
    return bases, (_small_cache(),) if issubclass(cls, LabScheduler) else ()


def _small_cache() -> Any:
    from labkit.kv import make_kv_cache

    return make_kv_cache("paged", capacity_tokens=1024, bytes_per_token=1024, block_size=16)


def _methods(base: Any) -> list[str]:
    return [name for name, _ in inspect.getmembers(base, inspect.isfunction) if not name.startswith("_")]


def _method(cls: Any, base: Any, name: str) -> None:
    """It is there, and can be called as the lab calls it."""
    of_base, own = getattr(base, name), getattr(cls, name)
    call = ", ".join(_required(of_base))
    if own is of_base:
        abstract = getattr(own, "__isabstractmethod__", False)
        if abstract or "NotImplementedError" in own.__code__.co_names:
            raise Disqualified("fails", f"it has no {name}; write def {name}({call})")
        return
    if not inspect.isfunction(own):
        return
    try:
        inspect.signature(own).bind(*_required(of_base))
    except TypeError as error:
        raise Disqualified(
            "fails",
            f"{name}{inspect.signature(own)} cannot be called as the lab does ({error}); write def {name}({call})",
        ) from None


def _required(function: Any) -> list[str]:
    """Names of the positional parameters without a default, `self` among them."""
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]


def _made(cls: Any, arguments: tuple[Any, ...]) -> Any:
    """One object; None where its own code raised, which the run will say with its line."""
    try:
        inspect.signature(cls).bind(*arguments)
    except TypeError as error:
        how = f"Class({', '.join(type(a).__name__ if not isinstance(a, int) else 'capacity_bytes' for a in arguments)})"
        raise Disqualified("fails", f"it is made as {how}, which its __init__ refuses ({error})") from None
    try:
        made = cls(*arguments)
    except Exception:
        return None
    for parent in cls.__mro__:
        if not parent.__module__.startswith("labkit.") or "__init__" not in vars(parent):
            continue
        stored = [i.argval for i in dis.get_instructions(parent.__init__) if i.opname == "STORE_ATTR"]
        missing = [name for name in stored if not hasattr(made, name)]
        if missing:
            raise Disqualified(
                "fails", f"its __init__ does not call super().__init__(), so it has no {', '.join(missing)}"
            )
    return made


def _key(kind: str, policy: Any) -> None:
    """The key of one invented request or entry: a number, or something to compare. What it raises is left to the run."""
    try:
        if kind == "eviction":
            from labkit.kv.eviction import Entry as CacheEntry

            value = policy.key(CacheEntry(None, 0))
        else:
            from labkit.serving.request import Request
            from labkit.serving.space import Space
            from labkit.workload.base import RequestSpec

            request = Request(RequestSpec("r0", 0.0, 64, 64), 0, 0, 64, 64)
            value = policy.key(request, Space(_small_cache()))
    except Exception:
        return
    if value is None:
        raise Disqualified(
            "fails", "key returned None; it has to return what is compared (is a return missing?)"
        )
    if kind == "scheduler" and not isinstance(value, Real):
        raise Disqualified("fails", f"key returned a {type(value).__name__}; an order's key is a number")
