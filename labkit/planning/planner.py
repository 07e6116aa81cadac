"""How many requests fit: the plan of a model on a GPU under an engine's own arithmetic.

plan = make_plan(PlanRequest(get_model("Llama-3.1-8B"), get_gpu("H100-80GB"), max_model_len=32768))
plan.max_concurrency, plan.num_tokens, plan.binding_limit
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.errors import LabError
from labkit.models.parallel import stage_layers
from labkit.planning.engines import Budget, batch_limits, block_size, rank_budget
from labkit.planning.kv_groups import KVGroups, kv_groups
from labkit.planning.request import PlanRequest
from labkit.units import GIB


@dataclass(frozen=True)
class Plan:
    """KV memory of the rank that rules (the one with the fewest blocks), and what it means for requests.

    `num_tokens` is what the engine prints as cache size; `max_concurrency` how many requests of `model_len` tokens
    it prints; `binding_limit` names what stops the next request first.
    """

    request: PlanRequest
    budget: Budget
    groups: KVGroups
    block_size: int
    kv_bytes: int
    num_blocks: int
    num_usable_blocks: int
    num_tokens: int
    blocks_per_request: int
    max_concurrency: float
    binding_limit: str
    sentence: str
    warnings: tuple[str, ...] = ()

    @property
    def kv_gib(self) -> float:
        return self.kv_bytes / GIB

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.groups.bytes_per_token

    @property
    def fits(self) -> bool:
        """Whether one request of the longest length fits at all; engines refuse to start otherwise."""
        return self.max_concurrency >= 1.0

    @property
    def estimated_max_len(self) -> int:
        """The longest sequence that this pool could serve, in whole blocks."""
        return self.num_usable_blocks // self.groups.num_groups * self.block_size


def make_plan(request: PlanRequest) -> Plan:
    """Size the pool on every pipeline stage; the smallest number of blocks rules.

    Raises `LabError` when the GPU is too small for the weights or when nothing is left for keys and values.
    """
    chosen: tuple[int, Budget, KVGroups] | None = None
    for stage in range(request.parallel.pp):
        budget = rank_budget(request, stage)
        _must_hold_weights(request, budget)
        groups = _stage_groups(request, stage)
        size = groups.block_size or block_size(request)
        blocks = _num_blocks(request, budget.kv_bytes, groups.bytes_per_token * size)
        if chosen is None or blocks < chosen[0]:
            chosen = (blocks, budget, groups)
    assert chosen is not None
    return _finish(request, *chosen)


def _must_hold_weights(request: PlanRequest, budget: Budget) -> None:
    weights = sum(t.num_bytes for t in budget.terms if t.kind == "weights")
    total = budget.total_bytes
    where = f"{request.model.name} on {request.gpu.name}"
    if weights >= total:
        raise LabError(
            f"{where}: the weights take {weights / GIB:.2f} GiB a rank and the GPU has {total / GIB:.2f} GiB "
            "(field total_gib); use more --tp, quantised weights or a larger --gpu"
        )
    if budget.kv_bytes <= 0:
        raise LabError(
            f"{where}: no memory is left for keys and values ({budget.rule} = {budget.kv_bytes / GIB:.2f} GiB; weights "
            f"{weights / GIB:.2f} GiB); use more --tp, a higher --memory-fraction, or a larger --gpu"
        )


def _stage_groups(request: PlanRequest, stage: int) -> KVGroups:
    groups = kv_groups(request.model, request.kv_dtype, request.parallel.tp, hybrid=_is_hybrid(request))
    if request.parallel.pp == 1:
        return groups
    layers = stage_layers(request.model.num_layers, request.parallel.pp)[stage]
    kinds = request.model.layer_kinds
    share = sum(kinds[i] != "linear" for i in layers) / sum(k != "linear" for k in kinds)
    return KVGroups(
        groups.num_groups,
        groups.num_full_groups,
        round(groups.bytes_per_token * share),
        groups.sliding_window,
    )


def _is_hybrid(request: PlanRequest) -> bool:
    return request.hybrid and request.engine in ("vllm", "vllm-v1")


def _num_blocks(request: PlanRequest, kv_bytes: int, block_bytes: int) -> int:
    if request.model.linear is not None and not _is_hybrid(request):
        # a pool of states apart, for as many sequences as run, at most half of the memory
        seqs = batch_limits(request)[1]
        kv_bytes -= min(seqs * request.model.state_bytes_per_sequence(request.parallel.tp), kv_bytes // 2)
    if block_bytes == 0:
        raise LabError(f"{request.model.name}: no layer of this stage keeps keys and values; use fewer --pp")
    blocks = kv_bytes // block_bytes
    if request.engine == "tensorrt_llm" and request.max_tokens is not None:
        blocks = min(blocks, -(-request.max_tokens // block_size(request)))
    return blocks


def _finish(request: PlanRequest, blocks: int, budget: Budget, groups: KVGroups) -> Plan:
    size = groups.block_size or block_size(request)
    tokens, seqs = batch_limits(request)
    model_len = request.model_len
    per_request = groups.blocks_per_request(model_len, size, tokens)
    usable = blocks - 1 if request.engine in ("vllm", "vllm-v1") else blocks  # block 0 is the null block
    concurrency = blocks / per_request if per_request else 0.0
    if concurrency < 1:
        limit = "max_model_len"
        longest = usable // groups.num_groups * size
        sentence = (
            f"One request of {model_len:,} tokens needs {per_request:,} blocks and the pool has {blocks:,}: the engine "
            f"refuses to start; about {max(longest, 0):,} tokens would fit."
        )
    elif concurrency < seqs:
        limit = "kv_blocks"
        sentence = (
            f"The KV pool binds: {blocks:,} blocks of {size} tokens hold {concurrency:.2f} requests of {model_len:,} tokens; "
            f"max_num_seqs {seqs:,} is never reached at that length."
        )
    else:
        limit = "max_num_seqs"
        sentence = f"max_num_seqs {seqs:,} binds: the pool would hold {concurrency:.2f} requests of {model_len:,} tokens."
    return Plan(
        request=request,
        budget=budget,
        groups=groups,
        block_size=size,
        kv_bytes=budget.kv_bytes,
        num_blocks=blocks,
        num_usable_blocks=usable,
        num_tokens=groups.num_tokens(blocks, size),
        blocks_per_request=per_request,
        max_concurrency=concurrency,
        binding_limit=limit,
        sentence=sentence,
        warnings=_warnings(request),
    )


def _warnings(request: PlanRequest) -> tuple[str, ...]:
    found = []
    longest = request.model.max_position
    if longest is not None and request.model_len > longest:
        found.append(
            f"max_model_len {request.model_len:,} is above the model's own maximum of {longest:,} tokens"
        )
    if request.engine == "tensorrt_llm" and request.max_tokens is not None:
        found.append(
            f"max_tokens {request.max_tokens:,} caps the pool when it is smaller than the fraction gives"
        )
    return tuple(found)
