"""Steps about lengths: what a sequence needs, how long one could be, CPU blocks of the swap space, llama.cpp's cells."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.planning.free_text import read_result
from labkit.planning.printed import PrintedLine
from labkit.planning.steps import (
    ONE_RANK,
    Step,
    bytes_per_token,
    derived_bytes,
    interval,
    printed_interval,
    tolerance,
)
from labkit.units import GIB, MIB

#: vLLM's default swap space for CPU blocks
SWAP_BYTES = 4 * GIB


def length_steps(line: PrintedLine) -> Iterator[Step]:
    """Every one that the line has both sides for."""
    per_token = bytes_per_token(line)
    if per_token is not None:
        yield from _lengths(line, per_token)
    yield from _llama_cpp(line)


def _lengths(line: PrintedLine, per_token: float) -> Iterator[Step]:
    """What a length needs, how long a sequence would fit, CPU blocks of the swap space."""
    numbers, length = line.numbers, line.max_model_len
    if "needs_gib" in numbers and length is not None:
        planned = length * per_token / GIB
        formula = f"{length:,} x {per_token:,.0f} B"
        yield Step(
            "needs_gib",
            numbers["needs_gib"],
            planned,
            formula,
            ONE_RANK,
            *interval(planned, numbers["needs_gib"]),
        )
    if "kv_gib" in numbers and "kv_tokens" not in numbers:
        tokens = numbers.get("tokens")
        if (
            tokens is None
            and line.gpu is None
            and not (line.ledger or line.blocks or "concurrency" in numbers)
        ):
            tokens = length or numbers.get("n_ctx")
        if tokens is not None:
            yield _sequence_gib(line, per_token, tokens)
    if "needs_gib" in numbers and "available_gib" in numbers and (said := read_result(line.result)):
        needs, available = numbers["needs_gib"], numbers["available_gib"]
        planned_result = "refused" if needs > available else "served"
        yield Step("result", said, planned_result, f"needs {needs:g} GiB, has {available:g} GiB")
    if "available_gib" in numbers and "estimated_max_len" in numbers:
        yield _estimated_max_len(line, per_token)
    if "cpu_blocks" in numbers:
        swap = round(numbers["swap_gib"] * GIB) if "swap_gib" in numbers else SWAP_BYTES
        formula = f"floor({swap / GIB:g} GiB / ({line.block_size} x {per_token:,.0f} B))"
        if "per_token_bytes" not in numbers and line.model is not None and "tp" not in numbers:
            per_token, formula = _swap_ranks(line, per_token, formula)
        planned = swap // (line.block_size * per_token)
        yield Step("cpu_blocks", numbers["cpu_blocks"], planned, formula, ONE_RANK)


def _sequence_gib(line: PrintedLine, per_token: float, tokens: float) -> Step:
    """GiB that sequences need, as printed by calculators: every layer keeps all, or a sliding layer its window."""
    printed, seqs = line.numbers["kv_gib"], line.numbers.get("n_seq", 1)
    planned, formula = (
        seqs * tokens * per_token / GIB,
        f"{seqs:g} x {tokens:,.0f} tokens x {per_token:,.0f} B",
    )
    if line.model is not None and line.model.num_layers_of("sliding"):
        ideal = seqs * line.model.kv_bytes_of_sequence(int(tokens), line.kv_dtype, line.tp) / GIB
        if abs(ideal - printed) < abs(planned - printed):
            planned, formula = ideal, formula + ", sliding layers keep their window"
    return Step("kv_gib of the tokens", printed, planned, formula, ONE_RANK, *interval(planned, printed))


def _estimated_max_len(line: PrintedLine, per_token: float) -> Step:
    """Floor to a block; some backends use larger ones than 16 and the line shows which (a power of two)."""
    available, printed = line.numbers["available_gib"], line.numbers["estimated_max_len"]
    low, high = printed_interval(available)

    def longest(amount: float, size: int) -> float:
        return amount * GIB / per_token // size * size

    sizes = [line.block_size]
    if abs(longest(available, line.block_size) / printed - 1) > tolerance(line):
        sizes += [2**k for k in range(5, 10) if longest(available, 2**k) == printed]
    size = sizes[-1] if len(sizes) == 1 else sizes[1]
    formula = f"{available:g} GiB / {per_token:,.0f} B, whole blocks of {size}"
    return Step(
        "estimated_max_len",
        printed,
        longest(available, size),
        formula,
        tolerance(line),
        longest(low, size),
        longest(high, size),
    )


def _swap_ranks(line: PrintedLine, per_token: float, formula: str) -> tuple[float, str]:
    """A line that hides its number of ranks: CPU blocks tell it, since each rank has its own 4 GiB."""
    assert line.model is not None
    for tp in (1, 2, 4, 8):
        share = line.model.kv_bytes_per_token(line.kv_dtype, tp)
        if SWAP_BYTES // (line.block_size * share) == line.numbers["cpu_blocks"]:
            return share, f"floor(4 GiB / ({line.block_size} x {share:,.0f} B)), which means tp {tp}"
    return per_token, formula


def _llama_cpp(line: PrintedLine) -> Iterator[Step]:
    """llama.cpp keeps K and V apart, `n_ctx` cells a sequence in full layers and `swa_cells` in sliding ones."""
    numbers, model = line.numbers, line.model
    if model is None or model.mla is not None:
        return
    if not derived_bytes(line):
        return
    half = model.kv_bytes_per_token_per_layer(line.kv_dtype, line.tp) / 2
    seqs = numbers.get("n_seq", 1)
    full = numbers.get("full_layers", model.num_layers_of("full"))
    if "n_ctx" in numbers:
        for name in ("K_mib", "V_mib"):
            if name in numbers:
                planned = full * half * numbers["n_ctx"] * seqs / MIB
                yield Step(
                    name, numbers[name], planned, f"{full:g} layers x {half:g} B x n_ctx x {seqs:g}", ONE_RANK
                )
        if "kv_mib" in numbers:
            planned = 2 * full * half * numbers["n_ctx"] * seqs / MIB
            yield Step(
                "kv_mib",
                numbers["kv_mib"],
                planned,
                f"K and V, {full:g} layers x {half:g} B x n_ctx",
                ONE_RANK,
            )
    if "swa_cells" in numbers and "swa_mib" in numbers:
        layers = model.num_layers - full
        planned = 2 * layers * half * numbers["swa_cells"] * seqs / MIB
        yield Step(
            "swa_mib",
            numbers["swa_mib"],
            planned,
            f"K and V, {layers:g} layers, {seqs:g} sequences",
            ONE_RANK,
        )
