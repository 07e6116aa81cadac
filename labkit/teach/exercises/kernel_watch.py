"""A learner's Triton kernel under watch, in the interpreter: which addresses each program loads and stores, and what the
interpreter's exceptions mean."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.teach.exercises.base import Mistake
from labkit.teach.sandbox_child import place_of

SHOWN = 160  # characters of an exception


@dataclass
class Accesses:
    """`stores[program]`: addresses written by it, in order. `outside`: ("load" or "store", program, address) of each access
    that lies in none of the tensors; those are not carried out."""

    stores: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    outside: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)


@contextlib.contextmanager
def watched(tensors: Mapping[str, Any]) -> Iterator[Accesses]:
    """While open, loads and stores of interpreted kernels reach the storages of `tensors` only. Where this Triton's
    interpreter has other entry points, nothing is watched and everything runs as always."""
    found = Accesses()
    try:
        import triton.language as tl
        import triton.runtime.interpreter as interpreter

        builder: Any = interpreter.interpreter_builder
        load, store, handle = (
            builder.create_masked_load,
            builder.create_masked_store,
            interpreter.TensorHandle,
        )
    except (ImportError, AttributeError):
        yield found
        return
    storages = [t.untyped_storage() for t in tensors.values()]
    ranges = [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages]

    def inside(what: str, pointers: Any, mask: Any) -> Any:
        addresses, wanted = np.asarray(pointers.data).ravel(), np.asarray(mask.data).ravel().astype(bool)
        addresses, wanted = np.broadcast_arrays(addresses, wanted)
        good = np.zeros(addresses.shape, dtype=bool)
        for low, high in ranges:
            good |= (addresses >= low) & (addresses < high)
        program = tuple(int(i) for i in builder.grid_idx)
        found.outside.extend((what, program, int(a)) for a in addresses[wanted & ~good][:4])
        if what == "store":
            found.stores.setdefault(program, []).extend(int(a) for a in addresses[wanted])
        return handle((wanted & good).reshape(np.shape(pointers.data)), tl.int1)

    builder.create_masked_load = lambda ptrs, mask, *rest: load(ptrs, inside("load", ptrs, mask), *rest)
    builder.create_masked_store = lambda ptrs, value, mask, *rest: store(
        ptrs, value, inside("store", ptrs, mask), *rest
    )
    try:
        yield found
    finally:
        del builder.create_masked_load, builder.create_masked_store  # the class's own again


def nearest(tensors: Mapping[str, Any], address: int) -> tuple[str, int]:
    """Name of the tensor whose storage is nearest, and the element of it that `address` would be (may be negative, or behind
    the end)."""

    def distance(name: str) -> int:
        low = tensors[name].untyped_storage().data_ptr()
        high = low + tensors[name].untyped_storage().nbytes()
        return max(low - address, address - high + 1, 0)

    name = min(tensors, key=distance)
    return name, (address - tensors[name].data_ptr()) // tensors[name].element_size()


@contextlib.contextmanager
def prints_of(title: str) -> Iterator[None]:
    """What the kernel prints inside, under a line that says in which case."""
    from labkit.teach.sandbox_child import Tail

    printed = Tail()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        if text := printed.tail():
            print(f"case '{title}':")
            print(text.rstrip("\n"))


def explained(error: Exception) -> Exception:
    """An exception of the learner's kernel or launcher as a `Mistake` with its line, and with the cause where Triton's words
    say little. Others come back as they are."""
    if isinstance(
        error, (Mistake, NotImplementedError, MemoryError, SyntaxError)
    ) or "allocate memory" in str(error):
        return error
    place, kind = place_of(error), type(error).__name__
    words = " ".join(str(error).split())
    words = re.sub(r"\[(\d{9,}\s?){4,}\]", "[a row of addresses]", words)
    why = _cause(kind, words, place)
    if not place and not why:
        return error
    words = words if len(words) <= SHOWN else f"{words[:SHOWN]} ..."
    text = f"your code raised {kind}{f': {words}' if words else ''}{f' ({place})' if place else ''}."
    return Mistake(f"{text} {why}".rstrip(), kind=kind)


POINTERS = "The arguments of the kernel are pointers, and a pointer plus a number is a pointer; tl.load reads what it points to."


def _cause(kind: str, words: str, place: str) -> str:
    if (
        kind in ("IncompatibleTypeErrorImpl", "IncompatibleTypeError")
        or ("cannot cast [" in words and "addresses" in words)
        or "pointer<" in words
    ):
        return POINTERS
    if "object is not iterable" in words or "not subscriptable" in words:
        return f"A pointer cannot be indexed like a list. {POINTERS}"
    if "power of 2" in words or "power of two" in words:
        return "tl.arange takes constants only, and their distance must be a power of two."
    if "math." in place:
        return "Python's math takes single numbers: use tl.exp and its like in a kernel."
    return ""


def mask_slip(function: Any) -> str:
    """A sentence when the kernels of the learner's text join masks in a way that Python takes differently."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
            for part in ast.walk(node):
                joined = isinstance(part, ast.BoolOp) and any(isinstance(v, ast.Compare) for v in part.values)
                loose = isinstance(part, ast.Compare) and any(
                    isinstance(side, ast.BinOp) and isinstance(side.op, ast.BitAnd | ast.BitOr)
                    for side in (part.left, *part.comparators)
                )
                if joined or loose:
                    text = ast.unparse(part)
                    why = "`and` looks at one element only" if joined else "& binds closer than < and >="
                    return f" Your kernel has `{text}`: combine masks with & and brackets, (a) & (b), not with `and`; {why}."
    return ""
