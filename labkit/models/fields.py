"""Typed access to the fields of a parsed JSON object: a wrong one is named in the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, overload

from labkit.errors import InputError

Default = TypeVar("Default")
_REQUIRED: Any = object()


class Fields:
    """`Fields(config, "config.json").count("hidden_size")` is a positive whole number or an `InputError`.
    JSON's null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: object):
        self.values, self.where = dict(values), where

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def fail(self, name: str, problem: str) -> NoReturn:
        raise InputError(self.where, problem, field=name)

    @overload
    def count(self, name: str) -> int: ...
    @overload
    def count(self, name: str, *, default: Default) -> int | Default: ...
    def count(self, name: str, *, default: Any = _REQUIRED) -> Any:
        """A whole number of at least 1."""
        value = self.values.get(name)
        if value is None:
            if default is _REQUIRED:
                self.fail(name, "is missing; a positive whole number is needed")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.fail(name, f"is {value!r}; expected a positive whole number")
        return value

    def number(self, name: str, *, default: Any = _REQUIRED, minimum: float | None = None) -> Any:
        """A finite number, above `minimum` where one is given."""
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
            self.fail(name, f"is {value!r}; expected a number")
        if minimum is not None and value <= minimum:
            self.fail(name, f"is {value!r}; expected a number above {minimum:g}")
        return float(value)

    def flag(self, name: str, *, default: Default) -> bool | Default:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(name, f"is {value!r}; expected true or false")
        return value
