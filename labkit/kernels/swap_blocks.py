"""Swap of blocks: preemption by swapping copies a request's blocks to another pool (host memory) and back.

The kernel is `block_copy.copy_blocks_kernel` on two pools. Counted: reads `num_pairs * block_bytes` from one pool, writes
as many to the other; between GPU and host both cross the bus, whose bandwidth (PCIe 4.0 x16: 32 GB/s) is the floor.
"""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import interpreting, uses_triton
from labkit.kernels.block_copy import launch_copy
from labkit.kernels.copy_words import as_words
from labkit.kernels.quantize import raw


def swap_blocks(
    source: torch.Tensor, target: torch.Tensor, block_pairs: torch.Tensor, *, validate: bool = True
) -> None:
    """`target[pair[1]] = source[pair[0]]` for each row of `block_pairs [num_pairs, 2]`.

    source, target   `[num_blocks, ...]`, the same block shape and dtype, different memory. Under Triton one of them
                     may be pinned host memory (the kernel reads or writes it across the bus); pageable memory raises.
    """
    _check(source, target, block_pairs, validate)
    if len(block_pairs) == 0:
        return
    device_side = source if source.is_cuda else target
    if uses_triton(device_side):
        _launch(source, target, block_pairs)
    else:
        swap_blocks_reference(source, target, block_pairs)


def swap_blocks_reference(source: torch.Tensor, target: torch.Tensor, block_pairs: torch.Tensor) -> None:
    """The same in plain torch."""
    sources, targets = block_pairs.long().unbind(1)
    rows = raw(source)[sources.to(source.device)]
    raw(target)[targets.to(target.device)] = rows.to(target.device)


def _launch(source: torch.Tensor, target: torch.Tensor, block_pairs: torch.Tensor) -> None:
    for name, pool in (("source", source), ("target", target)):
        if not pool.is_cuda and not interpreting() and not pool.is_pinned():
            raise LabError(
                f"{name}: lies in pageable host memory, accepted are CUDA tensors and pinned host tensors"
            )
    device = source.device if source.is_cuda else target.device
    pairs = block_pairs.to(device).contiguous()
    launch_copy(as_words("source", source, 1), as_words("target", target, 1), pairs)


def _check(source: torch.Tensor, target: torch.Tensor, block_pairs: torch.Tensor, validate: bool) -> None:
    checks.check_rank("block_pairs", block_pairs, "num_pairs, 2")
    checks.check_index("block_pairs", block_pairs)
    if target.dtype != source.dtype:
        raise checks.fail("target", f"has dtype {target.dtype}, accepted is that of source ({source.dtype})")
    if target.shape[1:] != source.shape[1:]:
        raise checks.fail(
            "target",
            f"has blocks of {list(target.shape[1:])}, accepted is the shape of source's {list(source.shape[1:])}",
        )
    if block_pairs.shape[1] != 2:
        raise checks.fail(
            "block_pairs", f"has {block_pairs.shape[1]} columns, accepted are 2: source, target"
        )
    if validate and len(block_pairs):
        for column, (name, pool) in enumerate((("source", source), ("target", target))):
            ids = block_pairs[:, column]
            checks.check_all(
                "block_pairs",
                (ids >= 0) & (ids < len(pool)),
                ids,
                f"{name} block id {{value}} is out of range, the pool has {len(pool)} blocks",
            )
        if len(block_pairs[:, 1].unique()) != len(block_pairs):
            raise checks.fail("block_pairs", "writes a target block twice, accepted are distinct targets")
