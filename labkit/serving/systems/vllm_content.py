"""What a full block contains, as one integer: equal integers, equal tokens from position 0 to the end of the block.

vLLM hashes (parent hash, the block's tokens) with sha256 (`core/kv_cache_utils.py`, `hash_block_tokens`). Numbering the
pairs as they are seen says the same, without collisions and without hashing. Keys are positive; 0 means "no content".
"""

from __future__ import annotations

from collections.abc import Hashable, MutableSequence, Sequence
from typing import Protocol

from labkit.workload.base import RequestSpec


class HasContent(Protocol):
    """A request whose blocks can be named. `tokens` is None where a load tells lengths or hashes only."""

    spec: RequestSpec
    end: int
    tokens: list[int] | None
    keys: Sequence[int] | MutableSequence[int]
    private: bool


class Contents:
    """Numbers of (parent, tokens) pairs, in the order in which they are first seen."""

    def __init__(self, block_size: int):
        self.block_size = block_size
        self._numbers: dict[tuple[int, Hashable], int] = {}
        self._next = 1

    def open(self, r: HasContent, keep_private: bool) -> None:
        """Give `r` its keys, as far as they can be known now. A load that has only lengths shares nothing: all keys of
        such a request are a `range` that costs no memory, and `keep_private` says not to publish them (see `BlockPool`)."""
        spec, num_blocks = r.spec, r.end // self.block_size
        if spec.prompt_token_ids is not None:
            r.tokens = list(spec.prompt_token_ids)
            r.keys = []
        elif spec.prefix_hashes:
            r.keys = self._of_hashes(spec)
            r.keys.extend(self._unique(num_blocks - len(r.keys)))
        else:
            r.keys = self._unique(num_blocks)
            r.private = keep_private

    def extend(self, r: HasContent, num_blocks: int) -> None:
        """Number the blocks of `r.tokens` up to `num_blocks`. Blocks past the tokens that an executor has returned are
        taken as unlike any other."""
        keys, tokens, size = r.keys, r.tokens, self.block_size
        if tokens is None or not isinstance(keys, list):
            return
        for i in range(len(keys), num_blocks):
            if (i + 1) * size <= len(tokens):
                keys.append(self._number(keys[i - 1] if i else 0, tuple(tokens[i * size : (i + 1) * size])))
            else:
                keys.extend(self._unique(1))

    def _of_hashes(self, spec: RequestSpec) -> list[int]:
        """A trace's own blocks of `prefix_block_size` tokens, cut or joined to blocks of ours: a block of ours is named by
        the trace's blocks that it touches and by where it starts in the first of them."""
        hashes, theirs, ours = spec.prefix_hashes or (), spec.prefix_block_size, self.block_size
        covered = min(spec.num_prompt_tokens, len(hashes) * theirs)
        keys: list[int] = []
        for start in range(0, covered - ours + 1, ours):
            touched = tuple(hashes[start // theirs : (start + ours - 1) // theirs + 1])
            keys.append(self._number(keys[-1] if keys else 0, (touched, start % theirs)))
        return keys

    def _number(self, parent: int, content: Hashable) -> int:
        number = self._numbers.setdefault((parent, content), self._next)
        self._next += number == self._next
        return number

    def _unique(self, count: int) -> range:
        count = max(count, 0)
        first, self._next = self._next, self._next + count
        return range(first, first + count)
