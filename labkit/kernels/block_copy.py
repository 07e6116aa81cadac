"""Block copy: what copy-on-write does before a shared block is written."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import uses_triton
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
            raise LabError(
                "block_copy: the compiled kernel is not there yet; start with LABKIT_KERNELS=reference"
            )
        else:
            block_copy_reference(cache, block_pairs)


def block_copy_reference(cache: torch.Tensor, block_pairs: torch.Tensor) -> None:
    """The same for one cache in plain torch."""
    sources, targets = block_pairs.long().unbind(1)
    raw(cache)[targets] = raw(cache)[sources]


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
