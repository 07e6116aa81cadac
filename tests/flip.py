"""Changes one recorded value at a time, to show that `labkit verify` finds exactly that one.

    assert_every_flip_is_named(recording, replay, ["steps", "totals"])

A field is a path with its list positions left out: `steps[12].preempted[0].blocks` and `steps[80].preempted[1].blocks`
are two values of the field `steps[].preempted[].blocks`. One value of every field is flipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from labkit.recording import Comparison


class Leaf(NamedTuple):
    """One scalar of a recording: its path as `labkit verify` writes it, and where it hangs."""

    path: str
    container: Any
    key: Any

    @property
    def field(self) -> str:
        return re.sub(r"\[\d+\]", "[]", self.path)


def leaves(recording: dict[str, Any], parts: list[str]) -> Iterator[Leaf]:
    """Every scalar below the named top-level keys. Rows that have `columns` are named by column."""
    columns = recording.get("columns")
    for part in parts:
        for leaf in _walk(recording, part, part):
            row = re.fullmatch(r"(rows\[\d+\])\[(\d+)\]", leaf.path)
            yield leaf._replace(path=f"{row[1]}.{columns[int(row[2])]}") if row and columns else leaf


def one_of_each_field(recording: dict[str, Any], parts: list[str]) -> dict[str, Leaf]:
    """Field -> the value in the middle of all its values."""
    fields: dict[str, list[Leaf]] = {}
    for leaf in leaves(recording, parts):
        fields.setdefault(leaf.field, []).append(leaf)
    return {name: found[len(found) // 2] for name, found in fields.items()}


@contextmanager
def flipped(leaf: Leaf) -> Iterator[Any]:
    """The recording holds another value of the same type there inside the `with` block."""
    before = leaf.container[leaf.key]
    leaf.container[leaf.key] = other_value(before)
    try:
        yield leaf.container[leaf.key]
    finally:
        leaf.container[leaf.key] = before


def other_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    assert value is None, value
    return 7


def assert_every_flip_is_named(
    recording: dict[str, Any],
    replay: Callable[[dict[str, Any]], Comparison],
    parts: list[str],
    skip: Callable[[str], bool] = lambda field: False,
) -> list[str]:
    """Flip one value of each field; the replay must find one difference, at that path. Returns the fields."""
    assert replay(recording).num_differences == 0
    fields = {name: leaf for name, leaf in one_of_each_field(recording, parts).items() if not skip(name)}
    assert fields
    for leaf in fields.values():
        with flipped(leaf) as value:
            comparison = replay(recording)
        found = [difference.path for difference in comparison.kept]
        assert found == [leaf.path], f"flipped {leaf.path} to {value!r}, verify named {found}"
        assert comparison.num_differences == 1
    return list(fields)


def _walk(container: Any, key: Any, path: str) -> Iterator[Leaf]:
    value = container[key]
    if isinstance(value, dict):
        for name in value:
            yield from _walk(value, name, f"{path}.{name}")
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from _walk(value, index, f"{path}[{index}]")
    else:
        yield Leaf(path, container, key)
