"""A step's chunks as the tensors that kernels take. Rows of all requests lie one after the other, decodes (one token)
first, then longer chunks, so that each kind of attention is one call on one slice.

| tensor | shape | for |
| --- | --- | --- |
| token_ids, positions | [num_tokens] | embedding, rotary embedding |
| slot_mapping | [num_tokens] | KV write |
| block_tables | [num_requests, max_blocks] | decode and prefill attention (contiguous: one slot a block, prefills only) |
| base_slots | [num_decodes] | contiguous decode attention |
| seq_lens | [num_requests] | tokens of each request once this step is written |
| cu_query_lens | [num_prefills + 1] | where each chunk's rows begin |

They are built with NumPy, without a loop over tokens, and live in the arena ("metadata") for the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
import torch

from labkit.errors import LabError
from labkit.kernels import (
    contiguous_decode_attention,
    kv_write,
    mla_decode_attention,
    paged_decode_attention,
    paged_prefill_attention,
)
from labkit.serving.base import Chunk
from labkit.serving.kv_pool import KVPool
from labkit.serving.tensor_memory import TensorMemory


class StepBatch:
    """The chunks of one step as flat tensors: `num_decodes` decoding requests first, then prompts; `num_tokens` rows in all."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        known_ids: Callable[[str], Sequence[int]],
        pool: KVPool,
        memory: TensorMemory,
        step: ExitStack,
        window: int | None = None,
    ):
        chunks = sorted(chunks, key=lambda chunk: chunk.num_tokens > 1)
        self.pool, self.window, self._memory, self._step = pool, window, memory, step
        self.num_decodes = sum(1 for chunk in chunks if chunk.num_tokens == 1)
        starts = np.fromiter((chunk.start for chunk in chunks), np.int64, len(chunks))
        counts = np.fromiter((chunk.num_tokens for chunk in chunks), np.int64, len(chunks))
        ends = counts.cumsum()
        self.num_tokens = int(ends[-1])
        owners = np.arange(len(chunks)).repeat(counts)
        positions = np.arange(self.num_tokens) - (ends - counts)[owners] + starts[owners]
        lens = starts + counts

        #: first slots of decoding requests, where their caches are contiguous and no window asks for a table
        self.base_slots: torch.Tensor | None = None
        if chunks[0].base_slot is not None:
            bases = np.array([chunk.base_slot for chunk in chunks], np.int64)
            slots = bases[owners] + positions
            first = 0 if window is not None or pool.spec.latent_dim else self.num_decodes
            if first:
                self.base_slots = self._put(bases[:first])
            # one slot a block; entries behind a request's length are never read
            longest = int(lens[first:].max()) if first < len(chunks) else 0
            tables = np.minimum(bases[first:, None] + np.arange(longest), pool.num_slots - 1)
        else:
            tables = _block_tables(chunks, lens, pool.block_size)
            slots = (
                tables[owners, positions // pool.block_size] * pool.block_size + positions % pool.block_size
            )
        self.block_tables = self._put(tables.astype(np.int32))
        self._owners = owners
        ids: list[int] = []
        for chunk in chunks:
            ids += _ids(chunk, known_ids(chunk.request_id))
        self.token_ids = self._put(np.array(ids, np.int64))
        self.positions = self._put(positions)
        self.slot_mapping = self._put(slots.astype(np.int64))
        self.seq_lens = self._put(lens)
        queries = np.concatenate(([0], counts[self.num_decodes :].cumsum()))
        self.cu_query_lens = self._put(queries.astype(np.int64))
        sampling = [i for i, chunk in enumerate(chunks) if chunk.samples]
        self.sampling_ids = [chunks[i].request_id for i in sampling]
        self.sampling_rows = self._put(ends[sampling] - 1)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        *,
        validate: bool,
    ) -> torch.Tensor:
        """Write the step's keys and values of `layer`, then attend: [num_tokens, num_heads, head_dim]."""
        pool, n = self.pool, self.num_decodes
        k_cache, v_cache = pool.k_cache[layer], pool.v_cache[layer]
        k_scale, v_scale = pool.k_scale[layer], pool.v_scale[layer]
        kv_write(
            k, v, k_cache, v_cache, self.slot_mapping, k_scale=k_scale, v_scale=v_scale, validate=validate
        )
        parts = []
        if n and self.base_slots is not None:
            parts.append(
                contiguous_decode_attention(
                    q[:n],
                    k_cache.flatten(0, 1),
                    v_cache.flatten(0, 1),
                    self.base_slots,
                    self.seq_lens[:n],
                    scale=scale,
                    k_scale=None if k_scale is None else k_scale.flatten(0, 1),
                    v_scale=None if v_scale is None else v_scale.flatten(0, 1),
                    validate=validate,
                )
            )
        elif n:
            parts.append(
                paged_decode_attention(
                    q[:n],
                    k_cache,
                    v_cache,
                    self.block_tables[:n],
                    self.seq_lens[:n],
                    scale=scale,
                    window=self.window,
                    k_scale=k_scale,
                    v_scale=v_scale,
                    validate=validate,
                )
            )
        if n < len(self.seq_lens):
            parts.append(
                paged_prefill_attention(
                    q[n:],
                    k_cache,
                    v_cache,
                    self.block_tables[len(self.block_tables) - (len(self.seq_lens) - n) :],
                    self.cu_query_lens,
                    self.seq_lens[n:],
                    scale=scale,
                    window=self.window,
                    k_scale=k_scale,
                    v_scale=v_scale,
                    validate=validate,
                )
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def attend_latent(
        self, layer: int, q: torch.Tensor, row: torch.Tensor, scale: float, latent_dim: int, *, validate: bool
    ) -> torch.Tensor:
        """Write the latent rows `[num_tokens, 1, row_dim]`, then attend: [num_tokens, num_heads, latent_dim].

        There is one latent kernel, for decode: a chunk of n tokens is n rows of it, each as long as its own position.
        """
        cache = self.pool.k_cache[layer]
        cache.flatten(0, 1)[self.slot_mapping] = row
        tables = self.block_tables[torch.from_numpy(self._owners).to(q.device)]
        return mla_decode_attention(
            q,
            cache[:, :, 0],
            tables,
            self.positions + 1,
            scale=scale,
            latent_dim=latent_dim,
            validate=validate,
        )

    def _put(self, array: np.ndarray) -> torch.Tensor:
        """A copy in the arena for the time of the step."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        block = self._memory.borrowed("metadata", tuple(source.shape), source.dtype, "step metadata")
        return self._step.enter_context(block).copy_(source)


def _block_tables(chunks: Sequence[Chunk], lens: np.ndarray, block_size: int) -> np.ndarray:
    """[num_requests, most blocks in use] int64, zeros behind each request's used part."""
    used = -(-lens // block_size)
    tables = np.zeros((len(chunks), int(used.max())), np.int64)
    for row, chunk, num_blocks in zip(tables, chunks, used.tolist()):
        if len(chunk.block_table) < num_blocks:
            raise LabError(
                f"request {chunk.request_id}: its block table has {len(chunk.block_table)} blocks of {block_size}; "
                f"positions up to {chunk.start + chunk.num_tokens} need {num_blocks}"
            )
        row[:num_blocks] = chunk.block_table[:num_blocks]
    return tables


def _ids(chunk: Chunk, known: Sequence[int]) -> Sequence[int]:
    stop = chunk.start + chunk.num_tokens
    if stop > len(known):
        raise LabError(
            f"request {chunk.request_id}: the step computes position {stop - 1} and {len(known)} are known"
        )
    if chunk.samples and stop != len(known):
        raise LabError(
            f"request {chunk.request_id}: a step that samples computes the last known token ({len(known) - 1}), not "
            f"{stop - 1}"
        )
    return known[chunk.start : stop]
