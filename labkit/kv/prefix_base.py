"""The contract of a prefix cache: which full blocks are findable by their content.

A prefix cache never owns a block. The pool counts who holds it; the prefix cache says whether an idle block may still
be found (evictable) and which idle block goes first when room is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import ClassVar


class PrefixCache(ABC):
    """Keys are one for each full block of a request, in order. `Key` stands for the block *and* all before it in a hash
    chain, and for the block's own tokens in a tree: `extend_keys` makes the right kind."""

    name: str
    #: False: blocks are findable as soon as they are placed, in the very step that computes them (vLLM);
    #: True: only when a later call shows that they were computed (SGLang, TensorRT-LLM)
    publishes_when_computed: bool
    #: True: outputs become findable only when the request ends (SGLang)
    publishes_outputs_at_end: ClassVar[bool] = False

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.now_s = 0.0
        #: cached blocks that no table names
        self.num_evictable = 0
        self.num_evicted = 0
        self.refs: list[int] = []
        #: the beginning of a block can be hit too: `match_inside` and `publish_tail` are there
        self.partial_hits = False

    def attach(self, refs: list[int]) -> None:
        """The pool's reference counts, read only."""
        self.refs = refs

    def extend_keys(self, keys: list[Hashable], token_ids: Sequence[int], num_blocks: int) -> None:
        """Append keys of `token_ids`' blocks `[len(keys), num_blocks)`."""
        size = self.block_size
        for i in range(len(keys), num_blocks):
            self.extend_key(keys, tuple(token_ids[i * size : (i + 1) * size]))

    @abstractmethod
    def extend_key(self, keys: list[Hashable], page: Hashable) -> None:
        """Append the key of the block whose own content is `page`."""

    @abstractmethod
    def match(self, keys: Sequence[Hashable], max_blocks: int) -> list[int]:
        """Blocks of the longest cached run from the start, at most `max_blocks`. Changes nothing."""

    @abstractmethod
    def hit(self, blocks: Sequence[int]) -> None:
        """A request was admitted onto these blocks: count the hit. They have been acquired."""

    @abstractmethod
    def publish(
        self,
        keys: Sequence[Hashable],
        blocks: Sequence[int],
        start: int,
        stop: int,
        priority: int,
        ttl_s: float | None,
    ) -> list[tuple[int, int]]:
        """Make `blocks[start:stop]` (full, held by the caller) findable. Returns `[(index, block)]`: entries of the
        caller's table that it should re-point to an equal block that was there first."""

    def withdraw(self, blocks: Sequence[int]) -> None:
        """These blocks (held by the caller) were published and hold nothing after all: make them unfindable. Only
        where publishing comes before computing."""
        raise NotImplementedError(f"{self.name} publishes only what was computed")

    def match_inside(self, hits: Sequence[int], rest: Sequence[int]) -> tuple[int, int]:
        """`(block, num_tokens)`: the cached block after `hits` that begins with most tokens of `rest`; `(-1, 0)` if none
        does."""
        return -1, 0

    def publish_tail(
        self,
        keys: Sequence[Hashable],
        blocks: Sequence[int],
        tokens: tuple[int, ...],
        priority: int,
        ttl_s: float | None,
    ) -> None:
        """Make the last of an ended request's `blocks`, which holds only `tokens`, findable for `match_inside`; `keys`
        are those of the full blocks before it."""
        raise NotImplementedError(f"{self.name} has no partial hits")

    @abstractmethod
    def holds(self, block: int) -> bool: ...

    @abstractmethod
    def acquire(self, block: int) -> None:
        """A cached block's count went from 0 to 1."""

    @abstractmethod
    def release(self, block: int) -> None:
        """A cached block's count went from 1 to 0: it is evictable from now on."""

    @abstractmethod
    def evict(self, num_blocks: int) -> list[int]:
        """Forget at least `num_blocks` evictable blocks (all there are, if fewer) and return them."""

    @abstractmethod
    def check_integrity(self) -> None: ...
