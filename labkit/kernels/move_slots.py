# mypy: disable-error-code="valid-type,name-defined"
"""Move slots: growth by copy and compaction of a contiguous cache.

Moves are applied in their order, each as if its rows were read before any was written (a request may slide onto
itself). Runs of moves that do not touch each other's results are executed together: in a parallel launch no order
exists, so a run ends where a move reads or writes what an earlier move of the run has written.

One program a (row, piece of 512 words). Counted per cache and run: reads and writes `num_tokens * row_bytes` each, plus
16 bytes of slot numbers a row and piece; a run whose sources meet its targets goes through a staging copy and moves the
rows twice. No FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from labkit.kernels import checks
from labkit.kernels.backend import jit, tl, uses_triton
from labkit.kernels.copy_words import BLOCK, as_words, unit_of
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
                _launch(cache, run)
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


#: see `paged_decode.ALIGNED`; strides and row lengths come in units of UNIT words
ALIGNED = ("source", "target")


@jit(do_not_specialize=["source_slots", "target_slots", "num_words", "stride_source", "stride_target"])
def move_slots_kernel(
    source,
    target,
    source_slots,
    target_slots,
    num_words,
    stride_source,
    stride_target,
    BLOCK_WORDS: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Program (row, piece): `target[target_slots[i]] = source[source_slots[i]]`."""
    row = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    from_slot = tl.load(source_slots + row)
    to_slot = tl.load(target_slots + row)
    mask = words < (num_words * UNIT)
    piece = tl.load(source + from_slot * (stride_source * UNIT) + words, mask=mask, other=0)  # kv
    tl.store(target + to_slot * (stride_target * UNIT) + words, piece, mask=mask)


def _launch(cache: torch.Tensor, run: Sequence[MoveLike]) -> None:
    words = as_words("caches", cache, 1)
    sources, targets = expand(run, cache.device)
    if not _overlapping(run):
        _launch_one(words, words, sources, targets)
        return
    staging = torch.empty(len(sources), words.shape[1], dtype=words.dtype, device=words.device)
    order = torch.arange(len(sources), device=words.device)
    _launch_one(words, staging, sources, order)
    _launch_one(staging, words, order, targets)


def _launch_one(
    source: torch.Tensor, target: torch.Tensor, source_slots: torch.Tensor, target_slots: torch.Tensor
) -> None:
    num_words = source.shape[1]
    unit = unit_of(num_words, source.stride(0), target.stride(0))
    move_slots_kernel[(len(source_slots), -(-num_words // BLOCK))](
        source,
        target,
        source_slots,
        target_slots,
        num_words // unit,
        source.stride(0) // unit,
        target.stride(0) // unit,
        BLOCK_WORDS=BLOCK,
        UNIT=unit,
        num_warps=4,
    )


def _overlapping(run: Sequence[MoveLike]) -> bool:
    """True when some source of the run meets some target: then rows must be read before any is written."""
    sources = [(move.src_slot, move.src_slot + move.num_tokens) for move in run]
    targets = [(move.dst_slot, move.dst_slot + move.num_tokens) for move in run]
    return any(a < d and c < b for a, b in sources for c, d in targets)


def _check(caches: Sequence[torch.Tensor], moves: Sequence[MoveLike]) -> None:
    num_slots = min((len(cache) for cache in caches), default=0)
    for index, move in enumerate(moves):
        for name, slot in (("src_slot", move.src_slot), ("dst_slot", move.dst_slot)):
            if move.num_tokens < 0 or slot < 0 or slot + move.num_tokens > num_slots:
                raise checks.fail(
                    f"moves[{index}].{name}",
                    f"slots [{slot}, {slot + move.num_tokens}) are out of range, the cache has {num_slots}",
                )
