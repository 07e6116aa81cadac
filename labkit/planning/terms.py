"""The planner's own estimates of what a server needs besides weights and KV, one function a term.

Each says its formula. Activations follow the widest point of a decoder layer and agree with printed profiles (an
8B model on an RTX 3090: 2.06 GiB at 20,000 tokens, printed 2.07; 2.99 at 29,000, printed 2.99). Driver context,
communication buffers and CUDA graphs are typical sizes from logs: leads, not measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labkit.models.dtypes import dtype_bytes
from labkit.models.gpus import GPUSpec
from labkit.models.parallel import Parallel
from labkit.models.spec import ModelSpec
from labkit.units import GIB, KIB, MIB

Kind = Literal[
    "weights",
    "activations",
    "workspace",
    "communication",
    "kv_cache",
    "metadata",
    "allocator",
]
Confidence = Literal["exact", "derived", "estimated", "given"]


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the ledger: how many bytes, by which formula, static or dynamic, and how sure."""

    name: str
    kind: Kind
    num_bytes: int
    formula: str
    dynamic: bool
    confidence: Confidence
    hidden: bool = False


def activation_peak(model: ModelSpec, num_tokens: int, tp: int = 1) -> Term:
    """The widest point of a forward pass over `num_tokens`: gate, up and their product, beside three copies of the
    hidden state (input, residual, normalised)."""
    size = dtype_bytes(model.dtype)
    widths = [_dense_width(model, tp)]
    if model.experts is not None:
        widths.append(_expert_width(model, tp))
    attention = 2 * model.num_heads * model.head_dim // tp + 2 * model.num_kv_heads * model.head_dim // tp
    widest = max(*widths, attention)
    per_token = (widest + 3 * model.hidden_size) * size
    return Term(
        "activations of a forward pass",
        "activations",
        round(num_tokens * per_token),
        f"{num_tokens:,} tokens x ({widest:,} + 3 x {model.hidden_size:,}) x {size:g} B",
        True,
        "derived",
    )


def logits_peak(model: ModelSpec, num_seqs: int, *, sorts: bool = True) -> Term:
    """Sampling for `num_seqs` sequences at once: 16-bit logits, and with top-p/top-k also float32 logits, their sorted
    copy, 64-bit indices, probabilities and cumulative sums (24 bytes a vocabulary entry)."""
    per_entry = 2 + (24 if sorts else 0)
    return Term(
        "logits and sampling",
        "activations",
        num_seqs * model.vocab_size * per_entry,
        f"{num_seqs:,} sequences x {model.vocab_size:,} entries x {per_entry} B",
        True,
        "estimated",
    )


def rotary_tables(model: ModelSpec, max_position: int | None) -> Term:
    """Cosines and sines of all positions: in the printed "model loading took", not in the checkpoint."""
    if model.architecture.learned_positions or not max_position:
        return Term("rotary tables", "weights", 0, "learned positions", False, "exact", hidden=True)
    width = model.mla.qk_rope_head_dim if model.mla is not None else model.head_dim
    size = dtype_bytes(model.dtype)
    return Term(
        "rotary tables",
        "weights",
        round(max_position * width * size),
        f"{max_position:,} positions x {width} x {size:g} B",
        False,
        "derived",
        hidden=True,
    )


def driver_context(gpu: GPUSpec) -> Term:
    """CUDA context, loaded kernels and library handles: outside PyTorch's count. 0.35 GiB was printed for one GPU."""
    return Term(
        "CUDA context and kernels",
        "allocator",
        round(0.35 * GIB),
        "0.35 GiB",
        False,
        "estimated",
        hidden=True,
    )


def library_workspace(gpu: GPUSpec) -> Term:
    """cuBLAS keeps a workspace a handle: 32 MiB on Hopper and newer, 8.125 MiB before (PyTorch's default); attention
    kernels keep partial results of split sequences."""
    blas = 32 * MIB if gpu.compute_capability >= 9.0 else 8 * MIB + 128 * KIB
    attention = 128 * MIB
    return Term(
        "GEMM and attention workspace",
        "workspace",
        blas + attention,
        f"{blas / MIB:g} MiB cuBLAS + {attention // MIB} MiB split attention",
        False,
        "estimated",
    )


def communication_buffers(parallel: Parallel) -> Term:
    """NCCL channels and all-reduce buffers: about 0.75 GiB a rank as soon as there is a second one."""
    if parallel.num_ranks == 1:
        return Term("communication buffers", "communication", 0, "one rank", False, "exact")
    return Term(
        "communication buffers",
        "communication",
        round(0.75 * GIB),
        f"{parallel.num_ranks} ranks: 0.75 GiB",
        False,
        "estimated",
    )


def cuda_graphs(model: ModelSpec, num_sizes: int) -> Term:
    """Captured graphs: per batch size and layer about 0.25 MiB of private pool and launch records (an 8B model with 67
    sizes: about 0.5 GiB in logs)."""
    return Term(
        "CUDA graphs",
        "workspace",
        round(num_sizes * model.num_layers * MIB / 4),
        f"{num_sizes} sizes x {model.num_layers} layers x 0.25 MiB",
        False,
        "estimated",
        hidden=True,
    )


def block_tables(max_num_seqs: int, max_model_len: int, block_size: int) -> Term:
    """One 32-bit entry a block of the longest sequence, for every slot of the batch, plus a 64-bit slot a token."""
    entries = max_num_seqs * -(-max_model_len // block_size)
    return Term(
        "block tables",
        "metadata",
        4 * entries,
        f"{max_num_seqs:,} sequences x {-(-max_model_len // block_size):,} blocks x 4 B",
        False,
        "exact",
        hidden=True,
    )


def _dense_width(model: ModelSpec, tp: int) -> int:
    """Values a token has in flight inside a dense MLP: gate and up, and their product."""
    if model.experts is not None and len(model.experts.layers) == model.num_layers:
        shared = model.experts.shared_intermediate_size
        return 3 * shared // tp
    return (3 if model.architecture.gated_mlp else 2) * model.intermediate_size // tp


def _expert_width(model: ModelSpec, tp: int) -> int:
    """A fused expert kernel keeps gate, up, product and output for each chosen expert."""
    experts = model.experts
    assert experts is not None
    return experts.num_experts_per_tok * (3 * experts.intermediate_size // tp + model.hidden_size)
