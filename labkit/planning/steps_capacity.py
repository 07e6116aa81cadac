"""Steps about a server's pool: GiB from the budget, blocks and tokens from GiB, concurrency from tokens."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.planning.free_text import read_result
from labkit.planning.kv_groups import KVGroups
from labkit.planning.printed import PrintedLine
from labkit.planning.steps import (
    ONE_RANK,
    Step,
    bytes_per_token,
    derived_bytes,
    hybrid_groups,
    interval,
    printed_interval,
    tolerance,
)
from labkit.units import GIB

#: what a layer's sliding window may see beyond itself is one step's tokens: engines' usual budgets
BATCHED_TOKENS = (2048, 8192, 16384)


def capacity_steps(line: PrintedLine) -> Iterator[Step]:
    """Every one that the line has both sides for."""
    per_token = bytes_per_token(line)
    yield from _bytes_per_token(line)
    yield from budget_steps(line)
    if per_token is not None:
        yield from _blocks_and_tokens(line, per_token)
    yield from _tokens_from_blocks(line)
    yield from _concurrency(line)


def _bytes_per_token(line: PrintedLine) -> Iterator[Step]:
    printed = line.numbers.get("per_token_bytes")
    options = derived_bytes(line)
    if printed is None or not options:
        return
    name = next((n for n, value in options.items() if value == printed), next(iter(options)))
    yield Step(
        "bytes_per_token",
        printed,
        options[name],
        f"{name}, {line.kv_dtype}, tp {line.tp}" + (f", pp {line.pp}" if line.pp > 1 else ""),
    )


def budget_steps(line: PrintedLine) -> Iterator[Step]:
    """GiB from the budget: budget - (weights + activation peak, or the peak of PyTorch) - non-torch (- graphs)."""
    ledger, per_token = line.ledger, bytes_per_token(line)
    budget = ledger.get("budget")
    formula = f"{budget} GiB"
    if budget is None and line.total_gib is not None and line.utilisation is not None:
        budget = line.total_gib * line.utilisation
        formula = f"{line.total_gib:g} x {line.utilisation:g}"
    used = [n for n in ("peak_torch",) if n in ledger] or [
        n for n in ("weights", "peak_activation") if n in ledger
    ]
    if "free_after" in ledger and line.utilisation is not None and "kv_gib" in line.numbers:
        yield from _free_memory(line, line.utilisation)
        return
    if budget is None or "non_torch" not in ledger or (used[:1] != ["peak_torch"] and len(used) < 2):
        return
    parts = [*used, "non_torch"]
    planned = budget - sum(ledger[n] for n in parts)
    printed_gib = line.numbers.get("kv_gib")
    if "cuda_graphs" in ledger and printed_gib is not None:
        # releases differ in whether the graphs lie inside the budget; the printed number says which this was
        inside = planned - ledger["cuda_graphs"]
        if abs(inside - printed_gib) < abs(planned - printed_gib):
            planned, parts = inside, [*parts, "cuda_graphs"]
    formula += "".join(f" - {ledger[n]:g} {n}" for n in parts)
    if "kv_gib" in line.numbers:
        yield Step(
            "kv_gib",
            line.numbers["kv_gib"],
            planned,
            formula,
            tolerance(line),
            *interval(planned, line.numbers["kv_gib"]),
        )
    elif len(line.blocks) == 1 and per_token:
        block_gib = per_token * line.block_size / GIB
        (printed,) = line.blocks.values()
        yield Step("gpu_blocks from the budget", printed, planned // block_gib, formula, tolerance(line))


def _free_memory(line: PrintedLine, fraction: float) -> Iterator[Step]:
    """SGLang and TensorRT-LLM count from free memory: after loading less the share kept back, or a share of it."""
    ledger, printed = line.ledger, line.numbers["kv_gib"]
    after = ledger["free_after"]
    if line.engine == "sglang" and "free_before" in ledger:
        planned = after - (1 - fraction) * ledger["free_before"]
        formula = f"{after:g} - (1 - {fraction:g}) x {ledger['free_before']:g}"
    elif line.engine == "tensorrt_llm":
        planned, formula = fraction * after, f"{fraction:g} x {after:g} free"
    else:
        return
    yield Step("kv_gib", printed, planned, formula, tolerance(line), *interval(planned, printed))


def _blocks_and_tokens(line: PrintedLine, per_token: float) -> Iterator[Step]:
    """Blocks and tokens from GiB: floor to whole blocks; a hybrid model prints blocks / groups x block size."""
    gib, size = line.numbers.get("kv_gib"), line.block_size
    if gib is None:
        return
    low, high = printed_interval(gib)

    def blocks(amount: float) -> float:
        return amount * GIB // (per_token * size)

    if len(line.blocks) == 1:
        (printed,) = line.blocks.values()
        formula = f"floor({gib:g} GiB / ({size} x {per_token:,.0f} B))"
        yield Step(
            "gpu_blocks from kv_gib",
            printed,
            blocks(gib),
            formula,
            tolerance(line),
            blocks(low),
            blocks(high),
        )
    if "kv_tokens" not in line.numbers:
        return
    printed = line.numbers["kv_tokens"]
    rules = [(blocks, f"floor({gib:g} GiB / ({size} x {per_token:,.0f} B)) x {size}")]
    groups = hybrid_groups(line)
    if groups is not None:
        group_block = groups.bytes_per_token * (groups.block_size or size)
        rules.append(
            (
                lambda amount: (
                    amount * GIB // group_block // groups.num_groups * (groups.block_size or size) / size
                ),
                f"floor({gib:g} GiB / {group_block:,} B) / {groups.num_groups} groups x {groups.block_size or size}",
            )
        )
    rule, formula = min(rules, key=lambda r: abs(r[0](gib) * size - printed))
    yield Step(
        "kv_tokens from kv_gib",
        printed,
        rule(gib) * size,
        formula,
        tolerance(line),
        rule(low) * size,
        rule(high) * size,
    )


def _tokens_from_blocks(line: PrintedLine) -> Iterator[Step]:
    if len(line.blocks) == 1 and "kv_tokens" in line.numbers:
        (blocks,) = line.blocks.values()
        formula = f"{blocks:,.0f} x {line.block_size}"
        yield Step("kv_tokens from gpu_blocks", line.numbers["kv_tokens"], blocks * line.block_size, formula)


def _concurrency(line: PrintedLine) -> Iterator[Step]:
    """Concurrency from tokens; a model of several groups divides blocks by what one request holds in all of them."""
    tokens, length = line.numbers.get("kv_tokens"), line.max_model_len
    if tokens is None and len(line.blocks) == 1:
        tokens = next(iter(line.blocks.values())) * line.block_size
    if tokens is None or length is None:
        return
    printed = line.numbers.get("concurrency")
    if printed is not None:
        planned, formula = tokens / length, f"{tokens:,.0f} / {length:,}"
        groups = hybrid_groups(line)
        if groups is not None and abs(planned / printed - 1) > ONE_RANK:
            planned, formula = _hybrid_concurrency(line, groups, tokens, length, printed)
        low, high = interval(planned, printed)
        yield Step("concurrency", printed, planned, formula, ONE_RANK, low, high)
    said = read_result(line.result)
    if (
        said is not None and hybrid_groups(line) is None
    ):  # groups share blocks: fewer tokens may still hold one request
        planned_result = "refused" if tokens < length else "served"
        yield Step("result", said, planned_result, f"{tokens:,.0f} tokens, max_model_len {length:,}")


def _hybrid_concurrency(
    line: PrintedLine, groups: KVGroups, tokens: float, length: int, printed: float
) -> tuple[float, str]:
    """Blocks divided by what a request holds. The token line rounds blocks down to whole groups, so up to one group of
    blocks less one may be there beside it; the step's tokens are not printed and the usual ones are tried."""
    size = groups.block_size or line.block_size
    least = int(tokens // size) * groups.num_groups
    options = {
        (blocks, n): blocks / groups.blocks_per_request(length, size, n)
        for blocks in range(least, least + groups.num_groups)
        for n in BATCHED_TOKENS
    }
    best = min(options, key=lambda option: abs(options[option] - printed))
    return options[
        best
    ], f"{groups.num_groups} groups, {best[0]:,} blocks of {size}, {best[1]:,} batched tokens"
