"""What paged attention reads beside its queries: caches, tables and lengths, checked and handed to a kernel in one way.

Decode, split decode and prefill differ in their queries and in what they write. This is what they share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from labkit.kernels import checks
from labkit.kernels.decode_tiles import check_supported, stride, upcasts


@dataclass(frozen=True, slots=True)
class PagedContext:
    """The arguments of that name of `paged_decode_attention`.

    k_cache, v_cache   [num_blocks, block_size, num_kv_heads, head_dim]
    block_tables       [num_requests, max_blocks]
    seq_lens           [num_requests]
    k_scale, v_scale   [num_blocks, block_size, num_kv_heads] float32 of a quantised cache, else None
    """

    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    scale: float
    window: int | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None

    @property
    def num_kv_heads(self) -> int:
        return self.k_cache.shape[2]

    @property
    def is_quantized(self) -> bool:
        return self.k_scale is not None

    def check_shapes(self, query: torch.Tensor, num_requests: int) -> None:
        """Shapes, dtypes and devices, for `query [rows, num_heads, head_dim]` of `num_requests` requests."""
        checks.check_rank("k_cache", self.k_cache, "num_blocks, block_size, num_kv_heads, head_dim")
        checks.check_devices(
            query=query,
            k_cache=self.k_cache,
            v_cache=self.v_cache,
            block_tables=self.block_tables,
            seq_lens=self.seq_lens,
        )
        checks.check_cache_pair(self.k_cache, self.v_cache, self.k_scale, self.v_scale)
        checks.check_query(query, self.k_cache)
        checks.check_rank("block_tables", self.block_tables, "num_requests, max_blocks")
        checks.check_index("block_tables", self.block_tables, num_requests)
        checks.check_index("seq_lens", self.seq_lens, num_requests)
        checks.check_scale_and_window(self.scale, self.window)

    def check_tables(self, starts: torch.Tensor) -> None:
        """The values that will be read: positions `[starts, seq_lens)`, `starts [num_requests]`."""
        num_blocks, block_size = self.k_cache.shape[:2]
        checks.check_block_tables(self.block_tables, self.seq_lens, num_blocks, block_size, starts)

    def check_launch(self, query: torch.Tensor, **written: torch.Tensor) -> None:
        """What the compiled kernels need beyond that: shapes they are built for, and 16-byte alignment of what they read
        and of what is `written`."""
        check_supported(query.dtype, query.shape[2], self.k_cache.shape[1])
        checks.check_alignment(query=query, k_cache=self.k_cache, v_cache=self.v_cache, **written)
        checks.check_contiguous(k_scale=self.k_scale, v_scale=self.v_scale, seq_lens=self.seq_lens)
        checks.check_rows_contiguous("block_tables", self.block_tables)

    def kernel_arguments(self, query: torch.Tensor) -> dict[str, Any]:
        """By the kernels' parameter names: the query, the context and their strides in elements. Without scales the
        kernel gets an index vector in their place, which it never touches."""
        _, block_size, num_kv_heads, head_dim = self.k_cache.shape
        return {
            "query": query,
            "k_cache": self.k_cache,
            "v_cache": self.v_cache,
            "k_scale": self.seq_lens if self.k_scale is None else self.k_scale,
            "v_scale": self.seq_lens if self.v_scale is None else self.v_scale,
            "block_tables": self.block_tables,
            "seq_lens": self.seq_lens,
            "scale_log2": self.scale * math.log2(math.e),
            "num_kv_heads": num_kv_heads,
            "window": self.window or 0,
            "stride_q_row": stride(query, 0),
            "stride_q_head": stride(query, 1),
            "stride_k_block": stride(self.k_cache, 0),
            "stride_k_slot": stride(self.k_cache, 1),
            "stride_k_head": stride(self.k_cache, 2),
            "stride_v_block": stride(self.v_cache, 0),
            "stride_v_slot": stride(self.v_cache, 1),
            "stride_v_head": stride(self.v_cache, 2),
            "stride_table": self.block_tables.stride(0),
            "GROUP": query.shape[1] // num_kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK_SIZE": block_size,
            "WINDOWED": self.window is not None,
            "QUANTIZED": self.is_quantized,
            "UPCAST": upcasts(query.dtype),
        }
