"""Lives of blocks: when each was taken, left, found again, evicted. Watches a paged cache's pool from outside.

    take        handed out, count 1                         begins a life
    idle        the last table that named it is gone, and the prefix cache still finds it
    hit         an idle block is found and named again      ends an idle time: the reuse gap
    evict       an idle block is taken from the cache       ends an idle time and the life
    free        the last table is gone and nobody can find it: ends the life

Calls inside a step are noted and stamped when the step is over: what the decision did with the step's start, what
finished requests gave back with its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from labkit.kv.base import Admission, Grown, NoSpace
from labkit.kv.block_pool import BlockPool
from labkit.kv.paged import PagedKVCache

Kind = Literal["take", "idle", "hit", "evict", "free"]


class BlockWatch:
    """Attach before or during a run; `detach` gives the cache its own methods back.

    `lifetimes_s`, `idle_before_evict_s`, `reuse_gaps_s`, `reclaim_delays_s` are lists of arrays in seconds;
    `ref_seconds[c]` is block-seconds spent at reference count c.
    """

    def __init__(self, kv: PagedKVCache, now_s: float = 0.0):
        self.kv, self.pool = kv, kv.pool
        num_blocks = self.pool.num_blocks
        self.born = np.full(num_blocks, now_s)
        self.idle_since = np.full(num_blocks, now_s)
        self.left = np.full(num_blocks, np.nan)  # first of several holders gone
        self.lifetimes_s: list[np.ndarray] = []
        self.idle_before_evict_s: list[np.ndarray] = []
        self.evicted_lifetimes_s: list[np.ndarray] = []
        self.reuse_gaps_s: list[np.ndarray] = []
        self.reclaim_delays_s: list[np.ndarray] = []
        self.num_failed = self.num_evicted = self.num_hits = 0
        self.counts = np.bincount(self.pool.refs, minlength=2).tolist()
        self.ref_seconds: list[float] = []
        self._settled, self._lasted_s = self.counts.copy(), 0.0
        self._events: list[tuple[Kind | Literal["left"], list[int]]] = []
        self._release_marks: list[int] = []
        self._attach()

    @staticmethod
    def of(scheduler: Any, now_s: float) -> BlockWatch | None:
        """A watch on the scheduler's cache where it is a paged one of the lab, else None."""
        kv = getattr(scheduler, "kv", None)
        if isinstance(kv, PagedKVCache) and isinstance(kv.pool, BlockPool):
            return BlockWatch(kv, now_s)
        return None

    # -- noted during a step ----------------------------------------------------------------------------------

    def _attach(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []
        self._wrap(self.pool, "take", self._take)
        self._wrap(self.pool, "acquire", self._acquire)
        self._wrap(self.pool, "release", self._release)
        self._wrap(self.kv, "append", self._append)
        self._wrap(self.kv, "admit", self._admit)
        if self.pool.prefix is not None:
            self._wrap(self.pool.prefix, "evict", self._evict)

    def _wrap(self, owner: Any, name: str, method: Any) -> None:
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, method)
        setattr(self, f"_real_{name}", self._originals[-1][2])

    def detach(self) -> None:
        """Stop watching. What was seen stays."""
        for owner, name, _ in self._originals:
            delattr(owner, name)
        self._originals = []

    def _note(self, kind: Any, blocks: list[int]) -> None:
        if blocks:
            if kind == "take" and self._events and self._events[-1][0] == "take":
                self._events[-1][1].extend(blocks)
            else:
                self._events.append((kind, blocks))

    def _take(self, num_blocks: int) -> list[int]:
        blocks = self._real_take(num_blocks)  # type: ignore[attr-defined]
        self._note("take", blocks.copy())
        self._moved(0, 1, len(blocks))
        return blocks

    def _evict(self, num_blocks: int) -> list[int]:
        blocks = self._real_evict(num_blocks)  # type: ignore[attr-defined]
        self._note("evict", list(blocks))
        self.num_evicted += len(blocks)
        return blocks

    def _acquire(self, blocks: Sequence[int]) -> int:
        blocks = list(blocks)
        refs = self.pool.refs
        idle = [b for b in blocks if refs[b] == 0]
        num_idle = self._real_acquire(blocks)  # type: ignore[attr-defined]
        for block in blocks:
            self._moved(refs[block] - 1, refs[block], 1)
        self._note("hit", idle)
        self.num_hits += len(blocks)
        return num_idle

    def _release(self, blocks: Sequence[int]) -> int:
        num_idle = self._real_release(blocks)  # type: ignore[attr-defined]
        self._release_marks.append(len(self._events))
        prefix = self.pool.prefix
        if num_idle == len(blocks):
            self._moved(1, 0, num_idle)
            gone = list(blocks)
        else:
            refs = self.pool.refs
            gone = []
            for block in blocks:
                self._moved(refs[block] + 1, refs[block], 1)
                if refs[block] == 0:
                    gone.append(block)
            self._note("left", [b for b in blocks if refs[b]])
        if prefix is None:
            self._note("free", gone)
        else:
            self._note("idle", [b for b in gone if prefix.holds(b)])
            self._note("free", [b for b in gone if not prefix.holds(b)])
        return num_idle

    def _append(self, *args: Any, **kwargs: Any) -> Grown:
        try:
            return self._real_append(*args, **kwargs)  # type: ignore[attr-defined]
        except NoSpace:
            self.num_failed += 1
            raise

    def _admit(self, *args: Any, **kwargs: Any) -> Admission:
        answer = self._real_admit(*args, **kwargs)  # type: ignore[attr-defined]
        self.num_failed += not answer.admitted
        return answer

    def _moved(self, old: int, new: int, num: int) -> None:
        counts = self.counts
        while len(counts) <= new:
            counts.append(0)
        counts[old] -= num
        counts[new] += num

    # -- stamped when it is over --------------------------------------------------------------------------------

    def on_step(self, num_finished: int, start_s: float, end_s: float) -> None:
        """The step that ran from `start_s` to `end_s` ended; its last `num_finished` releases came after it."""
        if self._events:
            marks = self._release_marks
            first_late = marks[-num_finished] if 0 < num_finished <= len(marks) else len(self._events)
            for i, (kind, blocks) in enumerate(self._events):
                now_s = end_s if i >= first_late else start_s
                if kind == "take" and len(blocks) < 8:  # a loop is faster than an array of a few
                    for block in blocks:
                        self.born[block] = now_s
                else:
                    self._stamp(kind, np.array(blocks), now_s)
            self._events = []
        if self._release_marks:
            self._release_marks = []
        self._lasted_s += end_s - start_s
        if self.counts != self._settled:
            self._settle()

    def _settle(self) -> None:
        """Add the time since the counts last changed."""
        self.ref_seconds += [0.0] * (len(self.counts) - len(self.ref_seconds))
        for i, count in enumerate(self._settled):
            self.ref_seconds[i] += count * self._lasted_s
        self._settled, self._lasted_s = self.counts.copy(), 0.0

    def _stamp(self, kind: str, blocks: np.ndarray, now_s: float) -> None:
        if kind == "take":
            self.born[blocks] = now_s
        elif kind == "left":
            first = blocks[np.isnan(self.left[blocks])]
            self.left[first] = now_s
        elif kind == "idle":
            self.idle_since[blocks] = now_s
            self._reclaimed(blocks, now_s)
        elif kind == "hit":
            self.reuse_gaps_s.append(now_s - self.idle_since[blocks])
        elif kind == "evict":
            self.idle_before_evict_s.append(now_s - self.idle_since[blocks])
            self.evicted_lifetimes_s.append(now_s - self.born[blocks])
            self.lifetimes_s.append(self.evicted_lifetimes_s[-1])
        else:
            self.lifetimes_s.append(now_s - self.born[blocks])
            self._reclaimed(blocks, now_s)

    def _reclaimed(self, blocks: np.ndarray, now_s: float) -> None:
        """From the first holder that left to the last: what sharing adds to the way back."""
        left = self.left[blocks]
        self.reclaim_delays_s.append(np.where(np.isnan(left), 0.0, now_s - left))
        self.left[blocks] = np.nan

    # -- asked afterwards ---------------------------------------------------------------------------------------

    def reference_counts(self) -> dict[int, float]:
        """Share of the block-seconds at each reference count; count 0 is free or cached."""
        self._settle()
        total = sum(self.ref_seconds)
        return {c: s / total for c, s in enumerate(self.ref_seconds) if s} if total else {}


def pooled(parts: list[np.ndarray]) -> np.ndarray:
    """One array from many."""
    return np.concatenate(parts) if parts else np.zeros(0)


def histogram(seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`(edges_s, counts)` on edges 1 ms, 2, 5, 10, ... 10,000 s; the first and the last bin are open."""
    edges = np.array([m * 10.0**e for e in range(-3, 4) for m in (1, 2, 5)] + [10.0**4])
    inner = np.clip(seconds, edges[0], np.nextafter(edges[-1], 0))
    return edges, np.histogram(inner, edges)[0]
