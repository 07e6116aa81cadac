"""Exercise 14: a Triton kernel for decode attention through a block table. Checked under the interpreter against the
lab's reference in float64, then compiled to machine code, and timed where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.teach.exercises.base import Exercise, Mistake, Picture
from labkit.teach.exercises.kernel_watch import mask_slip, prints_of
from labkit.teach.exercises.strip import counted

TOLERANCE = 2e-5  # float32 kernel against float64
ARCH = 90


def run(my_paged_decode: Callable[..., Any], my_paged_decode_kernel: Any) -> str:
    #        lengths, heads, kv_heads, head_dim, block_size, factor on the scores
    cases = [
        ("one full block", [16], 1, 1, 16, 16, 1.0),
        ("two blocks, out of order in the pool", [32], 1, 1, 16, 16, 1.0),
        ("a last block that is partly filled", [21, 3], 1, 1, 16, 16, 1.0),
        ("grouped queries: 4 heads read 2 KV heads", [16, 40], 4, 2, 16, 8, 1.0),
        ("large scores", [30], 2, 1, 32, 8, 60.0),
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
) -> float:
    import torch

    case = make_case(seed, lengths, num_heads, num_kv_heads, head_dim, block_size, factor)
    expected = reference(**case)
    got = my_paged_decode(**case)
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
    why = _why(case, got, request)
    bars = {
        f"request {r}": {f"head {h}": min(float(error[r, h].nan_to_num(9.0)), 9.0) for h in range(num_heads)}
        for r in range(len(lengths))
    }
    raise Mistake(
        f"'{title}': request {request}, head {head} is off by {float(error[request, head]):.2g}{why}.{mask_slip(my_paged_decode)} "
        f"(lengths {lengths}, {counted(num_heads, 'query heads')} and {counted(num_kv_heads, 'KV heads')} of {head_dim}, blocks of "
        f"{block_size})",
        Picture("bars", "largest error by request and head", bars, {"ylabel": "absolute error"}),
    )


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
) -> dict[str, Any]:
    """A pool in which blocks lie in a random order; slots behind the end of a request hold large garbage."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    needed = [-(-length // block_size) for length in lengths]
    max_blocks, num_blocks = max([1, *needed]) + 1, sum(needed) + 3
    order = torch.randperm(num_blocks - 1, generator=generator) + 1  # block 0 is never anybody's
    tables = torch.randint(0, num_blocks, (len(lengths), max_blocks), generator=generator)
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    k_cache, v_cache = (torch.randn(shape, generator=generator) for _ in range(2))
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
    case = {
        "query": query,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_tables": tables.to(torch.int32),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
    }
    return {**{name: tensor.to(device) for name, tensor in case.items()}, "scale": head_dim**-0.5}


def reference(*, garbage_seen: bool = False, **case: Any) -> Any:
    """The lab's torch reference, in float64."""
    from labkit.kernels.paged_decode import paged_decode_attention_reference

    tensors = {name: case[name].double() for name in ("query", "k_cache", "v_cache")}
    return paged_decode_attention_reference(
        **tensors, block_tables=case["block_tables"], seq_lens=case["seq_lens"].long(), scale=case["scale"]
    )


def _why(case: dict[str, Any], got: Any, request: int) -> str:
    """The classic mistake that gives this request's result, as far as one does."""
    import torch

    q, k, v = case["query"].double(), case["k_cache"].double(), case["v_cache"].double()
    tables, length = case["block_tables"].long(), int(case["seq_lens"][request])
    size, num_heads, num_kv_heads = k.shape[1], q.shape[1], k.shape[2]
    mine = got[request].double()
    if length == 0:
        return (
            ": a request of length 0 attends to nothing and must get zeros (0 / 0 is nan: guard the division)"
        )
    need = -(-length // size)

    def attend(blocks: Any, stop: int, kv_of: list[int], scale: float, rescale: bool = True) -> Any:
        keys, values = k[blocks].flatten(0, 1)[:stop], v[blocks].flatten(0, 1)[:stop]
        rows = []
        for head, kv in enumerate(kv_of):
            scores = keys[:, kv] @ q[request, head] * scale
            if rescale:
                weights = torch.softmax(scores, 0)
            else:  # every block weighted against its own running maximum, earlier sums not shrunk
                top = torch.stack([scores[: min(i // size * size + size, stop)].max() for i in range(stop)])
                weights = torch.exp(scores - top)
                weights = weights / weights.sum()
            rows.append(weights @ values[:, kv])
        return torch.stack(rows)

    blocks, scale = tables[request, :need], case["scale"]
    group = num_heads // num_kv_heads
    right_heads = [head // group for head in range(num_heads)]
    tries: list[tuple[str, Any]] = [
        ("positions behind the end of the request are attended to: mask the last, partly filled block (position < "
         "length)", lambda: attend(blocks, need * size, right_heads, scale)),
        ("the logical block number was used as the block id: load the id from block_tables",
         lambda: attend(torch.arange(need), length, right_heads, scale)),
        ("query head h reads KV head h // group (group = num_heads // num_kv_heads), not h % num_kv_heads",
         lambda: attend(blocks, length, [head % num_kv_heads for head in range(num_heads)], scale)),
        ("all query heads read KV head 0: head h reads KV head h // group",
         lambda: attend(blocks, length, [0] * num_heads, scale)),
        ("the scores are not multiplied by scale", lambda: attend(blocks, length, right_heads, 1.0)),
        ("when a later block has a larger maximum, what was summed so far must be multiplied by exp(old maximum - new "
         "maximum): both the weighted values and the sum of weights",
         lambda: attend(blocks, length, right_heads, scale, rescale=False)),
        ("the last, partly filled block was not read: round the number of blocks up",
         lambda: attend(blocks, length // size * size, right_heads, scale)),
        ("only the first block of the context was read: loop over all ceil(length / block_size) blocks",
         lambda: attend(blocks[:1], min(size, length), right_heads, scale)),
    ]  # fmt: skip
    for text, result in tries:
        try:
            wrong = result()
        except (RuntimeError, IndexError):
            continue
        if bool(((wrong - mine).abs() < 1e-3).all()):
            return f": {text}"
    if bool(mine.isnan().any() or mine.isinf().any()):
        return ": nan or inf: subtract the running maximum before exp (large scores overflow), and keep masked scores at -inf out of a block that is all masked"
    if bool(torch.isfinite(mine).all()) and need > 1:
        return ": with one block it was right, so look at the running maximum, the rescaling and the sum across blocks"
    return ""


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
