"""The steps between the numbers of a printed line. Each is one rule of an engine; `test_steps` applies those for which
the line has both sides, `estimate_steps` fills missing terms with the planner's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError
from labkit.models.parallel import Parallel
from labkit.models.quantization import Quantization
from labkit.models.spec import ModelSpec
from labkit.planning.engines import collect_terms, rank_budget
from labkit.planning.kv_groups import KVGroups, kv_groups
from labkit.planning.printed import PrintedLine
from labkit.planning.request import PlanRequest
from labkit.units import GIB, MIB

ONE_RANK, ACROSS_RANKS, ESTIMATE = 0.002, 0.015, 0.12
#: vLLM's default swap space for CPU blocks
SWAP_BYTES = 4 * GIB
#: what a layer's sliding window may see beyond itself is one step's tokens: engines' usual budgets
BATCHED_TOKENS = (2048, 8192, 16384)


@dataclass(frozen=True, slots=True)
class Step:
    """`printed` and `planned` in the unit of `name`; `low` and `high` is what passes as equal to the printed one."""

    name: str
    printed: float | str
    planned: float | str
    formula: str
    tolerance: float = 0.0
    low: float | None = None
    high: float | None = None

    @property
    def deviation(self) -> float:
        """planned / printed - 1; 0 for words that agree."""
        if isinstance(self.printed, str) or isinstance(self.planned, str):
            return 0.0 if self.printed == self.planned else float("inf")
        return self.planned / self.printed - 1.0

    @property
    def holds(self) -> bool:
        if isinstance(self.printed, str) or isinstance(self.planned, str):
            return self.printed == self.planned
        if abs(self.deviation) <= self.tolerance:
            return True
        return self.low is not None and self.high is not None and self.low <= self.printed <= self.high

    @property
    def range(self) -> tuple[float, float] | None:
        """Planned less and plus the tolerance."""
        if isinstance(self.planned, str):
            return None
        return self.planned * (1 - self.tolerance), self.planned * (1 + self.tolerance)

    def as_dict(self) -> dict[str, Any]:
        return {
            "step": self.name,
            "printed": self.printed,
            "planned": self.planned,
            "deviation_percent": round(100 * self.deviation, 4) if abs(self.deviation) < 1e6 else None,
            "tolerance_percent": 100 * self.tolerance,
            "range": self.range,
            "holds": self.holds,
            "formula": self.formula,
        }


def test_steps(line: PrintedLine) -> Iterator[Step]:
    """Every step that the line's own terms allow."""
    per_token = bytes_per_token(line)
    yield from _bytes_per_token(line)
    yield from _budget(line, per_token)
    if per_token is not None:
        yield from _blocks_and_tokens(line, per_token)
        yield from _lengths(line, per_token)
    yield from _tokens_from_blocks(line)
    yield from _concurrency(line)
    yield from _llama_cpp(line)


def bytes_per_token(line: PrintedLine) -> float | None:
    """Bytes a token on one rank: derived from the model where it is known, else as the line says."""
    options = _derived_bytes(line)
    printed = line.numbers.get("per_token_bytes")
    if not options:
        return printed
    return printed if printed in options.values() else next(iter(options.values()))


def _derived_bytes(line: PrintedLine) -> dict[str, float]:
    """All layers; for models with sliding layers also what one hybrid group takes and full layers alone."""
    model = line.model
    if model is None:
        return {}
    try:
        per_layer = model.kv_bytes_per_token_per_layer(line.kv_dtype, line.tp)
    except LabError:  # ranks that this model cannot be cut into
        return {}
    if line.num_kv_layers is not None:
        return {f"{line.num_kv_layers} KV layers": line.num_kv_layers * per_layer}
    options = {"all layers": float(model.kv_bytes_per_token(line.kv_dtype, line.tp))}
    if model.num_layers_of("sliding"):
        options["full-attention layers"] = float(
            model.kv_bytes_per_token(line.kv_dtype, line.tp, full_attention_only=True)
        )
        options["one hybrid group"] = float(kv_groups(model, line.kv_dtype, line.tp).bytes_per_token)
    if model.mla is not None and line.kv_dtype == "fp8":
        # vLLM's fp8_ds_mla: 512 fp8 values, four float32 scales, 64 rotary values in 16 bit
        options["fp8 latent, 16-bit rotary"] = 656.0 * model.num_layers
    return {name: value for name, value in options.items() if value}


def _bytes_per_token(line: PrintedLine) -> Iterator[Step]:
    printed = line.numbers.get("per_token_bytes")
    options = _derived_bytes(line)
    if printed is None or not options:
        return
    name = next((n for n, value in options.items() if value == printed), next(iter(options)))
    yield Step("bytes_per_token", printed, options[name], f"{name}, {line.kv_dtype}, tp {line.tp}")


def _tolerance(line: PrintedLine) -> float:
    return ONE_RANK if line.num_ranks == 1 else ACROSS_RANKS


def _budget(line: PrintedLine, per_token: float | None) -> Iterator[Step]:
    """GiB from the budget: budget - (weights + activation peak, or the peak of PyTorch) - non-torch (- graphs)."""
    ledger = line.ledger
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
            _tolerance(line),
            *_interval(planned, line.numbers["kv_gib"]),
        )
    elif len(line.blocks) == 1 and per_token:
        block_gib = per_token * line.block_size / GIB
        (printed,) = line.blocks.values()
        yield Step("gpu_blocks from the budget", printed, planned // block_gib, formula, _tolerance(line))


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
    yield Step("kv_gib", printed, planned, formula, _tolerance(line), *_interval(planned, printed))


def _printed_gib(value: float) -> tuple[float, float]:
    """A number with two decimals (or as many as it shows) stands for an interval."""
    decimals = max(2, len(str(value).partition(".")[2]))
    half = 0.5 * 10.0**-decimals
    return value - half, value + half


def _blocks_and_tokens(line: PrintedLine, per_token: float) -> Iterator[Step]:
    """Blocks and tokens from GiB: floor to whole blocks; a hybrid model prints blocks / groups x block size."""
    gib, size = line.numbers.get("kv_gib"), line.block_size
    if gib is None:
        return
    low, high = _printed_gib(gib)

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
            _tolerance(line),
            blocks(low),
            blocks(high),
        )
    if "kv_tokens" not in line.numbers:
        return
    printed = line.numbers["kv_tokens"]
    rules = [(blocks, f"floor({gib:g} GiB / ({size} x {per_token:,.0f} B)) x {size}")]
    groups = _groups(line)
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
        _tolerance(line),
        rule(low) * size,
        rule(high) * size,
    )


def _groups(line: PrintedLine) -> KVGroups | None:
    """The hybrid groups of a model whose layers do not all keep the same, else None."""
    if line.model is None or not _derived_bytes(line) or line.num_kv_layers is not None:
        return None
    groups = kv_groups(line.model, line.kv_dtype, line.tp)
    return groups if groups.num_groups > 1 else None


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
        groups = _groups(line)
        if groups is not None and abs(planned / printed - 1) > ONE_RANK:
            planned, formula = _hybrid_concurrency(line, groups, tokens, length, printed)
        low, high = planned - 0.005, planned + 0.005
        yield Step("concurrency", printed, planned, formula, ONE_RANK, low, high)
    if re.search("refus|reject|serve|start", line.result.lower()):
        planned_result = "refused" if tokens < length else "served"
        said = "refused" if re.search("refus|reject", line.result.lower()) else "served"
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
            *_interval(planned, numbers["needs_gib"]),
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
    if "available_gib" in numbers and "estimated_max_len" in numbers:
        yield _estimated_max_len(line, per_token)
    if "cpu_blocks" in numbers:
        swap = round(numbers["swap_gib"] * GIB) if "swap_gib" in numbers else SWAP_BYTES
        formula = f"floor({swap / GIB:g} GiB / ({line.block_size} x {per_token:,.0f} B))"
        if "per_token_bytes" not in numbers and line.model is not None and "tp" not in numbers:
            per_token, formula = _swap_ranks(line, per_token, formula)
        planned = swap // (line.block_size * per_token)
        yield Step("cpu_blocks", numbers["cpu_blocks"], planned, formula, ONE_RANK)


def _interval(planned: float, printed: float) -> tuple[float, float]:
    low, high = _printed_gib(printed)
    return planned - (high - low) / 2, planned + (high - low) / 2


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
    return Step("kv_gib of the tokens", printed, planned, formula, ONE_RANK, *_interval(planned, printed))


def _estimated_max_len(line: PrintedLine, per_token: float) -> Step:
    """Floor to a block; some backends use larger ones than 16 and the line shows which (a power of two)."""
    available, printed = line.numbers["available_gib"], line.numbers["estimated_max_len"]
    low, high = _printed_gib(available)

    def longest(amount: float, size: int) -> float:
        return amount * GIB / per_token // size * size

    sizes = [line.block_size]
    if abs(longest(available, line.block_size) / printed - 1) > _tolerance(line):
        sizes += [2**k for k in range(5, 10) if longest(available, 2**k) == printed]
    size = sizes[-1] if len(sizes) == 1 else sizes[1]
    formula = f"{available:g} GiB / {per_token:,.0f} B, whole blocks of {size}"
    return Step(
        "estimated_max_len",
        printed,
        longest(available, size),
        formula,
        _tolerance(line),
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
    if not _derived_bytes(line):
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


def estimate_steps(line: PrintedLine) -> Iterator[Step]:
    """The planner's own estimate of the KV memory where the line does not carry every budget term, as a range of 12 %
    either way around it; several printed numbers (releases, models) each get one."""
    if any(
        step.name in ("kv_gib", "gpu_blocks from the budget") for step in _budget(line, bytes_per_token(line))
    ):
        return
    if line.gpu is None or line.engine == "llama_cpp":
        return
    for label, model, quantization, printed_gib in _printed_pools(line):
        try:
            planned, used = _planned_pool(line, model, quantization)
        except LabError:  # ranks that this model cannot be cut into
            continue
        name = "kv_gib, terms estimated" + (f" ({label})" if label else "")
        yield Step(name, printed_gib, planned, f"{used:.2f} GiB of estimated terms", ESTIMATE)


def _planned_pool(
    line: PrintedLine, model: ModelSpec, quantization: Quantization | None
) -> tuple[float, float]:
    """GiB for keys and values, and GiB of all other terms, on one rank."""
    assert line.gpu is not None
    request = PlanRequest(
        model,
        line.gpu,
        engine=line.engine,
        parallel=Parallel(line.tp),
        max_model_len=line.max_model_len,
        kv_dtype=line.kv_dtype,
        memory_fraction=line.utilisation,
        quantization=quantization,
        given={"weights": round(line.ledger["weights"] * GIB)} if "weights" in line.ledger else {},
    )
    used = sum(t.num_bytes for t in collect_terms(request)) / GIB
    return rank_budget(request).kv_bytes / GIB, used


def _printed_pools(line: PrintedLine) -> Iterator[tuple]:
    """`(label, model, quantization, GiB)` of each pool that the line prints."""
    from labkit.models.catalogue import find_in_text
    from labkit.planning.printed import read_line

    if "kv_gib" in line.numbers:
        if line.model is not None:
            yield "", line.model, line.quantization, line.numbers["kv_gib"]
        return
    for label, blocks in line.blocks.items():
        named = find_in_text(label) if line.model is None else None
        model = named or line.model
        if model is None:
            continue
        quantization = read_line({"model": label}).quantization if named else line.quantization
        try:
            per_token = model.kv_bytes_per_token(line.kv_dtype, line.tp)
        except LabError:
            continue
        yield label, model, quantization, blocks * line.block_size * per_token / GIB
