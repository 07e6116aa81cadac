"""The memory of a tensor run: one arena, one allocator, and a ledger of who holds what.

The seven kinds of the ledger, and what they are here:

| kind | holds | lives |
| --- | --- | --- |
| weights | all parameters | the whole run |
| kv_cache | keys, values and their scales, one pool | the whole run |
| communication | the buffer that an all-reduce over ranks works on in place (row-parallel outputs) | the whole run |
| metadata | token ids, positions, slots, lengths, block tables of the step | one step |
| activations | residual stream and its normalised copy | one step |
| workspace | results of one matrix product, until they are consumed | a fraction of a layer |
| allocator | what the allocator reserves beyond what was asked for: rounding, and free spans it keeps | |

What torch's operators allocate inside themselves (the gathered keys of the CPU reference, for one) is not in the arena.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from labkit.errors import LabError
from labkit.memory import Allocation, Allocator, Arena, Span, make_allocator

#: kind -> lifetime class of the pictures
KINDS = {
    "weights": "weights",
    "kv_cache": "request",
    "communication": "communication",
    "metadata": "other",
    "activations": "activation",
    "workspace": "workspace",
}
ALIGNMENT_BYTES = 256


@dataclass(slots=True, eq=False)
class Block:
    """A live tensor of the arena and the allocation under it."""

    tensor: torch.Tensor
    allocation: Allocation
    kind: str


class TensorMemory:
    """Tensors by kind. `peak_bytes` keeps the most that each kind ever held."""

    def __init__(
        self, capacity_bytes: int, *, allocator: str = "first-fit", device: str = "cpu", **options: Any
    ):
        if allocator in ("first-fit", "best-fit", "next-fit", "worst-fit"):
            options.setdefault("alignment_bytes", ALIGNMENT_BYTES)
        self.allocator: Allocator = make_allocator(allocator, capacity_bytes, **options)
        self.arena = Arena(self.allocator.address_space_bytes, device=device)
        self.device = device
        self.live_bytes = dict.fromkeys(KINDS, 0)
        self.peak_bytes = dict.fromkeys(KINDS, 0)
        self.num_allocations = 0

    def new(self, kind: str, shape: tuple[int, ...], dtype: torch.dtype, tag: str = "") -> Block:
        """An uninitialised tensor of the arena. Raises `OutOfMemory`, and `LabError` for an unknown kind."""
        if kind not in KINDS:
            raise LabError(f"unknown kind of memory {kind!r}; choose one of: {', '.join(KINDS)}")
        num_bytes = dtype.itemsize
        for length in shape:
            num_bytes *= length
        allocation = self.allocator.malloc(max(1, num_bytes), tag=tag or kind, lifetime=KINDS[kind])
        tensor = self.arena.view(allocation, shape, dtype)
        self.num_allocations += 1
        self.live_bytes[kind] += allocation.requested
        self.peak_bytes[kind] = max(self.peak_bytes[kind], self.live_bytes[kind])
        return Block(tensor, allocation, kind)

    def release(self, block: Block) -> None:
        """Give a block back."""
        self.allocator.free(block.allocation)
        self.live_bytes[block.kind] -= block.allocation.requested

    @contextmanager
    def borrowed(
        self, kind: str, shape: tuple[int, ...], dtype: torch.dtype, tag: str = ""
    ) -> Iterator[torch.Tensor]:
        """A tensor for the time of a `with` block."""
        block = self.new(kind, shape, dtype, tag)
        try:
            yield block.tensor
        finally:
            self.release(block)

    def ledger(self, *, peak: bool = False) -> dict[str, int]:
        """Bytes by kind, now or at each kind's own peak; "allocator" is what it holds beyond that now."""
        held = dict(self.peak_bytes if peak else self.live_bytes)
        held["allocator"] = self.allocator.stats().reserved_bytes - sum(self.live_bytes.values())
        return held

    def layout(self, kv_pool: Block | None = None, kv_spans: list[Span] | None = None) -> list[Span]:
        """The arena in address order. With `kv_spans` (a KV manager's layout) the pool is drawn as its manager sees
        it: every token's layers side by side, although in memory each layer's keys and values are apart."""
        spans = self.allocator.layout()
        if kv_pool is None or kv_spans is None:
            return spans
        start, size = kv_pool.allocation.offset, kv_pool.allocation.size
        inner = [replace(span, offset=span.offset + start) for span in kv_spans]
        covered = sum(span.size for span in inner)
        if covered > size:
            return spans  # mapped on demand: addresses without memory do not fit into a map of memory
        if covered < size:
            inner.append(Span(start + covered, size - covered, "allocated", 0, "scales and padding", "other"))
        return [new for span in spans for new in (inner if span.offset == start else [span])]
