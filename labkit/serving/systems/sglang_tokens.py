"""Token contents as `int64` arrays, so that comparing, slicing and hashing a thousand tokens costs about as much as one.

A load may give token ids, hashes of shared blocks, or only lengths. The last two get stand-in ids: equal content, equal
ids; private content, ids that nobody else has. Three ranges keep them apart from each other and from real ids:

    [0, 2**40)         real token ids
    [2**40, 2**60)     private content, handed out consecutively
    [2**60, 2**63)     blocks known by hash, one range of `prefix_block_size` for each distinct hash
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labkit.errors import InputError
from labkit.workload.base import RequestSpec

Tokens = NDArray[np.int64]

_PRIVATE = 1 << 40
_HASHED = 1 << 60


class TokenSource:
    """Turns what a load says about content into token ids."""

    def __init__(self) -> None:
        self._next_private = _PRIVATE
        self._next_hashed = _HASHED
        self._blocks: dict[tuple[int, int], int] = {}

    def private(self, num_tokens: int) -> Tokens:
        """`[num_tokens]` ids that occur nowhere else."""
        first = self.reserve(num_tokens)
        return np.arange(first, first + num_tokens, dtype=np.int64)

    def reserve(self, num_tokens: int) -> int:
        """First of `num_tokens` private ids, without building them (a request's outputs to come)."""
        first = self._next_private
        self._next_private = first + num_tokens
        return first

    def prompt(self, spec: RequestSpec) -> Tokens:
        """`[num_prompt_tokens]`. Raises `InputError` when given ids do not match the stated length."""
        if spec.prompt_token_ids is not None:
            tokens = np.asarray(spec.prompt_token_ids, dtype=np.int64)
            if len(tokens) != spec.num_prompt_tokens:
                problem = (
                    f"has {len(tokens)} prompt token ids, but states {spec.num_prompt_tokens} prompt tokens"
                )
                raise InputError(f"request {spec.request_id!r}", problem)
            return tokens
        if not spec.prefix_hashes:
            return self.private(spec.num_prompt_tokens)
        size = spec.prefix_block_size
        first = np.fromiter(
            (self._block(h, size) for h in spec.prefix_hashes), np.int64, len(spec.prefix_hashes)
        )
        shared = (first[:, None] + np.arange(size)).ravel()[: spec.num_prompt_tokens]
        return np.concatenate((shared, self.private(spec.num_prompt_tokens - len(shared))))

    def _block(self, block_hash: int, size: int) -> int:
        first = self._blocks.setdefault((block_hash, size), self._next_hashed)
        if first == self._next_hashed:
            self._next_hashed += size
        return first


def common_prefix(left: Tokens, right: Tokens) -> int:
    """Number of leading tokens that are equal."""
    n = min(len(left), len(right))
    if n == 0 or left[0] != right[0]:
        return 0
    differs = left[:n] != right[:n]
    first = int(differs.argmax())
    return first if differs[first] else n
