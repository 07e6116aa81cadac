"""What a decided step computes, request by request, with page ids: for an executor that really has tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.serving.base import Chunk

if TYPE_CHECKING:
    from labkit.serving.systems.sglang import SglangScheduler


def chunks_of(scheduler: SglangScheduler) -> list[Chunk]:
    """Rows in batch order. A cut request samples only with its last piece."""
    chunks = []
    for req in scheduler.extend_rows:
        samples = req is not scheduler.chunked
        length = req.extend_end - req.prefix_len
        chunks.append(Chunk(req.id, req.prefix_len, length, samples, tuple(req.pages)))
    for req in scheduler.decode_rows:
        chunks.append(Chunk(req.id, req.committed(scheduler.clock), 1, True, tuple(req.pages)))
    return chunks
