"""Block gather: a paged request as one contiguous run (paged to contiguous)."""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import uses_triton
from labkit.kernels.quantize import raw


def block_gather(
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    validate: bool = True,
) -> torch.Tensor:
    """The rows of all requests, one request after the other: `[sum(seq_lens), ...]`.

    cache          [num_blocks, block_size, ...] of any dtype: keys, values, latent rows or scales
    block_tables   [num_requests, max_blocks], seq_lens [num_requests], as in `paged_decode_attention`
    out            written and returned when given, `[sum(seq_lens), ...]` contiguous
    """
    _check(cache, block_tables, seq_lens, validate)
    num_tokens = int(seq_lens.sum())
    shape = (num_tokens, *cache.shape[2:])
    if out is None:
        out = torch.empty(shape, dtype=cache.dtype, device=cache.device)
    elif out.shape != shape or out.dtype != cache.dtype or not out.is_contiguous():
        raise checks.fail(
            "out", f"is {out.dtype} {list(out.shape)}, accepted is contiguous {cache.dtype} {list(shape)}"
        )
    if num_tokens == 0:
        return out
    if uses_triton(cache):
        raise LabError(
            "block_gather: the compiled kernel is not there yet; start with LABKIT_KERNELS=reference"
        )
    else:
        block_gather_reference(cache, block_tables, seq_lens, out)
    return out


def block_gather_reference(
    cache: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor, out: torch.Tensor
) -> None:
    """The same in plain torch: the request and position of every output row, then one gather."""
    requests = torch.arange(len(seq_lens), device=cache.device).repeat_interleave(seq_lens)
    firsts = seq_lens.cumsum(0) - seq_lens
    positions = torch.arange(len(out), device=cache.device) - firsts[requests]
    blocks = block_tables[requests, positions // cache.shape[1]].long()
    raw(out).copy_(raw(cache)[blocks, positions % cache.shape[1]])


def _check(cache: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor, validate: bool) -> None:
    if cache.dim() < 2:
        raise checks.fail("cache", f"has {cache.dim()} dimensions, accepted is [num_blocks, block_size, ...]")
    checks.check_devices(cache=cache, block_tables=block_tables, seq_lens=seq_lens)
    checks.check_rank("block_tables", block_tables, "num_requests, max_blocks")
    checks.check_index("block_tables", block_tables, len(seq_lens))
    checks.check_index("seq_lens", seq_lens)
    if validate and len(seq_lens):
        checks.check_block_tables(
            block_tables, seq_lens, cache.shape[0], cache.shape[1], torch.zeros_like(seq_lens)
        )
