"""The token pool: pages that are free, by number or only by count.

Slot 0 is a dummy of the real pool and is never handed out. Order (`allocator/token.py`, `allocator/paged.py`): pages are
taken from the front; with a page size of 1 freed slots go to the back, with larger pages freed pages go to the front.
Which id a request gets decides nothing, so a simulator may keep the count alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.errors import LabError, require


class TokenPool:
    """`capacity` tokens in pages of `page_size`: `num_free_pages` of `num_pages`. `take` and `give` also move ids when the pool was built with `with_ids`."""

    def __init__(self, capacity: int, page_size: int, *, with_ids: bool = False):
        self.page_size = page_size
        self.num_pages = self.num_free_pages = capacity // page_size
        self._free: list[int] | None = list(range(1, self.num_pages + 1)) if with_ids else None
        self._head = 0

    @property
    def available(self) -> int:
        """Free tokens, in whole pages."""
        return self.num_free_pages * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens`."""
        return -(-num_tokens // self.page_size)

    def take(self, num_pages: int) -> list[int]:
        """Page ids (an empty list when only counting). Raises `LabError` where the real server stops with "Out of memory"."""
        if num_pages > self.num_free_pages:
            raise LabError(
                f"SGLang's pool is out of memory: {num_pages * self.page_size} tokens needed, {self.available} free; "
                "the real server stops with an error here"
            )
        self.num_free_pages -= num_pages
        if self._free is None:
            return []
        pages = self._free[self._head : self._head + num_pages]
        self._head += num_pages
        if self._head > 4096 and self._head * 2 > len(self._free):
            del self._free[: self._head]
            self._head = 0
        return pages

    def give(self, num_pages: int, pages: Sequence[int]) -> None:
        """`num_pages` are free again; `pages` are their ids where ids are kept."""
        self.num_free_pages += num_pages
        if self._free is None:
            return
        require(
            len(pages) == num_pages, "freed pages are the counted ones", pages=len(pages), counted=num_pages
        )
        if self.page_size == 1:
            self._free.extend(pages)
        else:
            self._free[self._head : self._head] = pages

    def free_ids(self) -> list[int] | None:
        return None if self._free is None else self._free[self._head :]
