"""Six reference-count bugs that real prefix caches had, planted one at a time, and one leak that is none.

Each runs under a random stream of admissions, appends, forks and frees; after every operation the books are checked:
`free + evictable + pinned = total`, every count equals the tables that name the block, no table names a block twice.
`run_mutants` says which law named the bug, and when. Sources: public reports in xllm, mini-sglang and others
(scenario "reference-count-mutants").

The false leak: after all requests have ended the free list is still short. A check of `free = total` calls that a leak;
the law acquits it, because nothing is pinned and what is missing is evictable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from random import Random

from labkit.errors import IntegrityError, LabError
from labkit.kv.base import NoSpace
from labkit.kv.block_pool import BlockPool
from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix_hash import HashPrefixCache
from labkit.kv.prefix_radix import Node, RadixPrefixCache


@dataclass(frozen=True)
class MutantReport:
    """`law` is the sentence of the check that broke, "" when none did within the stream."""

    name: str
    caught: bool
    law: str
    num_operations: int
    num_free: int
    num_evictable: int
    num_pinned: int
    num_blocks: int


def run_mutants(seed: int = 0, num_operations: int = 2_000) -> list[MutantReport]:
    """One report for each planted bug, then one for the false leak ("cache fills up", to be acquitted)."""
    reports = [run_stream(name, seed, num_operations) for name in MUTANTS]
    return [*reports, run_stream("cache fills up", seed, num_operations)]


def run_stream(name: str, seed: int, num_operations: int) -> MutantReport:
    """Random operations on a cache with bug `name` (or "cache fills up", which has none) until a law breaks."""
    kv = _build(name)
    rng, live, number, done = Random(seed), list[str](), 0, 0
    law = ""
    try:
        for done in range(1, num_operations + 1):  # noqa: B007
            number += 1
            _operate(kv, rng, live, f"r{number}")
            kv.check_integrity()
        for request_id in live:
            kv.free(request_id)
            kv.check_integrity()
    except (IntegrityError, LabError) as error:
        law = str(error)
    pool = kv.pool
    pinned = sum(1 for count in pool.refs if count)
    return MutantReport(
        name, bool(law), law, done, pool.num_free, pool.num_evictable, pinned, pool.num_blocks
    )


def _operate(kv: PagedKVCache, rng: Random, live: list[str], request_id: str) -> None:
    """One random operation. Two token values, so that prompts, and pages inside one prompt, repeat."""
    dice = rng.random()
    if dice < 0.45 or not live:
        token_ids = [rng.randrange(2) for _ in range(rng.randint(1, 24))]
        if kv.admit(request_id, len(token_ids), max_tokens=40, token_ids=token_ids).admitted:
            live.append(request_id)
    elif dice < 0.7:
        try:
            kv.append(rng.choice(live), 1, [rng.randrange(2)])
        except NoSpace:
            kv.free(live.pop(0))
    elif dice < 0.8:
        kv.fork(rng.choice(live), request_id)
        live.append(request_id)
    else:
        kv.free(live.pop(rng.randrange(len(live))))


def _build(name: str) -> PagedKVCache:
    if name == "cache fills up":
        return PagedKVCache(64, 1, block_size=2, prefix=HashPrefixCache(2))
    pool_class, prefix = MUTANTS[name]()
    kv = PagedKVCache(64, 1, block_size=2, prefix=prefix)
    kv.pool = pool_class(64, prefix)
    return kv


# --- the six --------------------------------------------------------------------------------------------------------


class _ReleasedTooEarly(BlockPool):
    """Cache before release: a block that the prefix cache has just taken over also goes to the free list."""

    def release(self, blocks: Sequence[int]) -> int:
        cached = [b for b in blocks if self.refs[b] == 1 and self.prefix is not None and self.prefix.holds(b)]
        num_idle = super().release(blocks)
        self._free.extend(cached)
        return num_idle


class _LockSkipsTheNode(BlockPool):
    """The lock walks up from the matched node and forgets the node itself: its last block is not counted."""

    def acquire(self, blocks) -> int:  # type: ignore[no-untyped-def]
        blocks = list(blocks)
        return super().acquire(blocks[:-1])


class _DoubleCount(BlockPool):
    """A hit is counted once when it is looked up and once more when it is placed."""

    def acquire(self, blocks) -> int:  # type: ignore[no-untyped-def]
        blocks = list(blocks)
        num_idle = super().acquire(blocks)
        for block in blocks:
            self.refs[block] += 1
        return num_idle


class _FreeAtCountOne(BlockPool):
    """`if count <= 1: free` where it should be `== 0`: a block that one table still names is handed out again."""

    def release(self, blocks: Sequence[int]) -> int:
        num_idle = super().release(blocks)
        self._free.extend(b for b in blocks if self.refs[b] == 1)
        return num_idle


class _LostOnSplit(RadixPrefixCache):
    """Splitting a node keeps the upper half and loses sight of the lower."""

    def _split(self, node: Node, index: int) -> Node:
        upper = super()._split(node, index)
        upper.children.clear()
        return upper


class _NoParentInHash(HashPrefixCache):
    """The key of a block is the hash of its own tokens only: equal pages anywhere look equal."""

    def extend_key(self, keys: list[Hashable], page: Hashable) -> None:
        keys.append(hash(page))


MUTANTS: dict[str, Callable[[], tuple[type[BlockPool], HashPrefixCache | RadixPrefixCache]]] = {
    "cache before release": lambda: (_ReleasedTooEarly, HashPrefixCache(2)),
    "lock skips the node": lambda: (_LockSkipsTheNode, RadixPrefixCache(2)),
    "double count": lambda: (_DoubleCount, HashPrefixCache(2)),
    "lost on split": lambda: (BlockPool, _LostOnSplit(2)),
    "free at count one": lambda: (_FreeAtCountOne, HashPrefixCache(2)),
    "no parent in the hash": lambda: (BlockPool, _NoParentInHash(2)),
}
