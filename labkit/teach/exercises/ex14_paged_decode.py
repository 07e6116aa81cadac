"""Exercise 14: a Triton kernel for decode attention through a block table. Checked under the interpreter against the
lab's reference in float64, then compiled to machine code, and timed where there is a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

from labkit.teach.exercises.base import Exercise, Mistake, Picture
from labkit.teach.exercises.kernel_watch import mask_slip, prints_of
from labkit.teach.exercises.paged_decode_words import why
from labkit.teach.exercises.strip import Piece, counted

TOLERANCE = 2e-5  # float32 kernel against float64
ARCH = 90


def run(my_paged_decode: Callable[..., Any], my_paged_decode_kernel: Any) -> str:
    #        lengths, heads, kv_heads, head_dim, block_size, factor on the scores, around which value they lie
    cases: list[tuple[Any, ...]] = [
        ("one full block", [16], 1, 1, 16, 16, 1.0),
        ("two blocks, out of order in the pool", [32], 1, 1, 16, 16, 1.0),
        ("a last block that is partly filled", [21, 3], 1, 1, 16, 16, 1.0),
        ("grouped queries: 4 heads read 2 KV heads", [16, 40], 4, 2, 16, 8, 1.0),
        ("large scores", [30], 2, 1, 32, 8, 60.0),
        ("scores all around -300", [20, 9], 2, 1, 16, 8, 1.0, -300.0),
        ("a request of length 0 gets zeros", [0, 9], 2, 1, 16, 8, 1.0),
        ("several requests", [1, 17, 33, 64], 4, 1, 32, 16, 3.0),
    ]
    worst = 0.0
    for seed, case in enumerate(cases):
        with prints_of(case[0]):
            worst = max(worst, _check(my_paged_decode, seed, *case))
    return f"{len(cases)} batches agree with float64 to {worst:.0e} (accepted {TOLERANCE:.0e})."


def _check(
    my_paged_decode: Callable[..., Any],
    seed: int,
    title: str,
    lengths: list[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    factor: float,
    around: float = 0.0,
) -> float:
    import torch

    case = make_case(seed, lengths, num_heads, num_kv_heads, head_dim, block_size, factor, around=around)
    expected = reference(**case)
    got, undefined = _run(my_paged_decode, case)
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        shape = getattr(got, "shape", type(got).__name__)
        raise Mistake(
            f"my_paged_decode returned {shape}; return a tensor of query's shape {tuple(expected.shape)}."
        )
    error = (got.double() - expected).abs().amax(-1)  # [requests, heads]
    bad = ~(error <= TOLERANCE)  # also catches nan
    if not bool(bad.any()):
        return float(error.max())
    request, head = (int(i) for i in bad.nonzero()[0])
    cause = why(title, case, got, request, undefined)
    far = float(error[request, head])
    off = "is nan" if far != far else f"is off by {far:.2g}"
    raise Mistake(
        f"'{title}': request {request}, head {head} {off}{': ' if cause else ''}{cause}.{mask_slip(my_paged_decode)} (lengths "
        f"{lengths}, {counted(num_heads, 'query heads')} and {counted(num_kv_heads, 'KV heads')} of {head_dim}, blocks of "
        f"{block_size})",
        _picture(error),
    )


def _run(my_paged_decode: Callable[..., Any], case: dict[str, Any]) -> tuple[Any, set[str]]:
    """The learner's result, and the operations that made nan out of something else ("subtract", "divide"). Memory that nobody
    writes is nan, not whatever lay there."""
    import torch

    def poisoned(make: Callable[..., Any]) -> Callable[..., Any]:
        def empty(*args: Any, **named: Any) -> Any:
            made = make(*args, **named)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return empty

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)
        with (
            mock.patch.object(torch, "empty", poisoned(torch.empty)),
            mock.patch.object(torch, "empty_like", poisoned(torch.empty_like)),
        ):
            got = my_paged_decode(**case)
    texts = [str(w.message) for w in said]
    return got, {text.rpartition(" ")[2] for text in texts if "invalid value encountered in" in text}


def _picture(error: Any) -> Picture:
    """Each output row of [requests, heads] with its largest error; nan is written, not drawn as a number."""
    pieces = []
    for at, value in enumerate(error.flatten().tolist()):
        label = "right" if value <= TOLERANCE else "nan" if value != value else "wrong"
        request, head = divmod(at, error.shape[1])
        text = f"r{request} h{head}" + ("" if label == "right" else f": {value:.2g}")
        pieces.append(Piece(at, 1, label, text))
    title = "largest error of each output row: r = request, h = head"
    return Picture("strip", title, pieces, {"unit": "rows"})


def make_case(
    seed: int,
    lengths: list[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    factor: float,
    *,
    device: str = "cpu",
    garbage: float = 50.0,
    around: float = 0.0,
) -> dict[str, Any]:
    """A pool in which blocks lie in a random order; slots behind the end of a request hold large garbage. `around` != 0: all
    scores lie near it, and are exact in float32 (multiples of small powers of two), so rounding has no part in the error."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    needed = [-(-length // block_size) for length in lengths]
    max_blocks, num_blocks = max([1, *needed]) + 1, sum(needed) + 3
    order = torch.randperm(num_blocks - 1, generator=generator) + 1  # block 0 is never anybody's
    tables = torch.randint(0, num_blocks, (len(lengths), max_blocks), generator=generator)
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    k_cache, v_cache = (torch.randn(shape, generator=generator) for _ in range(2))
    if around:
        k_cache = (k_cache * 8).round() / 8
        k_cache[..., 0] = 8.0
    at = 0
    for request, (length, need) in enumerate(zip(lengths, needed)):
        tables[request, :need] = order[at : at + need]
        at += need
        if length % block_size:
            for cache in (k_cache, v_cache):
                cache[tables[request, need - 1], length % block_size :] = garbage
    if len(lengths) == 1 and needed == [2] and tables[0, 0] < tables[0, 1]:
        low, high = tables[0, 0].clone(), tables[0, 1].clone()
        tables[0, 0], tables[0, 1] = high, low
    query = torch.randn(len(lengths), num_heads, head_dim, generator=generator) * factor
    if around:
        query = (query * 4).round() / 4
        query[..., 0] = around * head_dim**0.5 / 8
    case = {
        "query": query,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_tables": tables.to(torch.int32),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
    }
    return {**{name: tensor.to(device) for name, tensor in case.items()}, "scale": head_dim**-0.5}


def reference(**case: Any) -> Any:
    """The lab's torch reference, in float64."""
    from labkit.kernels.paged_decode import paged_decode_attention_reference

    tensors = {name: case[name].double() for name in ("query", "k_cache", "v_cache")}
    return paged_decode_attention_reference(
        **tensors, block_tables=case["block_tables"], seq_lens=case["seq_lens"].long(), scale=case["scale"]
    )


def afterwards(source: str) -> str:
    """Machine code for an H100, in a child of the worker; then, on a GPU, a time beside the lab's kernel."""
    from labkit.teach.exercises.machine_code import Request, bench_on_gpu, compile_kernel

    types = {"out": "*fp32", "query": "*fp32", "k_cache": "*fp32", "v_cache": "*fp32"}
    types |= {"block_tables": "*i32", "seq_lens": "*i32", "scale": "fp32"}
    constexprs = {"NUM_KV_HEADS": 8, "HEAD_DIM": 128, "BLOCK_SIZE": 16}
    made = compile_kernel(source, Request("my_paged_decode_kernel", types, constexprs, ARCH))
    text = (
        f"Compiled for sm_{ARCH}: {made['registers']} registers a thread, {made['spill_bytes']} bytes of them spilled, "
        f"{100 * made['occupancy']:.0f} % of a multiprocessor's warps."
    )
    return f"{text} {bench_on_gpu(source)}".strip()


EXERCISE = Exercise(
    "14",
    "paged_decode",
    "Triton: decode attention through a block table",
    ("my_paged_decode", "my_paged_decode_kernel"),
    (
        "One program a (request, query head). Load q [HEAD_DIM] once; the KV head is head // (num_heads // NUM_KV_HEADS).",
        "Loop: for i in range(0, tl.cdiv(length, BLOCK_SIZE)): block = tl.load(block_tables + request * max_blocks + i). Row "
        "of a slot: (block * BLOCK_SIZE + offs_n) * NUM_KV_HEADS + kv_head, times HEAD_DIM elements.",
        "seen = i * BLOCK_SIZE + offs_n < length. Load k and v with mask=seen[:, None], other=0.0; scores = tl.sum(q[None, :] * "
        "k, 1) * scale; scores = tl.where(seen, scores, float('-inf')).",
        "Online softmax: new_top = max(top, max(scores)); weights = exp(scores - new_top); shrink = exp(top - new_top); total = "
        "total * shrink + sum(weights); acc = acc * shrink + sum(weights[:, None] * v, 0). Start: top = -inf, total = 0, acc "
        "= 0. End: acc / total (zeros when total is 0).",
    ),
    run,
    time_s=10.0,
    worker=True,
    afterwards=afterwards,
)
