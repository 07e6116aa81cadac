"""Section 5: what a contiguous KV cache is good at, and what it costs once lengths are not known."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.experiments.serve import Served, serve
from labkit.kv import make_kv_cache
from labkit.workload.base import RequestSpec

INDEX_BYTES = 4  # one block-table entry
BASE_BYTES = 8  # one base address


@dataclass(frozen=True)
class Footprint:
    """What a set of requests of known length holds, and what it takes to find a token. Bytes, loads."""

    held_bytes: int
    metadata_bytes: int
    table_loads: int

    def leaner_than(self, other: Footprint) -> bool:
        """No more memory, less metadata, fewer loads before an address is known: the predicate of claim 5.0."""
        return (
            self.held_bytes <= other.held_bytes
            and self.metadata_bytes < other.metadata_bytes
            and self.table_loads < other.table_loads
        )


def contiguous_footprint(lengths: Sequence[int], *, reserved: int, bytes_per_token: int) -> Footprint:
    """Every request reserves `reserved` tokens and is found through one base address; no table is read."""
    return Footprint(reserved * len(lengths) * bytes_per_token, BASE_BYTES * len(lengths), 0)


def paged_footprint(lengths: Sequence[int], *, block_size: int, bytes_per_token: int) -> Footprint:
    """Every request holds whole blocks; a decode step loads each of their table entries (per KV head and layer)."""
    num_blocks = sum(-(-length // block_size) for length in lengths)
    return Footprint(num_blocks * block_size * bytes_per_token, INDEX_BYTES * num_blocks, num_blocks)


@dataclass(frozen=True)
class Growth:
    """One request grew by `grow_tokens` beyond its run: tokens copied, and the most slots held at once."""

    moved_tokens: int
    peak_slots: int
    final_slots: int


def grow_once(*, neighbour_behind: bool, num_tokens: int = 1024, grow_tokens: int = 64) -> Growth:
    """The last token of a run's reservation is used up and one more is appended, with or without a neighbour behind."""
    kv = make_kv_cache("grow", capacity_tokens=8 * num_tokens, bytes_per_token=1, grow_tokens=grow_tokens)
    kv.admit("grows", num_tokens, max_tokens=4 * num_tokens)
    if neighbour_behind:
        kv.admit("neighbour", num_tokens, max_tokens=num_tokens)
    kv.append("grows", 1)
    held = next(span.size for span in kv.layout() if span.tag == "grows")
    return Growth(
        moved_tokens=kv.stats().num_moved_bytes,
        peak_slots=max(held, getattr(kv, "peak_copy_slots", 0)),
        final_slots=held,
    )


@dataclass(frozen=True)
class ReservationPoint:
    """One point of the curve of claim 5.3: tokens of room kept beyond what is filled, and what that costs."""

    reserved_tokens: int
    waste: float
    moved_per_token: float
    preempted_per_request: float

    def good_at_both(self) -> bool:
        """Less than 10 % of what is held lies empty, and fewer than one token in ten is copied or computed again."""
        return self.waste < 0.10 and self.moved_per_token < 0.10


def reservation_curve(
    requests: Sequence[RequestSpec],
    reserved_tokens: Sequence[int],
    *,
    capacity_tokens: int,
    bytes_per_token: int,
) -> list[ReservationPoint]:
    """Serve `requests` on a growing contiguous cache that keeps room in steps of each of `reserved_tokens`.

    `moved_per_token` counts tokens that were copied or, after a preemption, computed again, for each token of the load.
    """
    num_tokens = sum(r.num_prompt_tokens + r.num_output_tokens for r in requests)
    points = []
    for reserved in reserved_tokens:
        run = serve(
            "grow",
            requests,
            capacity_tokens=capacity_tokens,
            bytes_per_token=bytes_per_token,
            kv_options={"grow_tokens": reserved},
        )
        moved = run.kv.stats().num_moved_bytes / bytes_per_token + run.totals.num_recomputed_tokens
        points.append(
            ReservationPoint(
                reserved_tokens=reserved,
                waste=1 - run.token_share,
                moved_per_token=moved / num_tokens,
                preempted_per_request=run.totals.num_preempted / len(requests),
            )
        )
    return points


def with_fixed_lengths(
    requests: Sequence[RequestSpec], num_prompt: int, num_output: int
) -> list[RequestSpec]:
    """The same arrivals, every request of the same length: the control."""
    return [
        dataclasses.replace(r, num_prompt_tokens=num_prompt, num_output_tokens=num_output) for r in requests
    ]


def waste_of_reserve_max(
    requests: Sequence[RequestSpec], *, max_model_len: int, capacity_tokens: int, bytes_per_token: int
) -> Served:
    """Serve `requests` with `max_model_len` slots for everyone."""
    return serve(
        "reserve-max",
        requests,
        capacity_tokens=capacity_tokens,
        bytes_per_token=bytes_per_token,
        kv_options={"max_model_len": max_model_len},
        max_model_len=max_model_len,
    )
