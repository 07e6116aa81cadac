"""What the planner would have said where a printed line lacks terms: a range, never a test."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.errors import LabError
from labkit.models.catalogue import find_in_text
from labkit.models.parallel import Parallel
from labkit.models.quantization import Quantization
from labkit.models.spec import ModelSpec
from labkit.planning.engines import collect_terms, rank_budget
from labkit.planning.printed import PrintedLine, read_line
from labkit.planning.request import PlanRequest
from labkit.planning.steps import Step
from labkit.planning.steps_capacity import budget_steps
from labkit.units import GIB

#: a range of 12 % either way around the planned number
ESTIMATE = 0.12


def estimate_steps(line: PrintedLine) -> Iterator[Step]:
    """The planner's own estimate of the KV memory where the line does not carry every budget term, as a range of 12 %
    either way around it; several printed numbers (releases, models) each get one."""
    if any(True for _ in budget_steps(line)):
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
        parallel=Parallel(line.tp, line.pp),
        max_model_len=line.max_model_len,
        kv_dtype=line.kv_dtype,
        memory_fraction=line.utilisation,
        quantization=quantization,
        given={
            name: round(line.ledger[name] * GIB)
            for name in ("weights", "peak_activation", "non_torch", "cuda_graphs")
            if name in line.ledger
        },
    )
    stage = min(range(line.pp), key=lambda i: rank_budget(request, i).kv_bytes)
    used = sum(t.num_bytes for t in collect_terms(request, stage)) / GIB
    return rank_budget(request, stage).kv_bytes / GIB, used


def _printed_pools(line: PrintedLine) -> Iterator[tuple]:
    """`(label, model, quantization, GiB)` of each pool that the line prints."""
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
