"""`ModelSpec`: the shape of a decoder-only transformer, and what follows from it: KV bytes, states, FLOPs.

Parameters come from the list of weights (`labkit.models.weights`), so counts are derived and never stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from labkit.errors import LabError
from labkit.models.architectures import Architecture, LayerKind
from labkit.models.dtypes import dtype_bytes
from labkit.models.quantization import UNQUANTIZED, Quantization


@dataclass(frozen=True)
class MLA:
    """DeepSeek's multi-head latent attention: one latent and one rotary key a token and layer, shared by all heads."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None


@dataclass(frozen=True)
class Experts:
    """Mixture of experts. `layers` are the indices of the layers that have one; the others have a dense MLP."""

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    layers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class LinearAttention:
    """Gated DeltaNet layers: a state of fixed size a sequence in place of a KV cache."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel_dim: int


@dataclass(frozen=True)
class ModelSpec:
    """Everything the ledger needs to know about a model. Sizes are counts; bytes are in the names of the methods."""

    name: str
    model_type: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int | None
    layer_kinds: tuple[LayerKind, ...]
    architecture: Architecture
    tied: bool
    dtype: str = "bfloat16"
    sliding_window: int | None = None
    mla: MLA | None = None
    experts: Experts | None = None
    linear: LinearAttention | None = None
    quantization: Quantization = UNQUANTIZED
    cross_attention_layers: frozenset[int] = frozenset()
    source: str = ""
    note: str = ""
    extra: dict[str, float] = field(default_factory=dict, compare=False)

    # -- parameters and weights -------------------------------------------------------------------------------
    @cached_property
    def weights(self) -> tuple:
        """Every weight tensor (`labkit.models.weights.Weight`), by layer."""
        from labkit.models.weights import list_weights

        return tuple(list_weights(self))

    @cached_property
    def num_params(self) -> int:
        """All parameters; tied embeddings count once."""
        return sum(weight.numel for weight in self.weights)

    @cached_property
    def num_active_params(self) -> int:
        """Parameters that one token passes through: of the experts only those that are chosen."""
        total = self.num_params
        if self.experts is not None:
            routed = sum(w.numel for w in self.weights if w.num_experts > 1)
            total -= routed - routed * self.experts.num_experts_per_tok // self.experts.num_experts
        return total

    def weight_bytes(self, quantization: Quantization | None = None) -> int:
        """Bytes of all weights as they are held on the GPU, scales and zero points included."""
        scheme = self.quantization if quantization is None else quantization
        return round(sum(scheme.weight_bytes(w, dtype_bytes(self.dtype)) for w in self.weights))

    # -- keys and values --------------------------------------------------------------------------------------
    def num_layers_of(self, kind: LayerKind) -> int:
        """Layers of one kind: "full", "sliding" or "linear"."""
        return sum(1 for k in self.layer_kinds if k == kind)

    def kv_bytes_per_token_per_layer(self, kv_dtype: str = "auto", tp: int = 1) -> float:
        """On one rank. MLA stores one latent for all heads, without a factor 2, and every rank holds all of it;
        otherwise a rank holds its share of the KV heads, at least one."""
        size = dtype_bytes(self.dtype if kv_dtype == "auto" else kv_dtype)
        if self.mla is not None:
            return (self.mla.kv_lora_rank + self.mla.qk_rope_head_dim) * size
        return 2 * self.kv_heads_per_rank(tp) * self.head_dim * size

    def kv_heads_per_rank(self, tp: int = 1) -> int:
        """Fewer KV heads than ranks: each rank holds a copy of one."""
        if tp < 1 or (self.num_kv_heads % tp and tp % self.num_kv_heads):
            raise LabError(
                f"{self.name}: field num_key_value_heads is {self.num_kv_heads}, which tensor parallelism of {tp} neither "
                "divides nor is a multiple of; choose another --tp"
            )
        return max(1, self.num_kv_heads // tp)

    def kv_bytes_per_token(
        self, kv_dtype: str = "auto", tp: int = 1, *, full_attention_only: bool = False
    ) -> int:
        """Bytes that one more token takes on one rank, in all layers that keep keys and values (linear layers keep
        none). `full_attention_only`: what a token costs once it has left every sliding window."""
        layers = self.num_layers_of("full") + (0 if full_attention_only else self.num_layers_of("sliding"))
        return round(layers * self.kv_bytes_per_token_per_layer(kv_dtype, tp))

    def kv_bytes_of_sequence(self, num_tokens: int, kv_dtype: str = "auto", tp: int = 1) -> int:
        """Least bytes for one sequence: full layers keep every token, sliding layers a window, linear ones a state."""
        kept = num_tokens if self.sliding_window is None else min(num_tokens, self.sliding_window)
        per_layer = self.kv_bytes_per_token_per_layer(kv_dtype, tp)
        tokens = self.num_layers_of("full") * num_tokens + self.num_layers_of("sliding") * kept
        return round(tokens * per_layer) + self.state_bytes_per_sequence(tp)

    def state_bytes_per_sequence(self, tp: int = 1) -> int:
        """Recurrent state (fp32) and convolution state (16 bit) of the linear layers, on one rank."""
        return (self.ssm_state_bytes + self.conv_state_bytes) // tp

    @property
    def ssm_state_bytes(self) -> int:
        """Recurrent state of one sequence over all linear layers, in float32; 0 where there are none."""
        if self.linear is None:
            return 0
        la = self.linear
        return self.num_layers_of("linear") * la.num_value_heads * la.key_head_dim * la.value_head_dim * 4

    @property
    def conv_state_bytes(self) -> int:
        """Convolution state of one sequence over all linear layers, in 16 bits; 0 where there are none."""
        if self.linear is None:
            return 0
        la = self.linear
        channels = 2 * la.num_key_heads * la.key_head_dim + la.num_value_heads * la.value_head_dim
        return self.num_layers_of("linear") * channels * (la.conv_kernel_dim - 1) * 2

    # -- work -------------------------------------------------------------------------------------------------
    @cached_property
    def linear_flops_per_token(self) -> int:
        """Multiply-adds of all matrices but the two vocabulary ones, times 2."""
        vocabulary = sum(w.numel for w in self.weights if w.split == "vocab")
        return 2 * (self.num_active_params - vocabulary)

    @property
    def head_flops_per_token(self) -> int:
        """The output matrix, for each token whose logits are wanted."""
        return 2 * self.vocab_size * self.hidden_size

    @property
    def attention_flops_per_pair(self) -> int:
        """Scores and weighted values of one query with one key, over all layers that attend to everything."""
        width = self.num_heads * self.head_dim
        if self.mla is not None:
            width = self.num_heads * (2 * self.mla.kv_lora_rank + self.mla.qk_rope_head_dim) // 2
        return 4 * width * self.num_layers_of("full")
