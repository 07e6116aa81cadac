"""What a launcher checks before it launches. Each failure is one `LabError` sentence naming argument and index.

A wrong block id does not crash a kernel: it reads somebody else's KV, or memory that is not KV at all. Checks of values
(ids, lengths, slots) read the tensors, which on a GPU waits for the device; callers that have checked on the host pass
`validate=False`. Checks of shapes, dtypes and strides cost nothing and cannot be switched off.
"""

from __future__ import annotations

import torch

from labkit.errors import LabError
from labkit.kernels.quantize import is_quantized

#: Triton is told that these quantities are divisible by 16 (elements for strides, bytes for addresses); see `specs.py`.
ALIGNMENT = 16
INDEX_DTYPES = (torch.int32, torch.int64)


def fail(argument: str, problem: str) -> LabError:
    """The error for an argument, to be raised."""
    return LabError(f"{argument}: {problem}")


def check_rank(argument: str, tensor: torch.Tensor, names: str) -> None:
    """`names` is the expected shape in words, `"num_requests, num_heads, head_dim"`."""
    if tensor.dim() != names.count(",") + 1:
        raise fail(argument, f"has {tensor.dim()} dimensions, accepted is [{names}]")


def check_index(argument: str, tensor: torch.Tensor, length: int | None = None, per: str = "request") -> None:
    """A vector or matrix of int32 or int64 with `length` rows, one `per` request or token."""
    if tensor.dtype not in INDEX_DTYPES:
        raise fail(argument, f"has dtype {tensor.dtype}, accepted are torch.int32 and torch.int64")
    if length is not None and len(tensor) != length:
        raise fail(argument, f"has {len(tensor)} entries, accepted is one for each {per} ({length})")


def check_devices(**tensors: torch.Tensor | None) -> None:
    """All tensors on the device of the first."""
    given = {name: t for name, t in tensors.items() if t is not None}
    first_name, first = next(iter(given.items()))
    for name, tensor in given.items():
        if tensor.device != first.device:
            raise fail(
                name, f"is on {tensor.device}, accepted is the device of {first_name} ({first.device})"
            )


def check_cache_pair(
    k_cache: torch.Tensor, v_cache: torch.Tensor, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None
) -> None:
    """K and V alike, and a scale per token and KV head exactly when they are quantised."""
    if v_cache.dtype != k_cache.dtype:
        raise fail(
            "v_cache", f"has dtype {v_cache.dtype}, accepted is the dtype of k_cache ({k_cache.dtype})"
        )
    if v_cache.shape != k_cache.shape:
        raise fail(
            "v_cache",
            f"has shape {list(v_cache.shape)}, accepted is the shape of k_cache {list(k_cache.shape)}",
        )
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if not is_quantized(k_cache.dtype):
            if scale is not None:
                raise fail(
                    name, f"was given for a cache of {k_cache.dtype}; only int8 and float8_e4m3fn have scales"
                )
        elif scale is None:
            raise fail(name, f"is missing; a cache of {k_cache.dtype} needs one scale per token and KV head")
        elif scale.shape != k_cache.shape[:-1] or scale.dtype != torch.float32:
            raise fail(
                name,
                f"is {scale.dtype} {list(scale.shape)}, accepted is torch.float32 {list(k_cache.shape[:-1])}",
            )


def check_query(query: torch.Tensor, k_cache: torch.Tensor) -> None:
    """Dtype, head count and head_dim of `query [rows, num_heads, head_dim]` against the cache."""
    check_rank("query", query, "rows, num_heads, head_dim")
    if not is_quantized(k_cache.dtype) and query.dtype != k_cache.dtype:
        raise fail("query", f"has dtype {query.dtype}, accepted is the dtype of k_cache ({k_cache.dtype})")
    if query.shape[-1] != k_cache.shape[-1]:
        raise fail(
            "query", f"has head_dim {query.shape[-1]}, accepted is that of k_cache ({k_cache.shape[-1]})"
        )
    num_heads, num_kv_heads = query.shape[1], k_cache.shape[-2]
    if num_heads % num_kv_heads:
        raise fail(
            "query",
            f"has {num_heads} heads, accepted is a multiple of the {num_kv_heads} KV heads of k_cache",
        )


def check_scale_and_window(scale: float, window: int | None) -> None:
    """`scale` is positive; `window` is None or a number of tokens from 1 up."""
    if not scale > 0:
        raise fail("scale", f"is {scale}, accepted is a positive number such as head_dim ** -0.5")
    if window is not None and window < 1:
        raise fail("window", f"is {window}, accepted is None or a number of tokens from 1 up")


def check_lengths(seq_lens: torch.Tensor) -> None:
    """No length in `seq_lens [num_requests]` is negative."""
    check_all("seq_lens", seq_lens >= 0, seq_lens, "is negative ({value}), accepted are lengths from 0 up")


def check_block_tables(
    block_tables: torch.Tensor, seq_lens: torch.Tensor, num_blocks: int, block_size: int, starts: torch.Tensor
) -> None:
    """Rows long enough for `seq_lens`, and every id that will be read in `[0, num_blocks)`.

    Only blocks holding positions `[starts, seq_lens)` are read: what lies behind may be garbage, and with a sliding
    window what lies before may have been recycled.
    """
    check_lengths(seq_lens)
    num_used = (seq_lens + block_size - 1) // block_size
    width = block_tables.shape[1]
    if bool((num_used > width).any()):
        row = int((num_used > width).nonzero()[0, 0])
        raise fail(
            f"block_tables[{row}]",
            f"has {width} blocks of {block_size} tokens, too short for seq_lens[{row}] = {int(seq_lens[row])}",
        )
    columns = torch.arange(width, device=block_tables.device)
    read = (columns >= (starts // block_size)[:, None]) & (columns < num_used[:, None])
    good = ((block_tables >= 0) & (block_tables < num_blocks)) | ~read
    check_all(
        "block_tables",
        good,
        block_tables,
        f"block id {{value}} is out of range, the cache has {num_blocks} blocks",
    )


def check_all(argument: str, good: torch.Tensor, values: torch.Tensor, problem: str) -> None:
    """Raise for the first false entry of `good`, naming its index; `problem` may use `{value}`."""
    if bool(good.all()):
        return
    index = (~good).nonzero()[0].tolist()
    value = values[tuple(index)].item()
    raise fail(f"{argument}[{', '.join(map(str, index))}]", problem.format(value=value))


def check_alignment(**tensors: torch.Tensor | None) -> None:
    """What the 16-byte loads rest on: address divisible by 16 bytes, the last dimension contiguous, every other stride
    divisible by 16 elements. (Dimensions of size 1 have no stride that matters.)"""
    for name, tensor in tensors.items():
        if tensor is None or tensor.numel() == 0:
            continue
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise fail(name, f"stride of dimension {tensor.dim() - 1} is {tensor.stride(-1)}, accepted is 1")
        for dim in range(tensor.dim() - 1):
            if tensor.shape[dim] > 1 and tensor.stride(dim) % ALIGNMENT:
                raise fail(
                    name,
                    f"stride of dimension {dim} is {tensor.stride(dim)} elements, accepted are multiples of {ALIGNMENT}",
                )
        check_alignment_of_address(name, tensor)


def check_alignment_of_address(name: str, tensor: torch.Tensor) -> None:
    """The first element lies on a 16-byte boundary."""
    if tensor.data_ptr() % ALIGNMENT:
        raise fail(name, f"starts {tensor.data_ptr() % ALIGNMENT} bytes off a {ALIGNMENT}-byte boundary")


def check_contiguous(**tensors: torch.Tensor | None) -> None:
    """Scales and index vectors are addressed without strides."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_contiguous():
            raise fail(name, f"has strides {tuple(tensor.stride())}, accepted is a contiguous tensor")


def check_rows_contiguous(name: str, tensor: torch.Tensor) -> None:
    """A matrix whose rows are contiguous; the rows themselves may be strided."""
    if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise fail(name, f"stride of dimension {tensor.dim() - 1} is {tensor.stride(-1)}, accepted is 1")
