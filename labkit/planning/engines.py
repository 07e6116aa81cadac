"""The engines' own arithmetic: from a GPU's memory to the pool of KV blocks, in each engine's order and words.

| engine | KV bytes on a rank |
| --- | --- |
| vllm | total x gpu_memory_utilization - (weights + activation peak + non-torch) - CUDA graphs (estimated first, 0.33) |
| vllm-v1 | the same without the graphs, which are captured outside the budget |
| vllm-v0 | as v1; the profile runs over max(max_model_len, 2,048) tokens, since prompts are not chunked |
| sglang | free after loading - (1 - mem_fraction_static) x free before loading; activations live in the remainder |
| tensorrt_llm | free_gpu_memory_fraction x free after weights and a profiling pass, or max_tokens if that is smaller |

Unit traps: vLLM prints tokens, older releases blocks of 16 tokens; SGLang prints tokens and "GB" that are GiB;
TensorRT-LLM prints blocks of 32 and a limit in tokens. A plan shows all three.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.models.parallel import rank_weight_bytes
from labkit.planning import terms
from labkit.planning.request import PlanRequest
from labkit.planning.terms import Term
from labkit.units import GIB

#: default block (or page) in tokens, default memory fraction
DEFAULTS = {
    "vllm": (16, 0.9),
    "vllm-v1": (16, 0.9),
    "vllm-v0": (16, 0.9),
    "sglang": (1, 0.88),
    "tensorrt_llm": (32, 0.9),
}
#: batch sizes for which graphs are captured by default
NUM_GRAPHS = {"vllm": 67, "vllm-v1": 67, "vllm-v0": 35, "sglang": 35, "tensorrt_llm": 0}


@dataclass(frozen=True, slots=True)
class Budget:
    """One rank: its terms, and the bytes that are left for keys and values (negative when nothing is)."""

    stage: int
    terms: tuple[Term, ...]
    total_bytes: int
    kv_bytes: int
    rule: str

    def term(self, name: str) -> int:
        """Bytes of all terms of that name."""
        return sum(t.num_bytes for t in self.terms if t.name == name)


def batch_limits(request: PlanRequest) -> tuple[int, int]:
    """`(max_batched_tokens, max_num_seqs)` as asked, else the engine's default for this GPU.

    vLLM (`engine/arg_utils.py`): 8,192 tokens and 1,024 sequences from 70 GiB on (but not on an A100), else 2,048 and
    256; v0 without chunked prefill: at least the longest sequence.
    """
    big = request.gpu.total_gib >= 70 and not request.gpu.name.upper().startswith("A100")
    if request.engine == "vllm-v0":
        tokens, seqs = max(request.model_len, 2048), 256
    elif request.engine == "sglang":
        tokens, seqs = 8192 if big else 2048, 256
    elif request.engine == "tensorrt_llm":
        tokens, seqs = 8192, 256
    else:
        tokens, seqs = (8192, 1024) if big else (2048, 256)
    return request.max_batched_tokens or tokens, request.max_num_seqs or seqs


def rank_budget(request: PlanRequest, stage: int = 0) -> Budget:
    """The KV budget of the heaviest rank of a pipeline stage."""
    found = collect_terms(request, stage)
    total = request.gpu.total_bytes + request.extra_bytes
    fraction = memory_fraction(request)
    size = {name: sum(t.num_bytes for t in found if t.kind == name) for name in terms.Kind.__args__}  # type: ignore[attr-defined]
    graphs = sum(t.num_bytes for t in found if t.name == "CUDA graphs")
    workspace = size["workspace"] - graphs
    fixed = size["allocator"] + size["communication"] + size["metadata"]
    if request.engine == "sglang":
        before = total - fixed
        after = before - size["weights"]
        kv = after - (1 - fraction) * before
        rule = f"free after loading {after / GIB:.2f} GiB - (1 - {fraction:g}) x free before {before / GIB:.2f} GiB"
    elif request.engine == "tensorrt_llm":
        free = total - fixed - size["weights"] - size["activations"] - workspace
        kv = fraction * free
        rule = f"{fraction:g} x {free / GIB:.2f} GiB free after weights and profiling"
    else:
        used = size["weights"] + size["activations"] + workspace + fixed
        counted = graphs if request.engine == "vllm" else 0
        kv = total * fraction - used - counted
        rule = f"{total / GIB:.2f} GiB x {fraction:g} - {used / GIB:.2f} GiB used"
        if counted:
            rule += f" - {counted / GIB:.2f} GiB CUDA graphs"
    return Budget(stage, found, total, int(kv // 1), rule)


def memory_fraction(request: PlanRequest) -> float:
    """As asked, else the engine's default."""
    return DEFAULTS[request.engine][1] if request.memory_fraction is None else request.memory_fraction


def block_size(request: PlanRequest) -> int:
    """As asked, else the engine's default; vLLM takes 64 for MLA (its FlashMLA kernel)."""
    if request.block_size is not None:
        return request.block_size
    if request.model.mla is not None and request.engine.startswith("vllm"):
        return 64
    return DEFAULTS[request.engine][0]


def collect_terms(request: PlanRequest, stage: int = 0) -> tuple[Term, ...]:
    """Everything but the KV pool on a rank of `stage`: given terms where a log has them, else the estimates."""
    model, gpu, given = request.model, request.gpu, request.given
    tokens, seqs = batch_limits(request)
    tp = request.parallel.tp
    if "weights" in given:
        weights = [Term("weights", "weights", given["weights"], "from the log", False, "given")]
    else:
        num = rank_weight_bytes(model, request.parallel, stage, request.quantization)
        scheme = request.quantization or model.quantization
        held = f"{model.num_params:,} parameters" + (f", {scheme.name}" if scheme.scope != "none" else "")
        if request.parallel.num_ranks > 1:
            held += f", cut {request.parallel.tp} x {request.parallel.pp}"
        weights = [
            Term("weights", "weights", num, held, False, "exact" if scheme.scope == "none" else "derived"),
            terms.rotary_tables(model, model.max_position),
        ]
    if "peak_activation" in given:
        peak = [
            Term("activation peak", "activations", given["peak_activation"], "from the log", True, "given")
        ]
    else:
        forward = terms.activation_peak(model, tokens, tp)
        sampling = terms.logits_peak(model, min(seqs, tokens), sorts=request.engine != "vllm-v0")
        peak = [max((forward, sampling), key=lambda t: t.num_bytes)]
    if "non_torch" in given:
        other = [
            Term("non-torch memory", "allocator", given["non_torch"], "from the log", False, "given", True)
        ]
    else:
        other = [
            terms.driver_context(gpu),
            terms.library_workspace(gpu),
            terms.communication_buffers(request.parallel),
            terms.block_tables(seqs, request.model_len, block_size(request)),
        ]
    graphs = terms.cuda_graphs(model, NUM_GRAPHS[request.engine])
    if "cuda_graphs" in given:
        graphs = Term("CUDA graphs", "workspace", given["cuda_graphs"], "from the log", False, "given", True)
    return (*weights, *peak, *other, graphs)
