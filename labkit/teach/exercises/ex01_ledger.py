"""Exercise 01: the ledger by hand. Checked against `ModelSpec` of real models and of random shapes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkit.models import get_model
from labkit.models.config import from_config
from labkit.models.spec import ModelSpec
from labkit.teach.exercises.base import Exercise, Mistake, Picture, that
from labkit.teach.exercises.watch import called, short
from labkit.units import GIB

MODELS = ("Llama-3.1-8B", "Llama-2-13B", "Llama-3.2-1B", "Mistral-7B", "Llama-3.1-70B")
KEYS = ("weight_bytes", "kv_bytes_per_token", "num_blocks", "num_full_sequences")


def run(my_ledger: Callable[..., dict[str, int]]) -> str:
    my_ledger = called(my_ledger)
    rng = np.random.default_rng(1)
    cases = [get_model(name) for name in MODELS] + [_random_model(rng, i) for i in range(20)]
    for spec in cases:
        _check(my_ledger, spec, rng)
    return (
        f"weights, KV bytes a token, blocks and sequences agree with the lab for {len(MODELS)} real models and 20 random "
        "shapes."
    )


def _check(my_ledger: Callable[..., dict[str, int]], spec: ModelSpec, rng: np.random.Generator) -> None:
    model = SimpleNamespace(
        **{name: getattr(spec, name) for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads")},
        **{name: getattr(spec, name) for name in ("head_dim", "intermediate_size", "vocab_size", "tied")},
        bytes_per_value=2,
    )
    weights, kv = spec.weight_bytes(), spec.kv_bytes_per_token()
    block_size = int(rng.choice([8, 16, 32]))
    other, length = int(rng.integers(1, 5)) * GIB // 2, int(rng.integers(1000, 9000))
    fraction = 0.9
    gpu = int((weights + other) / fraction) + int(rng.integers(3, 30)) * GIB + 12_345
    what = f"{spec.name}: {gpu / GIB:.1f} GiB GPU, fraction {fraction}, {length:,} tokens, blocks of {block_size}"
    answer = my_ledger(
        model,
        gpu_bytes=gpu,
        fraction=fraction,
        other_bytes=other,
        block_size=block_size,
        max_model_len=length,
    )
    that(isinstance(answer, dict), f"my_ledger returned {type(answer).__name__}; return a dict with {KEYS}.")
    missing = [key for key in KEYS if key not in answer]
    that(not missing, f"the dict lacks {missing}; it needs {KEYS}.")
    _compare(what, "weight_bytes", answer, weights, _weight_slips(model), spec)
    _compare(what, "kv_bytes_per_token", answer, kv, _kv_slips(model), spec)
    block_bytes = block_size * kv
    room = int(gpu * fraction) - weights - other
    num_blocks = room // block_bytes
    slips = {
        (gpu - weights - other)
        // block_bytes: "the server uses only `fraction` of the GPU, and you used all of it",
        (int(gpu * fraction) - weights)
        // block_bytes: "other_bytes (activations, workspace, graphs) is not subtracted: "
        "the usual budget of weights + KV",
        (int((gpu - weights - other) * fraction))
        // block_bytes: "fraction is a share of the whole GPU, not of what is left after the weights",
        -(-room // block_bytes): "a last, incomplete block does not exist: round the number of blocks down",
        room // kv: "that is the number of tokens, not of blocks of block_size tokens",
    }
    _compare(what, "num_blocks", answer, num_blocks, slips, spec)
    need = -(-length // block_size)
    slips = {
        num_blocks
        * block_size
        // length: "a sequence takes whole blocks: divide blocks by blocks, the last one of "
        "each sequence rounded up",
        num_blocks
        // max(1, length // block_size): "the last block of a sequence is partly filled and taken whole: "
        "round blocks per sequence up",
        num_blocks
        // (length // block_size + 1): "length // block_size + 1 is one too many where the length is a "
        "multiple of the block",
    }
    _compare(what, "num_full_sequences", answer, num_blocks // need, slips, spec)


def _compare(
    what: str, key: str, answer: dict[str, Any], expected: int, slips: dict[int, str], spec: ModelSpec
) -> None:
    got = answer[key]
    if got == expected:
        return
    if isinstance(got, bool) or not isinstance(got, int | np.integer):
        raise Mistake(
            f"{key} is {short(got)}: it must be an int, not {type(got).__name__} (// divides whole numbers). Input: {what}.",
            Picture("bars", f"{key}, {spec.name}", {"the lab's": {"value": expected}}),
        )
    why = slips.get(int(got), "")
    raise Mistake(
        f"{key} is {got:,} and should be {expected:,}{': ' + why if why else ''}. Input: {what}.",
        Picture("bars", f"{key}, {spec.name}", {"yours": {"value": got}, "the lab's": {"value": expected}}),
    )


def _weight_slips(m: Any) -> dict[int, str]:
    """Wrong totals that classic slips lead to."""
    matrix = m.vocab_size * m.hidden_size
    q, kv = m.hidden_size * m.num_heads * m.head_dim, m.hidden_size * m.num_kv_heads * m.head_dim
    mlp, norms = m.hidden_size * m.intermediate_size, (2 * m.num_layers + 1) * m.hidden_size
    right = matrix * (1 if m.tied else 2) + m.num_layers * (2 * q + 2 * kv + 3 * mlp) + norms
    slips = {
        right - norms: "the norms are missing: two a layer and one at the end, hidden_size values each",
        right - m.hidden_size: "the norm after the last layer is missing",
        right
        + m.num_layers
        * 2
        * (q - kv): "with grouped queries (GQA) the key and value matrices have num_kv_heads "
        "heads, not num_heads",
        right - m.num_layers * mlp: "a gated MLP has three matrices: gate, up and down",
        right - m.num_layers * q: "attention has four matrices: query, key, value and output",
    }
    if m.tied:
        slips[right + matrix] = "tied: the output matrix is the embedding matrix, so it counts once"
    else:
        slips[right - matrix] = "not tied: the output matrix is one more vocab_size x hidden_size"
    slips = {params * m.bytes_per_value: text for params, text in slips.items()}
    slips[right] = "that is the number of parameters; each takes bytes_per_value bytes"
    return slips


def _kv_slips(m: Any) -> dict[int, str]:
    right = 2 * m.num_layers * m.num_kv_heads * m.head_dim * m.bytes_per_value
    slips = {
        right
        // 2: "half of it: the factor 2 is missing (a token keeps a key and a value), or bytes_per_value is",
        right // m.num_layers: "every layer keeps its own keys and values: times num_layers",
    }
    if m.num_heads != m.num_kv_heads:
        slips[right * m.num_heads // m.num_kv_heads] = (
            "only the num_kv_heads key/value heads are kept, not all num_heads (grouped queries, GQA)"
        )
    return slips


def _random_model(rng: np.random.Generator, number: int) -> ModelSpec:
    kv_heads, group, head_dim = int(rng.integers(1, 9)), int(rng.integers(1, 6)), int(rng.choice([64, 128]))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": int(rng.integers(2, 60)),
        "hidden_size": int(rng.integers(4, 40)) * 128,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": int(rng.integers(10, 90)) * 128,
        "vocab_size": int(rng.integers(300, 1200)) * 100,
        "tie_word_embeddings": bool(number % 2),
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }
    return from_config(config, name=f"random model {number}", where="exercise 01")


EXERCISE = Exercise(
    "01",
    "ledger",
    "The ledger by hand: weights, KV bytes, blocks",
    ("my_ledger",),
    (
        "Count parameters first. Embedding: vocab_size x hidden_size; the output matrix is as large, unless tied.",
        "A layer: query and output have num_heads x head_dim columns, key and value num_kv_heads x head_dim; the gated MLP "
        "has three matrices of hidden_size x intermediate_size; two norms of hidden_size. One more norm at the end.",
        "KV bytes of a token: 2 (key and value) x num_layers x num_kv_heads x head_dim x bytes_per_value.",
        "Blocks: int(gpu_bytes * fraction) less weights less other_bytes, floor-divided by the bytes of one block. A "
        "sequence of max_model_len tokens takes -(-max_model_len // block_size) blocks.",
    ),
    run,
)
