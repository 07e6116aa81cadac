"""What a decided step computes, request by request, with page ids: for an executor that really has tensors."""

from __future__ import annotations

from labkit.serving.base import Chunk
from labkit.serving.systems.sglang_state import SglangState


def chunks_of(state: SglangState) -> list[Chunk]:
    """Rows in batch order. A cut request samples only with its last piece."""
    chunks = []
    for req in state.extend_rows:
        samples = req is not state.chunked
        length = req.extend_end - req.prefix_len
        chunks.append(Chunk(req.request_id, req.prefix_len, length, samples, tuple(req.pages)))
    for req in state.decode_rows:
        chunks.append(Chunk(req.request_id, req.committed(state.clock), 1, True, tuple(req.pages)))
    return chunks
