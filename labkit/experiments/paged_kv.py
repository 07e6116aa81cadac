"""Section 6: what blocks and a block table solve, and what they cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.experiments.churn import Churn, Holding, Memory
from labkit.experiments.contiguous_kv import INDEX_BYTES
from labkit.kv import make_kv_cache
from labkit.kv.paged import PagedKVCache


@dataclass(frozen=True)
class AttentionCheck:
    """Largest norm-wise error ‖paged − contiguous‖ / ‖contiguous‖ over requests and heads, and how the blocks lay."""

    max_error: float
    num_blocks: int
    num_neighbours: int

    def same_output(self) -> bool:
        return self.max_error < 1e-5


def paged_equals_contiguous(
    rng: np.random.Generator,
    *,
    lengths: Sequence[int] = (1, 15, 16, 17, 200, 777),
    block_size: int = 16,
    swap_two_entries: bool = False,
) -> AttentionCheck:
    """Decode attention over the same keys and values, once contiguous, once in blocks scattered at random.

    8 query heads, 2 KV heads, head_dim 64, fp32. `swap_two_entries` exchanges two entries of the longest request's
    block table: the control.
    """
    import torch

    from labkit.kernels import contiguous_decode_attention, kv_write, paged_decode_attention

    num_heads, num_kv_heads, head_dim = 8, 2, 64
    total = sum(lengths)

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    key, value = draw(total, num_kv_heads, head_dim), draw(total, num_kv_heads, head_dim)
    query = draw(len(lengths), num_heads, head_dim)
    seq_lens = torch.tensor(list(lengths), dtype=torch.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])

    blocks_each = [-(-length // block_size) for length in lengths]
    order = rng.permutation(sum(blocks_each)).astype(np.int32)
    tables = np.zeros((len(lengths), max(blocks_each)), dtype=np.int32)
    slots, at = [], 0
    for row, (length, count) in enumerate(zip(lengths, blocks_each)):
        tables[row, :count] = order[at : at + count]
        positions = np.arange(length)
        slots.append(tables[row, positions // block_size] * block_size + positions % block_size)
        at += count
    k_paged = torch.full((len(order), block_size, num_kv_heads, head_dim), float("nan"))
    v_paged = torch.full_like(k_paged, float("nan"))
    kv_write(key, value, k_paged, v_paged, torch.from_numpy(np.concatenate(slots).astype(np.int64)))
    if swap_two_entries:
        longest = int(np.argmax(lengths))
        tables[longest, [0, -1 if blocks_each[longest] == tables.shape[1] else 1]] = tables[longest, [1, 0]]
    scale = head_dim**-0.5
    paged = paged_decode_attention(query, k_paged, v_paged, torch.from_numpy(tables), seq_lens, scale=scale)
    contiguous = contiguous_decode_attention(
        query, key, value, torch.from_numpy(starts.astype(np.int64)), seq_lens, scale=scale
    )
    error = (paged - contiguous).norm(dim=-1) / contiguous.norm(dim=-1)
    used = [tables[row, :count] for row, count in enumerate(blocks_each)]
    neighbours = sum(int((np.diff(row) == 1).sum()) for row in used)
    return AttentionCheck(float(error.max()), len(order), neighbours)


@dataclass(frozen=True)
class Sharing:
    """Blocks held at each stage of a fork: both alive, the parent gone, the child gone; and slots copied."""

    shared_blocks: int
    held_together: int
    held_after_parent: int
    held_after_child: int
    copied_tokens: int

    def by_reference_count(self) -> bool:
        """Sharing saved blocks, the first to leave freed none of the shared ones, the writer copied one part-filled
        block and no more: the predicate of claim 6.2."""
        return (
            self.shared_blocks > 0
            and self.held_after_parent >= self.shared_blocks
            and self.held_after_child == 0
            and 0 < self.copied_tokens < 16
        )


def fork_and_leave(*, share: bool, num_tokens: int = 100, block_size: int = 16) -> Sharing:
    """A request of `num_tokens` is forked (or, `share=False`, sent again on its own); the copy writes a token; first the
    parent ends, then the copy."""
    kv = make_kv_cache("paged", capacity_tokens=4096, bytes_per_token=1, block_size=block_size)
    assert isinstance(kv, PagedKVCache)
    kv.admit("parent", num_tokens, max_tokens=2 * num_tokens)
    if share:
        kv.fork("parent", "child")
    else:
        kv.admit("child", num_tokens, max_tokens=2 * num_tokens)
    shared = len(set(kv.block_table("parent")) & set(kv.block_table("child")))
    kv.append("child", 1)
    together = kv.pool.num_pinned
    kv.free("parent")
    after_parent = kv.pool.num_pinned
    kv.free("child")
    kv.check_integrity()
    return Sharing(shared, together, after_parent, kv.pool.num_pinned, kv.stats().num_moved_bytes)


Rule = Callable[[Memory, Holding], bool]


class JudgedMemory:
    """A memory that asks an admission rule before each placement and counts how often the rule was wrong."""

    def __init__(self, memory: Memory, rule: Rule):
        self.memory, self.rule = memory, rule
        self.capacity = memory.capacity
        self.num_asked = self.num_false_yes = self.num_false_no = 0

    def place(self, holding: Holding) -> Any:
        said = self.rule(self.memory, holding)
        handle = self.memory.place(holding)
        self.num_asked += 1
        self.num_false_yes += said and handle is None
        self.num_false_no += not said and handle is not None
        return handle

    @property
    def never_wrong(self) -> bool:
        """The predicate of claim 6.3: what the rule admits fits, what it refuses does not."""
        return self.num_false_yes == 0 and self.num_false_no == 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)


def counts_blocks(block_bytes: int) -> Rule:
    """Admit when the blocks that the request needs are free."""
    return lambda memory, holding: -(-holding.size // block_bytes) * block_bytes <= memory.free_bytes()


def share_free(percent: float) -> Rule:
    """Admit while at least `percent` of the memory is free, whatever the request needs."""
    return lambda memory, holding: memory.free_bytes() >= percent / 100 * memory.capacity


def judge(memory: Memory, rule: Rule, holdings: Sequence[Holding]) -> JudgedMemory:
    """Run `holdings` and let `rule` say beforehand whether each will fit."""
    judged = JudgedMemory(memory, rule)
    Churn(judged, on_failure="drop").feed(holdings)
    return judged


@dataclass(frozen=True)
class BlockSizeCost:
    """What one block size costs a load, in bytes: the empty rest of last blocks, and block-table entries."""

    block_size: int
    waste_bytes: int
    table_bytes: int
    table_loads: int

    @property
    def total_bytes(self) -> int:
        return self.waste_bytes + self.table_bytes


def block_size_costs(
    lengths: Sequence[int],
    block_sizes: Sequence[int],
    *,
    bytes_per_token: int,
    num_layers: int = 32,
    num_kv_heads: int = 8,
) -> list[BlockSizeCost]:
    """`lengths` are the tokens each live request holds. A decode step loads each entry once a layer and KV head."""
    costs = []
    for size in block_sizes:
        blocks = [-(-length // size) for length in lengths]
        slots = sum(blocks) * size
        costs.append(
            BlockSizeCost(
                block_size=size,
                waste_bytes=(slots - sum(lengths)) * bytes_per_token,
                table_bytes=sum(blocks) * INDEX_BYTES,
                table_loads=sum(blocks) * num_layers * num_kv_heads,
            )
        )
    return costs


def trades(costs: Sequence[BlockSizeCost]) -> bool:
    """Smaller blocks waste less memory and need more table entries, at every step: neither end is best at both."""
    ordered = sorted(costs, key=lambda cost: cost.block_size)
    return all(
        small.waste_bytes < large.waste_bytes and small.table_bytes > large.table_bytes
        for small, large in itertools.pairwise(ordered)
    )
