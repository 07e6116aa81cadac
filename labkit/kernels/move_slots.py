"""Move slots: growth by copy and compaction of a contiguous cache.

Moves are applied in their order, each as if its rows were read before any was written (a request may slide onto
itself). Runs of moves that do not touch each other's results are executed together: in a parallel launch no order
exists, so a run ends where a move reads or writes what an earlier move of the run has written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import uses_triton
from labkit.kernels.quantize import raw


class MoveLike(Protocol):
    """`labkit.kv.base.Move`, or anything with its fields."""

    @property
    def src_slot(self) -> int: ...
    @property
    def dst_slot(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...


def move_slots(caches: Sequence[torch.Tensor], moves: Sequence[MoveLike]) -> int:
    """Move token rows inside each cache, in place; returns the bytes moved (written once; the same number is read).

    caches   tensors `[num_slots, ...]` of any dtype: K and V of the layers, and their scales (paged caches: pass
             `cache.flatten(0, 1)`)
    moves    in the order in which the manager decided them
    """
    _check(caches, moves)
    moves = [move for move in moves if move.num_tokens and move.src_slot != move.dst_slot]
    num_rows = sum(move.num_tokens for move in moves)
    for run in independent_runs(moves):
        for cache in caches:
            if uses_triton(cache):
                raise LabError(
                    "move_slots: the compiled kernel is not there yet; start with LABKIT_KERNELS=reference"
                )
            else:
                move_slots_reference(cache, run)
    return num_rows * sum(cache[0].numel() * cache.element_size() for cache in caches)


def move_slots_reference(cache: torch.Tensor, run: Sequence[MoveLike]) -> None:
    """One run in plain torch: all rows are gathered before any is written."""
    sources, targets = expand(run, cache.device)
    raw(cache)[targets] = raw(cache)[sources]


def independent_runs(moves: Sequence[MoveLike]) -> Iterator[list[MoveLike]]:
    """Cut the list where a move's source or target meets an earlier target of the same run."""
    run: list[MoveLike] = []
    written: list[tuple[int, int]] = []
    for move in moves:
        source = (move.src_slot, move.src_slot + move.num_tokens)
        target = (move.dst_slot, move.dst_slot + move.num_tokens)
        if any(
            start < stop_ and start_ < stop for start, stop in (source, target) for start_, stop_ in written
        ):
            yield run
            run, written = [], []
        run.append(move)
        written.append(target)
    if run:
        yield run


def expand(run: Sequence[MoveLike], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Slot by slot: `(sources, targets)`, int64 `[num_tokens]`."""
    table = torch.tensor([(move.src_slot, move.dst_slot, move.num_tokens) for move in run], dtype=torch.int64)
    lengths = table[:, 2]
    owner = torch.arange(len(run)).repeat_interleave(lengths)
    offsets = torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths)[owner]
    return (table[owner, 0] + offsets).to(device), (table[owner, 1] + offsets).to(device)


def _check(caches: Sequence[torch.Tensor], moves: Sequence[MoveLike]) -> None:
    num_slots = min((len(cache) for cache in caches), default=0)
    for index, move in enumerate(moves):
        for name, slot in (("src_slot", move.src_slot), ("dst_slot", move.dst_slot)):
            if move.num_tokens < 0 or slot < 0 or slot + move.num_tokens > num_slots:
                raise checks.fail(
                    f"moves[{index}].{name}",
                    f"slots [{slot}, {slot + move.num_tokens}) are out of range, the cache has {num_slots}",
                )
