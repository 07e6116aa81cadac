"""A family of variants under short names: `base.py`, one file a variant, and one of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from labkit.errors import LabError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps a name to a variant; refuses duplicates, and lists the valid names when one is not known."""

    def __init__(self, what: str):
        self.what = what
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: `@ALLOCATORS.register("first-fit")`."""

        def add(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.what} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise LabError(f"unknown {self.what} {name!r}; choose one of: {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)
