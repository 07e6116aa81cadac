"""Real weights: a Hugging Face directory with `config.json` and safetensors, for Llama, Qwen2 and Qwen3 shapes.

    config, weights = load_hugging_face(Path("Qwen3-0.6B"), dtype=torch.float32)

One file `model.safetensors`, or shards listed by `model.safetensors.index.json`. Nothing is unpickled: safetensors hold
only numbers. Every tensor must be there with the shape that the config implies, and none may be left over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from labkit.errors import InputError
from labkit.serving.llama import LayerWeights, Weights
from labkit.serving.llama_config import LlamaConfig

#: buffers that some checkpoints carry and that the config implies
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


def load_hugging_face(directory: Path, *, dtype: torch.dtype = torch.float32) -> tuple[LlamaConfig, Weights]:
    """Raises `InputError` naming file and tensor or field."""
    directory = Path(directory)
    config = LlamaConfig.from_json(directory / "config.json")
    with _Tensors(directory) as tensors:

        def take(name: str, *shape: int) -> torch.Tensor:
            return tensors.take(name, shape).to(dtype)

        weights = _read(config, take)
        if config.tie_embeddings:
            weights.head = weights.embedding
            tensors.drop("lm_head.weight")  # some files carry the tied copy
        else:
            weights.head = take("lm_head.weight", config.vocab_size, config.hidden_size)
        tensors.check_all_used()
    return config, weights


def _read(config: LlamaConfig, take) -> Weights:  # type: ignore[no-untyped-def]
    hidden, q_size, kv_size, inner = (
        config.hidden_size,
        config.q_size,
        config.kv_size,
        config.intermediate_size,
    )
    layers = []
    for i in range(config.num_layers):
        at = f"model.layers.{i}."
        attention, mlp = at + "self_attn.", at + "mlp."
        sides = (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size))
        qkv = torch.cat([take(f"{attention}{name}.weight", size, hidden) for name, size in sides])
        bias = [take(f"{attention}{name}.bias", size) for name, size in sides] if config.qkv_bias else None
        layers.append(
            LayerWeights(
                input_norm=take(at + "input_layernorm.weight", hidden),
                qkv=qkv,
                output=take(attention + "o_proj.weight", hidden, q_size),
                post_norm=take(at + "post_attention_layernorm.weight", hidden),
                gate_up=torch.cat(
                    [take(f"{mlp}{name}.weight", inner, hidden) for name in ("gate_proj", "up_proj")]
                ),
                down=take(mlp + "down_proj.weight", hidden, inner),
                qkv_bias=None if bias is None else torch.cat(bias),
                output_bias=take(attention + "o_proj.bias", hidden) if config.output_bias else None,
                q_norm=take(attention + "q_norm.weight", config.head_dim) if config.qk_norm else None,
                k_norm=take(attention + "k_norm.weight", config.head_dim) if config.qk_norm else None,
            )
        )
    embedding = take("model.embed_tokens.weight", config.vocab_size, hidden)
    return Weights(embedding, layers, take("model.norm.weight", hidden), embedding)


class _Tensors:
    """Tensors of a directory by name, read when they are taken."""

    def __init__(self, directory: Path):
        self._stack = ExitStack()
        self._where: dict[str, tuple[Path, object]] = {}
        try:
            for path in _files(directory):
                try:
                    opened = self._stack.enter_context(safe_open(str(path), framework="pt"))
                except FileNotFoundError:
                    raise InputError(path, "is not there, and the index names it") from None
                except (SafetensorError, OSError) as error:
                    raise InputError(path, f"is not a safetensors file ({error})") from None
                for name in opened.keys():  # noqa: SIM118  (not a mapping)
                    self._where[name] = (path, opened)
        except BaseException:
            self._stack.close()
            raise
        self._directory = directory

    def __enter__(self) -> _Tensors:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        try:
            path, opened = self._where.pop(name)
        except KeyError:
            raise InputError(self._directory, "is missing, and the config asks for it", field=name) from None
        tensor: torch.Tensor = opened.get_tensor(name)  # type: ignore[attr-defined]
        if tuple(tensor.shape) != shape:
            raise InputError(
                path, f"has shape {list(tensor.shape)}; the config implies {list(shape)}", field=name
            )
        if not tensor.is_floating_point():
            raise InputError(path, f"has dtype {tensor.dtype}; floating point is needed", field=name)
        return tensor

    def drop(self, name: str) -> None:
        self._where.pop(name, None)

    def check_all_used(self) -> None:
        for name, (path, _) in self._where.items():
            if not name.endswith(IGNORED_SUFFIXES):
                raise InputError(path, "is in the file, and the config has no place for it", field=name)


def _files(directory: Path) -> Iterator[Path]:
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        yield single
        return
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        shards = sorted({str(name) for name in names})
    except FileNotFoundError:
        raise InputError(directory, f"has neither {single.name} nor {index.name}") from None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise InputError(index, f"has no weight_map of tensor to file ({type(error).__name__})") from None
    for name in shards:
        if Path(name).name != name:
            raise InputError(index, f"names a file outside the directory: {name!r}", field="weight_map")
        yield directory / name
