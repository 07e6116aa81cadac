"""Contiguous and paged caches."""

from __future__ import annotations

import numpy as np

from labkit.experiments.churn import BlockMemory, holdings_of
from labkit.experiments.contiguous_kv import (
    contiguous_footprint,
    grow_once,
    paged_footprint,
    reservation_curve,
    waste_of_reserve_max,
    with_fixed_lengths,
)
from labkit.experiments.harms import peak_demand
from labkit.experiments.paged_kv import (
    block_size_costs,
    counts_blocks,
    fork_and_leave,
    judge,
    paged_equals_contiguous,
    share_free,
    trades,
)
from labkit.experiments.proofs import Proof
from labkit.experiments.proofs.fragmentation import BYTES_PER_TOKEN, requests_of


def reservation_is_empty(rng: np.random.Generator, all_as_long_as_possible: bool) -> Proof:
    """Every request reserves 4,096 tokens. Is more than half of what is held empty, averaged over time?"""
    load = [r for r in requests_of(rng, 200) if r.num_prompt_tokens + r.num_output_tokens <= 4096][:100]
    if all_as_long_as_possible:
        load = with_fixed_lengths(load, 4000, 96)
    run = waste_of_reserve_max(
        load, max_model_len=4096, capacity_tokens=65_536, bytes_per_token=BYTES_PER_TOKEN
    )
    return Proof(run.token_share < 0.5, {"share_empty": 1 - run.token_share})


def growth_copies(neighbour_behind: bool) -> Proof:
    """A contiguous cache grows. Is all of it copied, and does it need old and new at once?"""
    found = grow_once(neighbour_behind=neighbour_behind)
    return Proof(
        found.moved_tokens > 0 and found.peak_slots > 1.5 * found.final_slots,
        {
            "moved_tokens": found.moved_tokens,
            "peak_slots": found.peak_slots,
            "final_slots": found.final_slots,
        },
    )


def no_reservation_is_right(rng: np.random.Generator, lengths_known: bool) -> Proof:
    """Is there no reserved length that is good at both: little waste, and little copied or computed again?"""
    load = [r for r in requests_of(rng, 200) if r.num_prompt_tokens + r.num_output_tokens < 4000][:120]
    if lengths_known:
        load = with_fixed_lengths(load, 960, 64)
    points = reservation_curve(
        load, [16, 64, 256, 1024, 4096], capacity_tokens=24_000, bytes_per_token=BYTES_PER_TOKEN
    )
    return Proof(
        not any(point.good_at_both() for point in points),
        {str(p.reserved_tokens): [round(p.waste, 3), round(p.moved_per_token, 3)] for p in points},
    )


def scattered_blocks_give_the_same(rng: np.random.Generator, table_right: bool) -> Proof:
    """Is attention over blocks at random places what it is over a contiguous cache? (`table_right=False`: two entries of a
    block table are exchanged.)"""
    found = paged_equals_contiguous(rng, lengths=(1, 17, 200), swap_two_entries=not table_right)
    return Proof(found.same_output(), {"largest_error": found.max_error, "blocks": found.num_blocks})


def block_size_trades(rng: np.random.Generator, whole_blocks_only: bool) -> Proof:
    """Do smaller blocks waste less memory and need more table entries at every step from 8 to 128?"""
    lengths = [r.num_prompt_tokens + r.num_output_tokens for r in requests_of(rng, 300)]
    if whole_blocks_only:
        lengths = [-(-n // 128) * 128 for n in lengths]
    costs = block_size_costs(lengths, [8, 16, 32, 64, 128], bytes_per_token=BYTES_PER_TOKEN)
    return Proof(trades(costs), {str(c.block_size): [c.waste_bytes, c.table_bytes] for c in costs})


def last_block_wastes_half(rng: np.random.Generator, any_length: bool, block_size: int = 64) -> Proof:
    """Does a request lose between a third and two thirds of one block on average?"""
    lengths = rng.integers(100, 5000, 2000)
    if not any_length:
        lengths = -(-lengths // block_size) * block_size
    lost = float((-lengths % block_size).mean() / block_size)
    return Proof(1 / 3 < lost < 2 / 3, {"share_of_a_block": lost})


def contiguous_is_leaner(fixed_length: bool) -> Proof:
    """Is a contiguous cache better in memory, metadata and loads? It is for requests of one known length."""
    lengths = [4096] * 16 if fixed_length else [256] * 15 + [4096]
    contiguous = contiguous_footprint(lengths, reserved=4096, bytes_per_token=BYTES_PER_TOKEN)
    paged = paged_footprint(lengths, block_size=16, bytes_per_token=BYTES_PER_TOKEN)
    return Proof(
        contiguous.leaner_than(paged), {"contiguous": contiguous.held_bytes, "paged": paged.held_bytes}
    )


def freed_by_the_last_reference(share: bool) -> Proof:
    """A request is forked, the copy writes, the parent leaves. Do shared blocks stay, and is exactly one part-filled block
    copied?"""
    found = fork_and_leave(share=share)
    return Proof(
        found.by_reference_count(),
        {"shared_blocks": found.shared_blocks, "copied_tokens": found.copied_tokens},
    )


def rule_is_never_wrong(rng: np.random.Generator, rule: str) -> Proof:
    """Does the admission rule say yes exactly when the request fits? `rule`: "blocks", or "percent" (10 % free)."""
    block = 16 * BYTES_PER_TOKEN
    load = holdings_of(requests_of(rng, 600), bytes_per_token=BYTES_PER_TOKEN, seconds_per_token=0.03)
    memory = BlockMemory(int(0.7 * peak_demand(load)), block)
    judged = judge(memory, counts_blocks(block) if rule == "blocks" else share_free(10), load)
    return Proof(judged.never_wrong, {"wrong_yes": judged.num_false_yes, "wrong_no": judged.num_false_no})
