"""The contract of every KV cache: who owns which token slots, before a single byte is written.

A manager decides where the keys and values of a request live; kernels read and write there. Sizes are counted in
tokens and blocks; `bytes_per_token` (all layers, keys and values together) turns them into bytes.

A token slot is an address: `slot = block * block_size + offset`. A contiguous cache has blocks of one token.

One step of a scheduler, in this order:

1. `lookup` (where the cache shares) and `admit` for every request that joins, `append` for every one that goes on;
2. `block_table` or `base_slot` for the step's chunks, after the last `append` of the step, because compaction may move
   any cache and publishing a prefix may re-point a table;
3. the moves of all admissions and appends, in the order in which they were returned;
4. the model writes and reads.

`free` says how much of a request was really computed, where that is less than what was placed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from labkit.errors import LabError
from labkit.memory.base import Span


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `num_tokens` token slots from `src_slot` to `dst_slot` before the step runs (growth, compaction, copy-on-write).

    The ranges of one move may overlap (sliding left): it behaves like `memmove`.
    """

    src_slot: int
    dst_slot: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Admission:
    """Answer to `admit`. When refused, `reason` is one sentence and nothing has changed; `can_ever_fit` is False for a
    request that no state of this cache could hold.

    `num_needed_blocks` excludes blocks that were hit; `num_free_blocks` are those that could be taken (free and
    evictable, less the hit ones) when the question was asked. `moves` is only filled by caches that copy at admission
    (compaction, hits inside a block).
    """

    admitted: bool
    reason: str = ""
    num_needed_blocks: int = 0
    num_free_blocks: int = 0
    num_hit_tokens: int = 0
    can_ever_fit: bool = True
    moves: Sequence[Move] = ()


@dataclass(frozen=True, slots=True)
class KVStats:
    """Bytes at one instant.

    | name | holds |
    | --- | --- |
    | `reserved_bytes` | all that live requests keep |
    | `token_bytes` | the part of it that holds token states; shared slots count once |
    | `cached_bytes` | kept by no live request, still findable, evictable |
    | `free_bytes` | the rest of the capacity: `reserved + cached + free = capacity` |
    | `largest_free_bytes` | what one request could get of `free_bytes`: all of it in blocks, one span where contiguous |

    `reserved_bytes - token_bytes` is internal waste; `num_moved_bytes` counts copies since the start.
    """

    capacity_bytes: int
    reserved_bytes: int
    token_bytes: int
    cached_bytes: int
    free_bytes: int
    largest_free_bytes: int
    num_requests: int
    num_moved_bytes: int = 0


class NoSpace(LabError):
    """`append` or `fork` found no room: the scheduler must preempt, wait or refuse."""


@dataclass(frozen=True, slots=True)
class Grown:
    """Result of a successful `append` or `fork`: the moves that must be executed before the new slots are written."""

    moves: Sequence[Move] = ()


#: the usual answer; one object, because a simulator asks millions of times
NO_MOVES = Grown()


class KVCacheManager(ABC):
    """Places the KV of requests. Methods succeed or change nothing."""

    #: short name in the registry, e.g. "paged"
    name: str
    #: all layers, keys and values together
    bytes_per_token: int
    #: tokens per block; 1 for a contiguous cache
    block_size: int
    #: tokens that the cache can hold
    capacity_tokens: int
    #: slots that exist as addresses; more than `capacity_tokens` only where memory is mapped under them on demand
    num_slots: int
    #: what `set_time` was last told
    now_s: float = 0.0

    @abstractmethod
    def admit(
        self,
        request_id: str,
        num_tokens: int,
        *,
        max_tokens: int,
        token_ids: Sequence[int] | None = None,
        block_keys: Sequence[Hashable] | None = None,
        final_tokens: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
    ) -> Admission:
        """Place a new request: positions `[0, num_tokens)` get slots, prefix hits included.

        max_tokens    prompt and allowed output together: what it may grow to.
        token_ids     all tokens known so far (may be more than `num_tokens`), where a prefix cache is to look them up.
        block_keys    instead of `token_ids`: one key for each full block among all known tokens but the last, where a
                      trace has only those.
        final_tokens  prompt and *real* output together; only the oracle baselines look at it.
        priority, ttl_s  how dear the request's cached blocks are to the "priority" eviction policy.

        Raises `LabError` for an id that is live, or counts that are not positive.
        """

    @abstractmethod
    def append(self, request_id: str, num_tokens: int = 1, token_ids: Sequence[int] = ()) -> Grown:
        """Make room for `num_tokens` more; everything placed before counts as computed. `token_ids` continue the known
        tokens (needed only where outputs are to be found by a prefix cache). Raises `NoSpace`."""

    @abstractmethod
    def fork(self, parent_id: str, child_id: str) -> Grown:
        """Give `child_id` the same tokens as `parent_id` (shared where the cache can share, copied where not).
        What the parent knows beyond its placed tokens the child does not: tell it with `append`. Raises `NoSpace`."""

    @abstractmethod
    def free(self, request_id: str, *, num_computed_tokens: int | None = None) -> None:
        """The request is gone. What was placed beyond `num_computed_tokens` holds nothing and must not be found later
        (None: everything placed was computed). Raises `LabError` for an unknown id."""

    @abstractmethod
    def num_tokens(self, request_id: str) -> int:
        """Positions that have slots."""

    @abstractmethod
    def slot_mapping(self, request_id: str, start: int, stop: int) -> Sequence[int]:
        """Token slots of positions `[start, stop)`: what the KV-write kernel gets."""

    @abstractmethod
    def stats(self) -> KVStats: ...

    @abstractmethod
    def layout(self) -> list[Span]:
        """The pool in address order, in bytes. `lifetime` is "private", "shared" or "cached"; `tag` names the owner."""

    @abstractmethod
    def check_integrity(self) -> None: ...

    # What follows has a meaning for every cache; the defaults are those of a cache without blocks and without sharing.

    def lookup(
        self, token_ids: Sequence[int] | None = None, block_keys: Sequence[Hashable] | None = None
    ) -> int:
        """Tokens that an `admit` now would find cached (at most all but the last). Changes nothing."""
        return 0

    def most_blocks(self, num_tokens: int, max_tokens: int) -> int:
        """Blocks that a request of `num_tokens` now can hold at once, at worst, while it grows to `max_tokens`. `admit`
        refuses one that could outgrow the whole cache."""
        return -(-max(num_tokens, max_tokens) // self.block_size)

    def num_idle_hits(
        self, token_ids: Sequence[int] | None = None, block_keys: Sequence[Hashable] | None = None
    ) -> int:
        """Blocks of a `lookup` that nobody holds. They count as evictable, and yet an `admit` that hits them cannot have
        them evicted for its other blocks. Changes nothing."""
        return 0

    @abstractmethod
    def room(self, request_id: str) -> int:
        """Tokens that `append` places without asking the pool: no new block, no move, no failure. A scheduler may let
        a request write that many and append them later in one call, but before it forks or frees the request."""

    def block_table(self, request_id: str) -> Sequence[int]:
        """Block ids by position; empty for a contiguous cache. A live view: copy it to keep it. Entries below
        `first_live_block` were recycled by a sliding window and must not be read."""
        return ()

    def first_live_block(self, request_id: str) -> int:
        return 0

    def base_slot(self, request_id: str) -> int | None:
        """First slot of a contiguous cache; None for a paged one."""
        return None

    def set_time(self, now_s: float) -> None:
        """Tell caches that expire things what time it is."""
        self.now_s = now_s

    @property
    def num_total_blocks(self) -> int:
        return self.capacity_tokens // self.block_size

    @property
    @abstractmethod
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds and nothing is cached in."""

    @property
    def num_evictable_blocks(self) -> int:
        """Blocks that nobody holds and whose content can still be found; taken when the free ones are used up. Pinned
        are `num_total_blocks - num_free_blocks - num_evictable_blocks`."""
        return 0


def positive(value: int, what: str) -> int:
    """`value`, or a `LabError` that names it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LabError(f"{what} must be a positive integer, not {value!r}")
    return value
