# mypy: disable-error-code="valid-type,name-defined"
"""What the four copying kernels share: rows of any dtype seen as 4-byte words, copied 16 bytes at a time.

Copies do not care what the bytes mean. A row is cut into pieces of `BLOCK` words, one program a piece. Where rows are a
multiple of 16 bytes apart (keys and values always are) the kernel is told so (`WIDE`) and moves 16 bytes an instruction;
rows of scales may be shorter and move word by word.
"""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels import checks
from labkit.kernels.backend import jit, tl

#: words a program copies: 16 bytes for each of 128 threads
BLOCK = 512


def as_words(name: str, cache: torch.Tensor, num_lead: int) -> torch.Tensor:
    """The cache as `[lead dimensions..., words]`: int32 where a row is whole words, bytes where it is not.

    Everything behind the `num_lead` leading dimensions must be contiguous, and the address divisible by 16 bytes.
    """
    checks.check_alignment_of_address(name, cache)
    row = cache[(0,) * num_lead] if cache.numel() else cache
    if not row.is_contiguous():
        raise LabError(f"{name}: rows have strides {tuple(row.stride())}, accepted are contiguous rows")
    lead = cache.shape[:num_lead]
    flat = cache.as_strided((*lead, row.numel()), (*cache.stride()[:num_lead], 1))
    row_bytes = row.numel() * cache.element_size()
    offsets = [s * cache.element_size() for s in cache.stride()[:num_lead]]
    whole = row_bytes % 4 == 0 and all(offset % 4 == 0 for offset in offsets)
    return flat.view(torch.int32 if whole else torch.int8) if row_bytes else flat


def is_wide(*strides: int) -> bool:
    """True when rows this many words apart start on 16-byte boundaries."""
    return all(stride % 4 == 0 for stride in strides)


@jit
def hint(stride, WIDE: tl.constexpr):
    """The stride, known to be a multiple of 4 words where the launcher has checked it."""
    if WIDE:
        stride = tl.multiple_of(stride, 4)
    return stride
