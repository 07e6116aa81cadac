# mypy: disable-error-code="valid-type,name-defined"
"""Block gather: a paged request as one contiguous run (paged to contiguous).

One program a (request, 16 tokens, piece of 512 words). Counted: reads and writes `sum(seq_lens) * row_bytes` each, plus a
table entry of 4 or 8 bytes for each token and piece (they come from the same cache line); no FLOPs. It is what a kernel
that knows no block tables needs first: twice the bytes of the context, before any attention is computed.
"""

from __future__ import annotations

import torch

from labkit.kernels import checks
from labkit.kernels.backend import jit, tl, uses_triton
from labkit.kernels.copy_words import as_words, unit_of
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
        _launch(cache, block_tables, seq_lens, out)
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


TOKENS, WORDS = 16, 128

#: see `paged_decode.ALIGNED`; strides and row lengths come in units of UNIT words
ALIGNED = ("out", "cache")


@jit(
    do_not_specialize=[
        "block_tables",
        "seq_lens",
        "first_rows",
        "num_words",
        "stride_out",
        "stride_block",
        "stride_slot",
        "stride_table",
    ]
)
def block_gather_kernel(
    out,
    cache,
    block_tables,
    seq_lens,
    first_rows,
    num_words,
    stride_out,
    stride_block,
    stride_slot,
    stride_table,
    BLOCK_SIZE: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Program (request, tile of tokens, piece of a row). `first_rows[r]` is the output row of request r's token 0."""
    request = tl.program_id(0).to(tl.int64)
    positions = tl.program_id(1) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)
    words = tl.program_id(2) * TILE_WORDS + tl.arange(0, TILE_WORDS)
    seen = positions < tl.load(seq_lens + request)
    first_row = tl.load(first_rows + request).to(tl.int64)
    table_row = block_tables + request * stride_table
    block = tl.load(table_row + positions // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)  # table
    rows = block * (stride_block * UNIT) + positions % BLOCK_SIZE * (stride_slot * UNIT)
    mask = seen[:, None] & (words < (num_words * UNIT))[None, :]
    tile = tl.load(cache + rows[:, None] + words[None, :], mask=mask, other=0)  # kv
    out_rows = (first_row + positions) * (stride_out * UNIT)
    tl.store(out + out_rows[:, None] + words[None, :], tile, mask=mask)


def _launch(
    cache: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor, out: torch.Tensor
) -> None:
    checks.check_contiguous(seq_lens=seq_lens)
    checks.check_rows_contiguous("block_tables", block_tables)
    words, out_words = as_words("cache", cache, 2), as_words("out", out, 1)
    num_words = words.shape[-1]
    unit = unit_of(num_words, out_words.stride(0), words.stride(0), words.stride(1))
    longest = int(seq_lens.max())
    block_gather_kernel[(len(seq_lens), -(-longest // TOKENS), -(-num_words // WORDS))](
        out_words,
        words,
        block_tables,
        seq_lens,
        seq_lens.cumsum(0) - seq_lens,
        num_words // unit,
        out_words.stride(0) // unit,
        words.stride(0) // unit,
        words.stride(1) // unit,
        block_tables.stride(0),
        BLOCK_SIZE=cache.shape[1],
        TILE_TOKENS=TOKENS,
        TILE_WORDS=WORDS,
        UNIT=unit,
        num_warps=4,
    )


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
