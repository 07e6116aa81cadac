"""What one token costs in a KV cache: from heads and dtype to bytes.

| kind | rows a layer keeps for a token | elements |
| --- | --- | --- |
| MHA | a key and a value for every query head | 2 * num_heads * head_dim |
| GQA | a key and a value for each group of query heads | 2 * num_kv_heads * head_dim |
| MQA | one key and one value | 2 * head_dim |
| MLA | one latent row, key and value of all heads at once (DeepSeek-V2, section 2.1) | latent_dim + rope_dim |

int8 and fp8 (e4m3) rows carry one float32 scale per token and KV head, for keys and values each. An MLA row is not
quantised here.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.errors import LabError
from labkit.kv.base import positive

#: name -> bytes of an element; fp8 needs a GPU of compute capability 8.9 (sm_89) or newer, on a CPU it is emulated
KV_DTYPES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1}
QUANTIZED = ("int8", "fp8")
MIN_CAPABILITY = {"fp8": (8, 9)}
SCALE_BYTES = 4


@dataclass(frozen=True)
class KVSpec:
    """Shape of one model's cache. For MLA give `latent_dim` and `rope_dim`; `num_kv_heads` is 1 then."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str = "bf16"
    latent_dim: int = 0
    rope_dim: int = 0

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_kv_heads", "head_dim"):
            positive(getattr(self, field), field)
        if self.dtype not in KV_DTYPES:
            raise LabError(f"unknown KV dtype {self.dtype!r}; choose one of: {', '.join(KV_DTYPES)}")
        if self.latent_dim and self.dtype in QUANTIZED:
            raise LabError(
                f"a latent cache is not kept in {self.dtype} here; choose one of: fp32, bf16, fp16"
            )

    @classmethod
    def mla(cls, num_layers: int, latent_dim: int, rope_dim: int, dtype: str = "bf16") -> KVSpec:
        """Latent attention: one row of `latent_dim + rope_dim` elements a token and layer, key and value in one."""
        return cls(num_layers, 1, latent_dim + rope_dim, dtype, latent_dim, rope_dim)

    @property
    def kind(self) -> str:
        """ "heads" or "mla"."""
        return "mla" if self.latent_dim else "heads"

    @property
    def elements_per_token(self) -> int:
        """Over all layers, keys and values together."""
        rows = 1 if self.latent_dim else 2 * self.num_kv_heads
        return self.num_layers * rows * self.head_dim

    @property
    def scale_bytes_per_token(self) -> int:
        """Of a quantised cache: one float32 a token, layer and KV head, for keys and for values."""
        return self.num_layers * 2 * self.num_kv_heads * SCALE_BYTES if self.dtype in QUANTIZED else 0

    @property
    def bytes_per_token(self) -> int:
        """All layers, keys and values, scales included."""
        return self.elements_per_token * KV_DTYPES[self.dtype] + self.scale_bytes_per_token


def supported_dtypes(capability: tuple[int, int] | None) -> dict[str, bool]:
    """KV dtypes that a GPU of this compute capability can read and write; None is a CPU, which emulates all."""
    return {name: capability is None or capability >= MIN_CAPABILITY.get(name, (0, 0)) for name in KV_DTYPES}
