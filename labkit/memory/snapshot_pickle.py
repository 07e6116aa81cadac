"""Reads a pickle from a stranger: plain containers, numbers and strings, and nothing that could run.

The pure-Python unpickler is used on purpose: the C one reserves memory for any memo index the file names, so that six bytes
can ask for 32 GiB. It reads about 5 MB a second, a usual snapshot in a few seconds.
"""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any, NoReturn

from labkit.errors import InputError


class _Plain(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """An unpickler that knows no classes. Every way to code in a pickle goes through `find_class`."""

    def __init__(self, data: bytes, where: str):
        super().__init__(io.BytesIO(data))
        self._where = where

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(
            self._where,
            f"asks for {module}.{name}; a memory snapshot holds only plain containers, numbers and strings, so nothing was loaded",
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise InputError(self._where, "refers to an object outside of the file; a memory snapshot never does")

    def get_extension(self, code: int) -> NoReturn:
        raise InputError(self._where, f"asks for registered extension {code}; a memory snapshot never does")


def load_plain(path: str | os.PathLike[str]) -> Any:
    """The object in the pickle file. Raises `InputError` in one sentence for anything that is not a plain pickle."""
    where = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(where, f"cannot be read ({error.strerror})") from None
    if not data:
        raise InputError(where, "is empty; a pickle of torch.cuda.memory._dump_snapshot is expected")
    try:
        return _Plain(data, where).load()
    except InputError:
        raise
    except (EOFError, IndexError, pickle.UnpicklingError, MemoryError, OverflowError) as error:
        # the unpickler meets the end of a cut file in any of these ways
        raise InputError(where, f"is not a whole pickle: cut off or damaged ({_short(error)})") from None
    except Exception as error:
        raise InputError(where, f"is not a pickle of a memory snapshot ({_short(error)})") from None


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:80]
