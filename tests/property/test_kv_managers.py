"""Every KV manager through admit, append, fork and free in random order (Hypothesis, stateful), with its own
`check_integrity` after every step and with a model of the memory's *content*: what a request wrote must be what it reads.

A slot holds a digest of all tokens up to its position, so that a block found under a wrong key, a write into a shared
block, a lost move or a block handed out twice shows as a wrong digest in the very next step.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from labkit.kv import KVCacheManager, NoSpace, make_kv_cache

CAPACITY = 192
CASES = {
    "reserve-max": ("reserve-max", {}),
    "reserve-pow2": ("reserve-pow2", {}),
    "reserve-oracle": ("reserve-oracle", {"allocator": "best-fit"}),
    "reserve-oracle on buddy": ("reserve-oracle", {"allocator": "buddy"}),
    "reserve-pow2 on slabs": ("reserve-pow2", {"allocator": "size-class"}),
    "grow": ("grow", {"grow_tokens": 4}),
    "grow doubling": ("grow", {"grow_tokens": 2, "growth": 2.0, "allocator": "next-fit"}),
    "grow-compact": ("grow-compact", {"grow_tokens": 3}),
    "virtual-contiguous": ("virtual-contiguous", {"granule_bytes": 60, "num_ranges": 1, "max_model_len": 96}),
    "paged 1": ("paged", {"block_size": 1}),
    "paged 4": ("paged", {"block_size": 4, "free_order": "fifo"}),
    "paged 8 window": ("paged", {"block_size": 8, "window": 11}),
    "paged hash": ("paged", {"block_size": 4, "prefix": "hash"}),
    "paged hash window": ("paged", {"block_size": 4, "prefix": "hash", "window": 13}),
    "paged hash computed fifo": (
        "paged",
        {"block_size": 2, "prefix": "hash", "prefix_options": {"publish": "computed", "eviction": "fifo"}},
    ),
    "paged hash sha256 priority": (
        "paged",
        {"block_size": 4, "prefix": "hash", "prefix_options": {"digest": "sha256", "eviction": "priority"}},
    ),
    "paged radix 1": ("paged", {"block_size": 1, "prefix": "radix"}),
    "paged radix lfu": ("paged", {"block_size": 4, "prefix": "radix", "prefix_options": {"eviction": "lfu"}}),
    "paged radix partial": (
        "paged",
        {
            "block_size": 4,
            "prefix": "radix",
            "prefix_options": {"partial_hits": True, "eviction": "priority"},
        },
    ),
}


def digests(token_ids: list[int]) -> list[int]:
    rows, digest = [], 0
    for token in token_ids:
        digest = hash((digest, token))
        rows.append(digest)
    return rows


def slot_of(kv: KVCacheManager, request_id: str, position: int) -> int:
    base = kv.base_slot(request_id)
    if base is not None:
        return base + position
    block = kv.block_table(request_id)[position // kv.block_size]
    return block * kv.block_size + position % kv.block_size


class Machine(RuleBasedStateMachine):
    """One rule is one scheduler step with one decision; its moves run first, then its writes, then all reads."""

    name, options = "paged", {}

    def __init__(self):
        super().__init__()
        self.kv = make_kv_cache(self.name, capacity_tokens=CAPACITY, bytes_per_token=10, **self.options)
        self.memory: dict[int, int | None] = {}
        self.known: dict[str, list[int]] = {}
        self.num_requests, self.now = 0, 0.0

    def new_id(self) -> str:
        self.num_requests += 1
        return f"r{self.num_requests}"

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=40),
        share=st.sampled_from([0.3, 1.0, 1.0]),
        more=st.integers(0, 30),
        priority=st.integers(0, 2),
        ttl_s=st.sampled_from([None, 2.0]),
    )
    def admit(self, tokens, share, more, priority, ttl_s):
        request_id, kv = self.new_id(), self.kv
        tokens = [*[0, 1, 1] * 8, *tokens] if more % 2 else tokens  # half of them begin alike
        hit = kv.lookup(tokens)
        assert hit < len(tokens)
        first = hit + max(1, int(share * (len(tokens) - hit)))
        final = len(tokens) + more
        before = kv.stats()
        answer = kv.admit(
            request_id,
            first,
            max_tokens=final,
            final_tokens=final,
            token_ids=tokens,
            priority=priority,
            ttl_s=ttl_s,
        )
        if not answer.admitted:
            assert answer.reason
            assert kv.stats() == before, "a refused admission changes nothing"
            return
        assert answer.num_hit_tokens == hit
        self.known[request_id] = tokens
        self.settle(answer.moves, request_id, hit, first)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), wish=st.integers(1, 9), token=st.integers(0, 1))
    def append(self, data, wish, token):
        request_id = data.draw(st.sampled_from(sorted(self.known)))
        placed, known = self.kv.num_tokens(request_id), self.known[request_id]
        new = [] if placed < len(known) else [token] * wish
        count = len(known) - placed if placed < len(known) else wish
        count = min(wish, count) if wish == 5 else count  # sometimes the prompt comes in chunks
        try:
            grown = self.kv.append(request_id, count, new)
        except NoSpace:
            assert self.kv.num_tokens(request_id) == placed
            return
        known += new
        self.settle(grown.moves, request_id, placed, placed + count)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(sorted(self.known)))
        child, placed = self.new_id(), self.kv.num_tokens(parent)
        try:
            grown = self.kv.fork(parent, child)
        except NoSpace:
            return
        self.known[child] = self.known[parent][:placed]
        self.settle(grown.moves, child, placed, placed)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def free(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.known)))
        self.kv.free(request_id)
        del self.known[request_id]

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds):
        self.now += seconds
        self.kv.set_time(self.now)

    def settle(self, moves, request_id: str, start: int, stop: int) -> None:
        for move in moves:
            rows = [self.memory.get(move.src_slot + i) for i in range(move.num_tokens)]
            self.memory.update(enumerate(rows, move.dst_slot))
        rows = digests(self.known[request_id])
        for position in range(start, stop):
            self.memory[slot_of(self.kv, request_id, position)] = rows[position]

    @invariant()
    def conservation(self):
        self.kv.check_integrity()

    @invariant()
    def everybody_reads_what_he_wrote(self):
        window = getattr(self.kv, "window", None)
        for request_id, known in self.known.items():
            placed, rows = self.kv.num_tokens(request_id), digests(known)
            for position in range(0 if window is None else max(0, placed - window + 1), placed):
                found = self.memory.get(slot_of(self.kv, request_id, position))
                assert found == rows[position], f"{request_id} reads something else at position {position}"

    def teardown(self):
        for request_id in list(self.known):
            self.kv.free(request_id)
        self.kv.check_integrity()
        stats = self.kv.stats()
        assert stats.reserved_bytes == stats.token_bytes == stats.num_requests == 0, stats


def machine_of(label: str) -> type[Machine]:
    name, options = CASES[label]
    return type("Machine", (Machine,), {"name": name, "options": options})


def run_machine(label: str, examples: int, steps: int, *, shrink: bool = True) -> None:
    """`shrink=False` stops at the first failure: enough where one is expected."""
    case = machine_of(label).TestCase
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=tuple(Phase) if shrink else (Phase.generate,),
        report_multiple_bugs=False,
    )
    case("runTest").runTest()


@pytest.mark.parametrize("label", CASES)
def test_kv_manager_keeps_its_laws_and_its_content(label):
    run_machine(label, examples=20, steps=50)


@pytest.mark.fuzz
@pytest.mark.parametrize("label", CASES)
def test_kv_manager_fuzz(label):
    run_machine(label, examples=300, steps=60)
