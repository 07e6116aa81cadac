"""What the four copying kernels share: rows of any dtype seen as 4-byte words, copied 16 bytes at a time.

Copies do not care what the bytes mean. A row is cut into pieces of `BLOCK` words, one program a piece. Where rows are a
multiple of 16 bytes apart (keys and values always are) the strides are passed in units of 16 bytes and the kernel moves
16 bytes an instruction; rows of scales may be shorter and move word by word.
"""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels import checks

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


def unit_of(*counts: int) -> int:
    """4 when all counts (strides, row lengths) are whole 16-byte pieces, else 1 word: what the kernels count them in.

    A kernel multiplies by its constant `UNIT`, which is how the compiler knows that rows start on 16-byte boundaries.
    """
    return 4 if all(count % 4 == 0 for count in counts) else 1
