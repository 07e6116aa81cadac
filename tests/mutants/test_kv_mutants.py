"""Planted bugs in the KV managers, each of which the suite must catch: by the conservation laws (`labkit.kv.mutants`), or
by the property test's model of what the memory holds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from labkit.kv.base import Grown
from labkit.kv.block_pool import BlockPool
from labkit.kv.grow import GrowCompactKVCache, GrowKVCache
from labkit.kv.mutants import MUTANTS, run_mutants, run_stream
from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix_hash import HashPrefixCache
from labkit.kv.prefix_radix import RadixPrefixCache
from labkit.kv.virtual import VirtualContiguousKVCache

_path = Path(__file__).parents[1] / "property" / "test_kv_managers.py"
_spec = importlib.util.spec_from_file_location("kv_managers_property", _path)
assert _spec is not None
assert _spec.loader is not None
PROPERTY = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(PROPERTY)


# --- scenario "reference-count-mutants" ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_each_reference_count_bug_is_named_by_a_law(seed):
    for report in run_mutants(seed)[:-1]:
        assert report.caught, report
        assert report.law


@pytest.mark.parametrize("seed", range(3))
def test_the_cache_that_fills_up_is_acquitted(seed):
    report = run_stream("cache fills up", seed, 2_000)
    assert not report.caught
    assert report.num_operations == 2_000
    assert report.num_free < report.num_blocks, "the naive check free = total would call this a leak"
    assert report.num_pinned == 0
    assert report.num_free + report.num_evictable == report.num_blocks


@pytest.mark.parametrize("prefix", [HashPrefixCache, RadixPrefixCache])
def test_the_same_stream_without_a_bug_breaks_no_law(prefix, monkeypatch):
    """The control of the six: their caches, unbroken."""
    monkeypatch.setitem(MUTANTS, "none", lambda: (BlockPool, prefix(2)))
    assert not run_stream("none", 0, 500).caught


# --- bugs that the property test finds -------------------------------------------------------------------------------


def cow_skipped(monkeypatch):
    original = PagedKVCache.append

    def append(self, request_id, num_tokens=1, token_ids=()):
        table = self._table(request_id)
        shared = table.blocks[-1]
        count, self.pool.refs[shared] = self.pool.refs[shared], 1
        try:
            return original(self, request_id, num_tokens, token_ids)
        finally:
            self.pool.refs[shared] = count

    monkeypatch.setattr(PagedKVCache, "append", append)


def cow_copies_nothing(monkeypatch):
    original = PagedKVCache.append
    monkeypatch.setattr(PagedKVCache, "append", lambda *a, **k: original(*a, **k) and Grown())


def fork_counts_nothing(monkeypatch):
    original = PagedKVCache.fork

    def fork(self, parent_id, child_id):
        before = list(self.pool.refs)
        grown = original(self, parent_id, child_id)
        self.pool.refs[:] = before
        return grown

    monkeypatch.setattr(PagedKVCache, "fork", fork)


def hash_without_parent(monkeypatch):
    monkeypatch.setattr(HashPrefixCache, "extend_key", lambda self, keys, page: keys.append(hash(page)))


def window_recycles_one_block_too_many(monkeypatch):
    original = PagedKVCache._recycle

    def recycle(self, table):
        self.window -= self.block_size
        try:
            original(self, table)
        finally:
            self.window += self.block_size

    monkeypatch.setattr(PagedKVCache, "_recycle", recycle)


def evicts_what_is_held(monkeypatch):
    original = HashPrefixCache.acquire

    def acquire(self, block):
        entry = self._entry_of[block]
        original(self, block)
        self._queue.add(entry)

    monkeypatch.setattr(HashPrefixCache, "acquire", acquire)


def radix_inserts_without_looking_at_forks(monkeypatch):
    original = RadixPrefixCache._insert

    def insert(self, parent, pages, blocks, priority, expires_s):
        refs, self.refs = self.refs, [1] * len(self.refs)
        try:
            original(self, parent, pages, blocks, priority, expires_s)
        finally:
            self.refs = refs

    monkeypatch.setattr(RadixPrefixCache, "_insert", insert)


def inside_hit_one_token_too_long(monkeypatch):
    original = RadixPrefixCache.match_inside

    def match_inside(self, hits, rest):
        block, num_tokens = original(self, hits, rest)
        return block, num_tokens + (0 < num_tokens < len(rest))

    monkeypatch.setattr(RadixPrefixCache, "match_inside", match_inside)


def compaction_loses_a_move(monkeypatch):
    original = GrowCompactKVCache.compact
    monkeypatch.setattr(GrowCompactKVCache, "compact", lambda self: original(self)[:-1])


def growth_copies_one_token_too_few(monkeypatch):
    original = GrowKVCache._lengthen

    def lengthen(self, request_id, run, num_tokens):
        grown = original(self, request_id, run, num_tokens)
        return Grown([type(m)(m.src_slot, m.dst_slot, m.num_tokens - 1) for m in grown.moves])

    monkeypatch.setattr(GrowKVCache, "_lengthen", lengthen)


def ranges_overlap(monkeypatch):
    original = VirtualContiguousKVCache.base_slot
    monkeypatch.setattr(
        VirtualContiguousKVCache,
        "base_slot",
        lambda self, r: original(self, r) // self.num_slots * self.num_slots,
    )


BUGS = {
    cow_skipped: "paged 4",
    cow_copies_nothing: "paged 4",
    fork_counts_nothing: "paged 4",
    hash_without_parent: "paged hash",
    window_recycles_one_block_too_many: "paged 8 window",
    evicts_what_is_held: "paged hash",
    radix_inserts_without_looking_at_forks: "paged radix 1",
    inside_hit_one_token_too_long: "paged radix partial",
    compaction_loses_a_move: "grow-compact",
    growth_copies_one_token_too_few: "grow",
    ranges_overlap: "virtual-contiguous",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_property_test_catches(bug, monkeypatch):
    """The first failure ends the search, so many examples cost nothing. They are needed: Hypothesis also draws constants it finds in
    the modules loaded so far, so its examples differ with what ran before, and the rarest of these bugs shows in 1 of 60."""
    bug(monkeypatch)
    with pytest.raises(Exception) as caught:  # noqa: PT011  (a law, a refused release, or a wrong read)
        PROPERTY.run_machine(BUGS[bug], examples=1000, steps=50, shrink=False)
    assert caught.type.__name__ in (
        "AssertionError",
        "IntegrityError",
        "LabError",
        "ExceptionGroup",
        "FlakyFailure",
    )
