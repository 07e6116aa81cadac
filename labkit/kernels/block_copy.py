# mypy: disable-error-code="valid-type,name-defined"
"""Block copy: what copy-on-write does before a shared block is written.

One program a (pair, piece of 512 words). Counted per cache: reads and writes `num_pairs * block_bytes` each, and 16
bytes a pair for the ids (once a piece); no FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit.kernels import checks
from labkit.kernels.backend import jit, tl, uses_triton
from labkit.kernels.copy_words import BLOCK, as_words, unit_of
from labkit.kernels.quantize import raw


def block_copy(caches: Sequence[torch.Tensor], block_pairs: torch.Tensor, *, validate: bool = True) -> None:
    """Copy whole blocks inside each cache, in place.

    caches        tensors `[num_blocks, ...]` of any dtype: K and V of the layers, and their scales
    block_pairs   [num_pairs, 2] (source block, target block); all reads see the state before the call, so a block may
                  not be written twice, and a target may not be the source of another pair
    """
    _check(caches, block_pairs, validate)
    if len(block_pairs) == 0:
        return
    for cache in caches:
        if uses_triton(cache):
            _launch(cache, block_pairs)
        else:
            block_copy_reference(cache, block_pairs)


def block_copy_reference(cache: torch.Tensor, block_pairs: torch.Tensor) -> None:
    """The same for one cache in plain torch."""
    sources, targets = block_pairs.long().unbind(1)
    raw(cache)[targets] = raw(cache)[sources]


#: see `paged_decode.ALIGNED`; strides and row lengths come in units of UNIT words
ALIGNED = ("source", "target")


@jit(do_not_specialize=["block_pairs", "num_words", "stride_source", "stride_target"])
def copy_blocks_kernel(
    source,
    target,
    block_pairs,
    num_words,
    stride_source,
    stride_target,
    BLOCK_WORDS: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Program (pair, piece). Used with two pools by `swap_blocks`, with one by `block_copy`."""
    pair = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    from_block = tl.load(block_pairs + pair * 2).to(tl.int64)
    to_block = tl.load(block_pairs + pair * 2 + 1).to(tl.int64)
    mask = words < (num_words * UNIT)
    piece = tl.load(source + from_block * (stride_source * UNIT) + words, mask=mask, other=0)  # kv
    tl.store(target + to_block * (stride_target * UNIT) + words, piece, mask=mask)


def launch_copy(source: torch.Tensor, target: torch.Tensor, block_pairs: torch.Tensor) -> None:
    """`source` and `target` as `[num_blocks, words]`; `block_pairs` contiguous."""
    num_words = source.shape[1]
    unit = unit_of(num_words, source.stride(0), target.stride(0))
    copy_blocks_kernel[(len(block_pairs), -(-num_words // BLOCK))](
        source,
        target,
        block_pairs,
        num_words // unit,
        source.stride(0) // unit,
        target.stride(0) // unit,
        BLOCK_WORDS=BLOCK,
        UNIT=unit,
        num_warps=4,
    )


def _launch(cache: torch.Tensor, block_pairs: torch.Tensor) -> None:
    words = as_words("caches", cache, 1)
    launch_copy(words, words, block_pairs.contiguous())


def _check(caches: Sequence[torch.Tensor], block_pairs: torch.Tensor, validate: bool) -> None:
    checks.check_rank("block_pairs", block_pairs, "num_pairs, 2")
    checks.check_index("block_pairs", block_pairs)
    if block_pairs.shape[1] != 2:
        raise checks.fail(
            "block_pairs", f"has {block_pairs.shape[1]} columns, accepted are 2: source, target"
        )
    for index, cache in enumerate(caches):
        checks.check_devices(
            **{"caches[0]": caches[0], f"caches[{index}]": cache, "block_pairs": block_pairs}
        )
        if validate:
            good = (block_pairs >= 0) & (block_pairs < len(cache))
            checks.check_all(
                "block_pairs",
                good,
                block_pairs,
                f"block id {{value}} is out of range, caches[{index}] has {len(cache)} blocks",
            )
    if validate and len(block_pairs):
        sources, targets = block_pairs.unbind(1)
        if len(targets.unique()) != len(targets):
            raise checks.fail("block_pairs", "writes a target block twice, accepted are distinct targets")
        checks.check_all(
            "block_pairs",
            ~torch.isin(targets, sources),
            targets,
            "block {value} is both a target and a source",
        )
