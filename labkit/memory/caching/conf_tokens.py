"""The settings string of PyTorch's allocator cut into tokens, and its numbers as C++ reads them.

Source: c10/core/AllocatorConfig.{h,cpp} (`ConfigTokenizer`).
"""

from __future__ import annotations

import re

from labkit.errors import LabError

#: the largest value of a C++ `size_t`: what a limit is when it is not set
UNLIMITED = 2**64 - 1


class AllocatorConfError(LabError, ValueError):
    """A settings string PyTorch refuses; the text begins with PyTorch's own."""


class Tokens:
    """Keys, values and the four separators `, : [ ]`; white space vanishes wherever it stands."""

    def __init__(self, conf: str):
        self.conf = conf
        self.tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"[ \t\n\v\f\r]", "", conf))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> str:
        if i >= len(self.tokens):
            raise self.error("Index out of bounds in ConfigTokenizer")
        return self.tokens[i]

    def error(self, text: str) -> AllocatorConfError:
        """PyTorch's text, and the string it is about; to be raised."""
        return AllocatorConfError(f"{text} (in the allocator settings {self.conf!r})")

    def integer(self, i: int) -> int:
        """C++ `std::stoull`: leading digits count, the rest is ignored, a minus wraps round at 2^64."""
        match = re.match(r"([+-]?)([0-9]+)", self[i])
        if not match or int(match[2]) > UNLIMITED:
            raise self.error(f"stoull: {self[i]!r} is not a whole number below 2^64")
        return (-int(match[2])) % 2**64 if match[1] == "-" else int(match[2])

    def number(self, i: int) -> float:
        """C++ `std::stod`: the longest leading number counts, the rest is ignored."""
        match = re.match(r"[+-]?(inf|nan|([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)", self[i], re.IGNORECASE)
        value = float(match[0]) if match else 0.0
        if not match or (abs(value) == float("inf") and match[2]):
            raise self.error(f"stod: {self[i]!r} is not a number")
        return value

    def boolean(self, i: int) -> bool:
        """Only `True` and `False` as they stand."""
        if self[i] not in ("True", "False"):
            raise self.error(
                f"Expected 'True' or 'False' at index {i} in ConfigTokenizer but got '{self[i]}'"
            )
        return self[i] == "True"

    def skip_value(self, i: int) -> int:
        """The index of the last token of the value that belongs to the key at `i`: one token, or a list in brackets."""
        i += 2
        if self[i] == "[":
            while i < len(self) and self[i] != "]":
                i += 1
            if i >= len(self):
                raise self.error("Expected closing bracket ']' in ConfigTokenizer but reached end of config")
        return i
