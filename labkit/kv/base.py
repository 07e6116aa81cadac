"""The contract of every KV cache: who owns which token slots, before a single byte is written.

A manager decides where the keys and values of a request live; kernels read and write there. Sizes are counted in
tokens and blocks; `bytes_per_token` (all layers, keys and values together) turns them into bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from labkit.errors import LabError
from labkit.memory.base import Span


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `num_tokens` token slots from `src_slot` to `dst_slot` before the step runs (growth, compaction, copy-on-write)."""

    src_slot: int
    dst_slot: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Admission:
    """Answer to `admit`. When refused, `reason` is one sentence and nothing has changed; `can_ever_fit` is False for a
    request that no state of this cache could hold."""

    admitted: bool
    reason: str = ""
    num_needed_blocks: int = 0
    num_free_blocks: int = 0
    num_hit_tokens: int = 0
    can_ever_fit: bool = True


@dataclass(frozen=True, slots=True)
class KVStats:
    """Bytes at one instant. `token_bytes` holds computed tokens; `reserved_bytes` is kept by live requests,
    `cached_bytes` by nobody but still findable. `token + internal waste + ... = reserved`."""

    capacity_bytes: int
    reserved_bytes: int
    token_bytes: int
    cached_bytes: int
    free_bytes: int
    largest_free_bytes: int
    num_requests: int
    num_moved_bytes: int = 0


class NoSpace(LabError):
    """`append` found no room: the scheduler must preempt, wait or refuse."""


@dataclass(slots=True)
class Grown:
    """Result of a successful `append`: the moves that must be executed before the new slots are written."""

    moves: list[Move] = field(default_factory=list)


class KVCacheManager(ABC):
    """Places the KV of requests. Methods succeed or change nothing."""

    name: str
    bytes_per_token: int

    @abstractmethod
    def admit(
        self, request_id: str, num_tokens: int, *, max_tokens: int, token_ids: Sequence[int] | None = None
    ) -> Admission:
        """Place a new request whose first `num_tokens` will be computed; it may grow to `max_tokens`."""

    @abstractmethod
    def append(self, request_id: str, num_tokens: int) -> Grown:
        """Make room for `num_tokens` more. Raises `NoSpace`."""

    @abstractmethod
    def fork(self, parent_id: str, child_id: str) -> Grown:
        """Give `child_id` the same tokens as `parent_id` (shared where the cache can share, copied where not)."""

    @abstractmethod
    def free(self, request_id: str) -> None:
        """The request is gone. Raises `LabError` for an unknown id."""

    @abstractmethod
    def slot_mapping(self, request_id: str, start: int, stop: int) -> Sequence[int]:
        """Token slots of positions `[start, stop)`: what the KV-write kernel gets."""

    @abstractmethod
    def stats(self) -> KVStats: ...

    @abstractmethod
    def layout(self) -> list[Span]:
        """The pool in address order, in bytes."""

    @abstractmethod
    def check_integrity(self) -> None: ...
