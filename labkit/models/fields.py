"""Typed access to the fields of a parsed JSON object: a wrong one is named in the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, overload

from labkit.errors import InputError, shown

Default = TypeVar("Default")
_REQUIRED: Any = object()
#: no size in a config is larger; numbers of things that are kept one by one (layers, experts) get a smaller limit
LARGEST_COUNT = 10**9


class Fields:
    """`Fields(config, "config.json").count("hidden_size")` is a positive whole number or an `InputError`.
    JSON's null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: object):
        self.values, self.where = dict(values), where

    def get(self, name: str) -> Any:
        """The value as it stands in the file; None where it is missing."""
        return self.values.get(name)

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise `InputError` that names the file and the field."""
        raise InputError(self.where, problem, field=name)

    @overload
    def count(self, name: str, *, minimum: int = 1, maximum: int = LARGEST_COUNT) -> int: ...
    @overload
    def count(
        self, name: str, *, default: Default, minimum: int = 1, maximum: int = LARGEST_COUNT
    ) -> int | Default: ...
    def count(
        self, name: str, *, default: Any = _REQUIRED, minimum: int = 1, maximum: int = LARGEST_COUNT
    ) -> Any:
        """A whole number of at least `minimum` and at most `maximum`."""
        value = self.values.get(name)
        if value is None:
            if default is _REQUIRED:
                self.fail(name, "is missing; a positive whole number is needed")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            what = "a positive whole number" if minimum == 1 else f"a whole number from {minimum}"
            self.fail(name, f"is {shown(value)}; expected {what}")
        if value > maximum:
            self.fail(name, f"is {shown(value)}; expected at most {maximum:,}")
        return value

    def number(
        self,
        name: str,
        *,
        default: Any = _REQUIRED,
        minimum: float | None = None,
        maximum: float = 1e300,
    ) -> Any:
        """A finite number, above `minimum` where one is given and at most `maximum`."""
        value = self.values.get(name)
        if value is None:
            if default is _REQUIRED:
                self.fail(name, "is missing; a number is needed")
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value != value
            or abs(value) == float("inf")
        ):
            self.fail(name, f"is {shown(value)}; expected a number")
        if minimum is not None and value <= minimum:
            self.fail(name, f"is {shown(value)}; expected a number above {minimum:g}")
        if value > maximum:
            self.fail(name, f"is {shown(value)}; expected at most {maximum:g}")
        return float(value)

    def flag(self, name: str, *, default: Default) -> bool | Default:
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(name, f"is {shown(value)}; expected true or false")
        return value

    def layers(self, name: str) -> list[int]:
        """A list of layer indices; absent is empty."""
        value = self.values.get(name) or []
        if not isinstance(value, list) or not all(type(layer) is int and layer >= 0 for layer in value):
            self.fail(name, f"is {shown(value)}; expected a list of layer numbers")
        return value
