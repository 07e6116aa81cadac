"""The ledger: where the memory of one rank goes, line by line, with formula, bytes and how sure each line is.

Seven kinds: weights; activations; workspace; communication; KV cache; metadata; what the allocator itself keeps. The
hidden lines (CUDA graphs, block tables, rotary tables, driver context, allocator rounding, growth on a new shape) are
the ones that estimates leave out. The lines sum to the GPU's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.memory.base import OutOfMemory
from labkit.memory.caching import CachingAllocator
from labkit.models.dtypes import dtype_bytes
from labkit.models.parallel import stage_layers
from labkit.planning.planner import Plan
from labkit.planning.terms import Term
from labkit.units import GIB, format_bytes

KINDS = {
    "weights": "weights",
    "activations": "activations and intermediate buffers",
    "workspace": "attention and GEMM workspace",
    "communication": "communication buffers",
    "kv_cache": "KV cache",
    "metadata": "runtime metadata and indices",
    "allocator": "what the allocator and driver keep",
}


@dataclass(frozen=True)
class Ledger:
    """All lines of one rank; `unused_bytes` is what the plan leaves to nobody (negative: over-committed)."""

    plan: Plan
    lines: tuple[Term, ...]
    total_bytes: int

    @property
    def used_bytes(self) -> int:
        """Sum of the lines."""
        return sum(line.num_bytes for line in self.lines)

    @property
    def unused_bytes(self) -> int:
        """What no line takes."""
        return self.total_bytes - self.used_bytes

    def bytes_of(self, kind: str) -> int:
        """Bytes of all lines of one of the seven kinds."""
        return sum(line.num_bytes for line in self.lines if line.kind == kind)

    @property
    def hidden_bytes(self) -> int:
        """Lines that estimates usually leave out."""
        return sum(line.num_bytes for line in self.lines if line.hidden)

    @property
    def static_bytes(self) -> int:
        """Lines that stay as they are while the engine serves."""
        return sum(line.num_bytes for line in self.lines if not line.dynamic)

    def sentence(self) -> str:
        """The ledger in one sentence."""
        plan = self.plan
        return (
            f"{plan.request.model.name} on {plan.request.gpu.name} ({self.total_bytes / GIB:.2f} GiB a rank): weights "
            f"{format_bytes(self.bytes_of('weights'))}, KV cache {format_bytes(self.bytes_of('kv_cache'))}, everything "
            f"else {format_bytes(self.used_bytes - self.bytes_of('weights') - self.bytes_of('kv_cache'))}, of which "
            f"{format_bytes(self.hidden_bytes)} on lines that estimates leave out."
        )

    def rows(self) -> list[dict[str, Any]]:
        """One dict a line, the unused rest last; ready for JSON."""
        rows = [
            {
                "kind": line.kind,
                "line": line.name,
                "bytes": line.num_bytes,
                "gib": round(line.num_bytes / GIB, 4),
                "formula": line.formula,
                "dynamic": line.dynamic,
                "hidden": line.hidden,
                "confidence": line.confidence,
            }
            for line in self.lines
        ]
        rest = {"kind": "unused", "line": "not used by the plan", "bytes": self.unused_bytes}
        rest |= {"gib": round(self.unused_bytes / GIB, 4), "formula": "total - sum of the lines"}
        return [*rows, {**rest, "dynamic": False, "hidden": False, "confidence": "derived"}]

    def frame(self) -> Any:
        """The same as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows())


def make_ledger(plan: Plan) -> Ledger:
    """The ledger of the rank that rules in `plan`."""
    pool = plan.num_blocks * plan.block_bytes
    states = plan.kv_bytes - pool
    request = plan.request
    kv = [
        Term(
            "KV blocks",
            "kv_cache",
            pool,
            f"{plan.num_blocks:,} blocks x {plan.block_size} tokens x {plan.groups.bytes_per_token:,} B",
            True,
            "derived",
        )
    ]
    if request.model.linear is not None and plan.groups.num_state_groups == 0:
        kv.append(Term("recurrent states", "kv_cache", states, "fixed state x sequences", True, "derived"))
    lines = [*plan.budget.terms, *kv, allocator_rounding(plan), new_shapes(plan)]
    return Ledger(plan, tuple(lines), plan.budget.total_bytes)


def allocator_rounding(plan: Plan) -> Term:
    """What PyTorch's caching allocator reserves beyond the weights and the KV tensors of the rank: each weight tensor
    and one KV tensor a layer are laid into a `CachingAllocator` as a loader does."""
    request = plan.request
    model, tp = request.model, request.parallel.tp
    scheme = request.quantization or model.quantization
    layers = stage_layers(model.num_layers, request.parallel.pp)[plan.budget.stage]
    sizes = []
    for weight in model.weights:
        if isinstance(weight.layer, int) and weight.layer not in layers:
            continue
        cut = tp if weight.split in ("out", "in", "kv", "vocab") else 1
        sizes.append(max(1, round(scheme.weight_bytes(weight, dtype_bytes(model.dtype)) / cut)))
    num_layers = max(1, sum(model.layer_kinds[i] != "linear" for i in layers))
    kv = max(1, plan.num_blocks * plan.block_bytes // num_layers)
    allocator = CachingAllocator(4 * plan.budget.total_bytes)
    requested = 0
    try:
        for size in (*sizes, *[kv] * num_layers):
            allocator.malloc(size, lifetime="static")
            requested += size
    except OutOfMemory:  # a plan of many times the GPU: nothing to round
        pass
    return Term(
        "allocator rounding",
        "allocator",
        allocator.stats().reserved_bytes - requested,
        f"reserved - requested of {len(sizes) + num_layers:,} tensors in PyTorch's caching allocator",
        False,
        "derived",
        hidden=True,
    )


def new_shapes(plan: Plan) -> Term:
    """Activations of another shape do not fit the cached segments exactly: as much as the rounding of the peak to
    2 MiB segments, one for each of the six tensors in flight."""
    tensors, granule = 6, 2 << 20
    return Term(
        "growth on a new shape",
        "allocator",
        tensors * granule,
        f"{tensors} tensors x 2 MiB segments",
        True,
        "estimated",
        hidden=True,
    )


def naive_concurrency(plan: Plan) -> float:
    """The budget that is usually made: all memory less the weights, divided by the bytes of one sequence."""
    weights = sum(t.num_bytes for t in plan.budget.terms if t.name == "weights")
    request = plan.request
    one = request.model.kv_bytes_of_sequence(request.model_len, request.kv_dtype, request.parallel.tp)
    return (plan.budget.total_bytes - weights) / one
