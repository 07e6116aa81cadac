"""Exercise 14's words: which classic mistake gives this wrong result, and where to look when none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Case = dict[str, Any]
CLOSE = 1e-3
#: what a batch is about, for results that no classic mistake explains
LOOK = {
    "one full block": "look at the addresses of q and of the output, at the scores (one a slot: a sum over HEAD_DIM), and at acc / "
    "total at the end",
    "two blocks, out of order in the pool": "with one block it was right, so look at the running maximum, the rescaling and the sum "
    "across blocks",
    "a last block that is partly filled": "full blocks of one request were right, so look at the mask of the last block (masked slots "
    "need score -inf; a load with other=0.0 gives score 0 and so weight exp(0 - top)), and at the offsets by request",
    "grouped queries: 4 heads read 2 KV heads": "one head was right, so check the offsets by head, KV head and slot (the cache layout "
    "is [block, slot, kv_head])",
    "large scores": "small scores were right, so look at the running maximum, and at what is shrunk when it grows",
    "scores all around -300": "scores around 0 were right, so look at where the running maximum starts",
    "several requests": "look at the offsets by request and by head",
}  # fmt: skip
ZERO_LENGTH = "a request of length 0 attends to nothing and must get zeros"
MASKED = "masked slots have score 0 and so weight exp(0 - top); give them -inf"


def why(title: str, case: Case, got: Any, request: int, undefined: set[str]) -> str:
    """`undefined`: operations of the run that gave nan out of something else, such as "subtract" and "divide"."""
    import torch

    mine, length = got[request].double(), int(case["seq_lens"][request])
    if bool(mine.isnan().any()) and (said := _nan(title, length, undefined)):
        return said
    if length == 0:
        written = "" if not bool(mine.isnan().any()) else " (yours were not written)"
        return f"{ZERO_LENGTH}{written}"
    if title == "scores all around -300" and not bool(mine.any()):
        return TOP_AT_ZERO
    for text, result in _tries(case, request, length):
        try:
            wrong = result()
        except (RuntimeError, IndexError):
            continue
        if wrong.shape == mine.shape and bool(((wrong - mine).abs() < CLOSE).all()):
            return text
    if not bool(torch.isfinite(mine).all()):
        return (
            "nan or inf: subtract the running maximum before exp (large scores overflow), and shrink by exp(old maximum - new maximum), "
            "which is at most 1"
        )
    return LOOK.get(title, "")


TOP_AT_ZERO = "the running maximum must start at -inf: where it starts at 0, every weight is exp(-300 - 0), which is 0 in float32"


def _nan(title: str, length: int, undefined: set[str]) -> str:
    if "subtract" in undefined and length == 0:
        return (
            f"{ZERO_LENGTH}; a block that is masked throughout gives exp(-inf - -inf) = nan: go through the ceil(length / BLOCK_SIZE) "
            "blocks in use only, not through max_blocks"
        )
    if "subtract" in undefined:
        return (
            "exp(-inf - -inf) is nan: after the first block, which has slots that are not masked, the running maximum must no longer "
            "be -inf"
        )
    if title == "scores all around -300":
        return TOP_AT_ZERO
    if length == 0 and undefined & {"divide", "multiply"}:
        return f"{ZERO_LENGTH} (0 / 0, or 0 times 1 / 0, is nan: guard the division)"
    return ""


def _tries(case: Case, request: int, length: int) -> list[tuple[str, Callable[[], Any]]]:
    import torch

    q, k, v = case["query"].double(), case["k_cache"].double(), case["v_cache"].double()
    tables, scale = case["block_tables"].long(), case["scale"]
    num_blocks, size, num_kv_heads, dim = k.shape
    num_heads, need = q.shape[1], -(-length // size)
    group = num_heads // num_kv_heads
    heads, blocks = [head // group for head in range(num_heads)], tables[request, :need]
    flat = tables.flatten()

    def weigh(scores: Any, values: Any) -> Any:
        return torch.softmax(scores, 0) @ values

    def attend(
        blocks: Any = blocks,
        stop: int = length,
        kv_of: list[int] = heads,
        scale: float = scale,
        weigh: Callable[[Any, Any], Any] = weigh,
        pool: tuple[Any, Any] = (k, v),
        score: Callable[[Any, Any], Any] = torch.matmul,
    ) -> Any:
        keys, values = (cache[blocks].flatten(0, 1)[:stop] for cache in pool)
        rows = [weigh(score(keys[:, kv], q[request, h]) * scale, values[:, kv]) for h, kv in enumerate(kv_of)]
        return torch.stack(rows)

    def tops(scores: Any) -> Any:
        """The running maximum at each slot's block."""
        ends = [min(i // size * size + size, len(scores)) for i in range(len(scores))]
        return torch.stack([scores[:end].max() for end in ends])

    def neither(scores: Any, values: Any) -> Any:
        weights = torch.exp(scores - tops(scores))
        return weights / weights.sum() @ values

    def only_one(shrunk: str) -> Callable[[Any, Any], Any]:
        def weigh(scores: Any, values: Any) -> Any:
            plain, right = torch.exp(scores - tops(scores)), torch.exp(scores - scores.max())
            acc, total = (right, plain) if shrunk == "acc" else (plain, right)
            return acc @ values / total.sum()

        return weigh

    def undivided(scores: Any, values: Any) -> Any:
        return torch.exp(scores - scores.max()) @ values

    def zeros_seen(with_values: bool) -> Callable[[Any, Any], Any]:
        def weigh(scores: Any, values: Any) -> Any:
            inside = torch.arange(len(scores)) < length
            return torch.softmax(scores * inside, 0) @ (values if with_values else values * inside[:, None])

        return weigh

    swapped = tuple(cache.reshape(num_blocks, num_kv_heads, size, dim).transpose(1, 2) for cache in (k, v))
    wrong_sum = (
        "sum over the wrong axis: the {} are [BLOCK_SIZE, HEAD_DIM]; {} (this batch has BLOCK_SIZE = HEAD_DIM, so the shapes fit "
        "either way)"
    )
    rest = need * size
    tries: list[tuple[str, Callable[[], Any]]] = [
        ("positions behind the end of the request are attended to: mask the last, partly filled block (position < "
         "length)", lambda: attend(stop=rest)),
        (MASKED, lambda: attend(stop=rest, weigh=zeros_seen(False))),
        (f"{MASKED}, and mask the load of v", lambda: attend(stop=rest, weigh=zeros_seen(True))),
        ("the logical block number was used as the block id: load the id from block_tables",
         lambda: attend(torch.arange(need))),
        ("the table of request 0 was read: row r of block_tables begins at r * max_blocks",
         lambda: attend(tables[0, :need])),
        ("rows of block_tables are max_blocks entries apart: entry i of request r is r * max_blocks + i, not r + i",
         lambda: attend(flat[request : request + need])),
        ("query head h reads KV head h // group (group = num_heads // num_kv_heads), not h % num_kv_heads",
         lambda: attend(kv_of=[head % num_kv_heads for head in range(num_heads)])),
        ("all query heads read KV head 0: head h reads KV head h // group", lambda: attend(kv_of=[0] * num_heads)),
        ("the cache was read as [block, kv_head, slot]; its layout is [block, slot, kv_head]: slot s of a block and KV head j is row "
         "(block * BLOCK_SIZE + s) * NUM_KV_HEADS + j", lambda: attend(pool=(swapped[0], swapped[1]))),
        ("the scores are not multiplied by scale", lambda: attend(scale=1.0)),
        ("the sum is not divided by the sum of the weights: the result is acc / total", lambda: attend(weigh=undivided)),
        (wrong_sum.format("products q * k", "a score sums over HEAD_DIM, axis 1"),
         lambda: attend(score=lambda keys, one: keys.sum(0) * one)),
        (wrong_sum.format("weighted values", "acc sums over the slots, axis 0"),
         lambda: attend(weigh=lambda scores, values: torch.softmax(scores, 0) * values.sum(1))),
        ("when a later block has a larger maximum, what was summed so far must be multiplied by exp(old maximum - new "
         "maximum): both the weighted values and the sum of weights", lambda: attend(weigh=neither)),
        ("acc is shrunk when the maximum grows, total is not: both must be multiplied by exp(old maximum - new maximum)",
         lambda: attend(weigh=only_one("acc"))),
        ("total is shrunk when the maximum grows, acc is not: both must be multiplied by exp(old maximum - new maximum)",
         lambda: attend(weigh=only_one("total"))),
        ("the last, partly filled block was not read: round the number of blocks up",
         lambda: attend(stop=length // size * size)),
        ("only the first block of the context was read: loop over all ceil(length / block_size) blocks",
         lambda: attend(blocks[:1], min(size, length))),
    ]  # fmt: skip
    return tries
