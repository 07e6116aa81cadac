"""A line that a real server printed, as typed terms: what was said, and which model and GPU it is about.

The file is a JSON list of objects (`labkit/data/kv_capacity_lines.json`). Model, GPU and utilisation are free text as
people write it; numbers in them are read out. "GB" in these logs is GiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import InputError, shown
from labkit.json_text import read_json
from labkit.models.catalogue import find_in_text
from labkit.models.dtypes import dtype_in_text
from labkit.models.gpus import GPUSpec
from labkit.models.quantization import Quantization
from labkit.models.spec import ModelSpec
from labkit.planning.free_text import (
    first_number,
    num_gpus,
    read_engine,
    read_gpu,
    read_length,
    read_quantization,
    read_utilisation,
)

NUMBERS = (
    "kv_gib",
    "kv_tokens",
    "concurrency",
    "weights_gib",
    "per_token_bytes",
    "block_size",
    "cpu_blocks",
    "needs_gib",
    "available_gib",
    "estimated_max_len",
    "n_ctx",
    "n_seq",
    "full_layers",
    "K_mib",
    "V_mib",
    "swa_cells",
    "swa_mib",
    "tp",
    "pp",
    "tokens",
    "kv_mib",
    "swap_gib",
    "num_kv_layers",
)
#: counts of things that have no fractions
_WHOLE = ("tp", "pp", "block_size", "num_kv_layers", "n_seq", "full_layers")
#: no printed number is larger
_LARGEST = 1e15
#: other names for the same thing
_ALIASES = {
    "num_tokens": "tokens",
    "context_len": "tokens",
    "context_length": "tokens",
    "seq_len": "tokens",
    "bytes_per_token": "per_token_bytes",
    "max_concurrency": "concurrency",
    "num_gpu_blocks": "gpu_blocks",
    "tensor_parallel_size": "tp",
    "gpu_memory_utilization": "util",
    "mem_fraction_static": "util",
    "kv_cache_dtype": "kv_dtype",
    "kv_cache_gib": "kv_gib",
    "kv_cache_tokens": "kv_tokens",
    "kv_cache_size_tokens": "kv_tokens",
    "maximum_concurrency": "concurrency",
    "pipeline_parallel_size": "pp",
    "num_cpu_blocks": "cpu_blocks",
    "max_seq_len": "max_model_len",
    "max_len": "max_model_len",
    "utilization": "util",
    "utilisation": "util",
    "error": "result",
    "num_seqs": "n_seq",
    "batch_size": "n_seq",
}
_LEDGER = {
    "budget": ("budget", "budget_gib"),
    "total": ("total", "total_gib", "total_memory"),
    "weights": ("weights", "model_weights", "model", "weights_gib"),
    "non_torch": ("non_torch", "nontorch", "non_torch_memory", "non_torch_gib"),
    "peak_torch": ("peak_torch", "torch_peak", "peak_torch_memory"),
    "peak_activation": (
        "peak_activation",
        "peak_activations",
        "activation_peak",
        "activations_peak",
        "activation",
        "activations",
        "pytorch_activation_peak",
    ),
    "cuda_graphs": ("cuda_graphs", "cuda_graph", "cudagraph", "cudagraphs", "graphs"),
    "free_before": ("free_before", "avail_before", "free_before_load", "free_before_loading"),
    "free_after": ("free_after", "avail_after", "free_after_load", "free_after_loading", "free"),
}
_LEDGER_NAMES = {alias: name for name, aliases in _LEDGER.items() for alias in aliases}


@dataclass(frozen=True)
class PrintedLine:
    """`numbers` holds the printed values by field; `blocks` printed GPU blocks by label ("" for a single one);
    `ledger` printed budget terms in GiB. `max_model_len` is None where the line does not say it."""

    id: str
    row: int
    text: str
    gpu_text: str
    model: ModelSpec | None
    gpu: GPUSpec | None
    total_gib: float | None
    utilisation: float | None
    engine: str
    kv_dtype: str
    num_kv_layers: int | None
    quantization: Quantization | None
    max_model_len: int | None
    numbers: dict[str, float]
    blocks: dict[str, float] = field(default_factory=dict)
    ledger: dict[str, float] = field(default_factory=dict)
    result: str = ""
    note: str = ""
    #: `kv_gb`: GiB in the engines' own words, 10^9 bytes in people's; `kv_gib` holds the first reading
    kv_unit_unsure: bool = False

    @property
    def tp(self) -> int:
        return int(self.numbers.get("tp", 1))

    @property
    def pp(self) -> int:
        return int(self.numbers.get("pp", 1))

    @property
    def num_ranks(self) -> int:
        return self.tp * self.pp

    @property
    def block_size(self) -> int:
        """16 (vLLM) where the line says nothing; SGLang counts single tokens, TensorRT-LLM blocks of 32."""
        default = {"sglang": 1, "tensorrt_llm": 32}.get(self.engine, 16)
        return int(self.numbers.get("block_size", default))


def read_lines(path: str | Path) -> list[PrintedLine]:
    """All lines of a file. Raises `InputError` with row (counted from 1) and field."""
    path = Path(path)
    data = read_json(path, "a JSON list of printed lines")
    if isinstance(data, Mapping) and isinstance(data.get("lines"), list):
        data = data["lines"]
    if not isinstance(data, list) or not data:
        raise InputError(path, "is not a list of lines; expected [{...}, ...]")
    return [line for row, entry in enumerate(data, start=1) for line in read_entry(entry, path, row)]


def read_entry(entry: Any, where: object = "line", row: int = 1) -> list[PrintedLine]:
    """One object, or several lines where printed numbers are lists of equal length (two releases, two runs)."""
    if not isinstance(entry, Mapping):
        return [read_line(entry, where, row)]
    lists = {k: v for k, v in entry.items() if isinstance(v, list) and _ALIASES.get(k, k) in NUMBERS}
    if not lists:
        return [read_line(entry, where, row)]
    lengths = {len(v) for v in lists.values()}
    if len(lengths) != 1:
        raise InputError(where, "lists of different lengths", row=row, field=", ".join(lists))
    lines = []
    for i in range(lengths.pop()):
        chosen = {k: (v[i] if isinstance(v, list) and len(v) > i else v) for k, v in entry.items()}
        lines.append(read_line({**chosen, "id": f"{entry.get('id', f'row {row}')}[{i}]"}, where, row))
    return lines


def read_line(entry: Any, where: object = "line", row: int = 1) -> PrintedLine:
    """One object. Unknown fields are left alone; a wrong number is an `InputError` with row and field."""
    if not isinstance(entry, Mapping):
        raise InputError(where, "is not an object; expected fields such as model, kv_gib, kv_tokens", row=row)
    values: dict[str, Any] = {_ALIASES.get(str(name), str(name)): value for name, value in entry.items()}
    text = str(values.get("model", ""))
    if not text and not any(name in values for name in NUMBERS):
        raise InputError(where, "has neither a model nor a printed number", row=row)
    _from_result(values)
    numbers = {
        name: _number(values[name], where, row, name)
        for name in NUMBERS
        if values.get(name) not in (None, "")
    }
    unsure = _kv_gib(numbers, values, where, row)
    gpu_text = str(values.get("gpu", ""))
    if "tp" not in numbers and (cards := num_gpus(gpu_text)):
        numbers["tp"] = max(1, cards // int(numbers.get("pp", 1)))
    ledger = _ledger(values.get("ledger_gib") or {}, where, row)
    ledger = {**_flat_terms(values, where, row), **ledger}
    weights = numbers.get("weights_gib", first_number(values.get("weights")))
    if weights is None and (loaded := re.search(r"([\d.]+)\s*Gi?B loaded", text)):
        weights = float(loaded[1])
    if weights is not None:
        numbers["weights_gib"] = weights
        ledger.setdefault("weights", weights)
    if "tokens" not in numbers and (said := re.search(r"(\d[\d,]*)\s*tokens", text)):
        numbers["tokens"] = float(said[1].replace(",", ""))
    gpu, total = read_gpu(gpu_text)
    engine = read_engine(values, text)
    return PrintedLine(
        id=str(values.get("id", f"row {row}")),
        row=row,
        text=text,
        gpu_text=gpu_text,
        model=find_in_text(text),
        gpu=gpu,
        total_gib=ledger.get("total", total),
        utilisation=read_utilisation(values.get("util"), engine),
        engine=engine,
        kv_dtype=_kv_dtype(values, text),
        num_kv_layers=_num_kv_layers(numbers, text),
        quantization=read_quantization(text),
        max_model_len=_max_model_len(values, text, where, row),
        numbers=numbers,
        blocks=_blocks(values.get("gpu_blocks"), where, row),
        ledger=ledger,
        result=str(values.get("result", "")),
        note=str(values.get("note", "")),
        kv_unit_unsure=unsure,
    )


def _kv_gib(numbers: dict[str, float], values: Mapping[str, Any], where: object, row: int) -> bool:
    """Fill in `kv_gib` from `kv_mib` or `kv_gb`; True where the unit of the latter stays open (see `check_line`)."""
    if "kv_gib" in numbers:
        return False
    halves = [values.get(name) for name in ("K_gib", "V_gib")]  # SGLang prints the two apart
    if all(half not in (None, "") for half in halves):
        numbers["kv_gib"] = sum(_number(half, where, row, "K_gib") for half in halves)
    elif "kv_mib" in numbers and "n_ctx" not in numbers:
        numbers["kv_gib"] = numbers["kv_mib"] / 1024
    elif values.get("kv_gb") not in (None, ""):
        numbers["kv_gib"] = _number(values["kv_gb"], where, row, "kv_gb")
        return not re.search("decimal|GiB|10\\^9|1e9", str(values["kv_gb"]))
    return False


def _kv_dtype(values: Mapping[str, Any], text: str) -> str:
    """As the line says; "fp8 KV" in the model's text counts where there is no field."""
    if "kv_dtype" in values:
        return dtype_in_text(str(values["kv_dtype"]))
    found = re.search(
        r"(fp8(?:_e\d\w+)?|int8|q[458]_[01])\s+kv\b|\bkv\w*[\s=:]+(fp8|int8|q[458]_[01])", text.lower()
    )
    return dtype_in_text(found[1] or found[2]) if found else "bfloat16"


def _flat_terms(values: Mapping[str, Any], where: object, row: int) -> dict[str, float]:
    """Budget terms that stand beside the others and not in `ledger_gib`: `activation_gib`, `non_torch_gib`, `free_after`."""
    found: dict[str, float] = {}
    for alias, name in _LEDGER_NAMES.items():
        stem = alias.removesuffix("_gib")
        fields = [f"{stem}_gib", f"{stem}_gb", f"{stem}_mib"]
        if stem not in ("model", "weights", "total", "free", "graphs", "activation", "activations"):
            fields.append(stem)
        for field_name in fields:
            if values.get(field_name) not in (None, "", 0) and name not in found:
                number = _number(values[field_name], where, row, field_name)
                found[name] = number / 1024 if field_name.endswith("_mib") else number
    return found


#: what the engines say when they refuse to start, and the field that each number fills in
_RESULT_NUMBERS = (
    (r"max seq(?:uence)? len\w*\s*\((\d+)\)", "max_model_len"),
    (r"KV cache\s*\((\d+)\)", "kv_tokens"),
    (r"(?:\(|to serve[^(]*\()([\d.]+)\s*GiB KV cache is needed", "needs_gib"),
    (r"available KV cache memory\s*\(([\d.]+)\s*GiB", "available_gib"),
    (r"estimated maximum model length is\s*(\d+)", "estimated_max_len"),
)


def _from_result(values: dict[str, Any]) -> None:
    """vLLM's sentences carry their numbers; a field of the line itself comes first."""
    text = str(values.get("result", ""))
    for pattern, name in _RESULT_NUMBERS:
        if (found := re.search(pattern, text, re.IGNORECASE)) and values.get(name) is None:
            values[name] = float(found[1]) if "." in found[1] else int(found[1])


def _number(value: Any, where: object, row: int, name: str) -> float:
    if isinstance(value, str):
        value = _with_unit(value, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InputError(where, f"is {shown(value)}; expected a number", row=row, field=name)
    if not value > 0:
        raise InputError(where, f"is {shown(value)}; expected a number above 0", row=row, field=name)
    if value > _LARGEST:
        raise InputError(where, f"is {shown(value)}; expected at most {_LARGEST:g}", row=row, field=name)
    if name in _WHOLE and value != int(value):
        raise InputError(where, f"is {shown(value)}; expected a whole number", row=row, field=name)
    return value


def _with_unit(text: str, name: str) -> Any:
    """The first number of `text` in the unit that the field's name says. "GB" is GiB, as the engines print it, unless the
    text says that it is decimal; "15.7K" tokens are 15,700."""
    found = re.search(r"(-?\d[\d,]*(?:\.\d+)?)\s*([KMGT]i?B\b|[KkMm]\b)?", text)
    if not found or len(found[1]) > 24 or not found[1].isascii():
        return text
    number = float(found[1].replace(",", ""))
    if float.is_integer(number) and "." not in found[1]:
        number = int(number)
    unit = (found[2] or "").upper()
    if len(unit) < 2:
        return number * {"": 1, "K": 1000, "M": 1_000_000}[unit]
    power = "KMGT".index(unit[0]) + 1
    decimal = "I" not in unit and re.search("decimal|10\\^9|1e9", text)
    num_bytes = number * (1000 if decimal else 1024) ** power
    if name.endswith("bytes"):
        return num_bytes
    return num_bytes / (1 << 20) if name.endswith("_mib") else num_bytes / (1 << 30)


def _ledger(ledger: Any, where: object, row: int) -> dict[str, float]:
    if not isinstance(ledger, Mapping):
        raise InputError(where, "is not an object of GiB by term", row=row, field="ledger_gib")
    return {
        _LEDGER_NAMES[name]: _number(value, where, row, f"ledger_gib.{name}")
        for name, value in ledger.items()
        if name in _LEDGER_NAMES and value not in (0, None)
    }


def _blocks(value: Any, where: object, row: int) -> dict[str, float]:
    if value is None:
        return {}
    if isinstance(value, list):
        labels = ["before", "after"] if len(value) == 2 else [f"#{i}" for i in range(1, len(value) + 1)]
        items = dict(zip(labels, value, strict=True))
    else:
        items = dict(value) if isinstance(value, Mapping) else {"": value}
    return {label: _number(number, where, row, "gpu_blocks") for label, number in items.items()}


def _max_model_len(values: Mapping[str, Any], text: str, where: object, row: int) -> int | None:
    value = values.get("max_model_len")
    if value is None:
        found = re.search(r"max[ _-]?(?:model[ _-]?)?len\D{0,3}(\d+)", text)
        return int(found[1]) if found else None
    if isinstance(value, str):
        return read_length(value)
    return int(_number(value, where, row, "max_model_len"))


def _num_kv_layers(numbers: Mapping[str, float], text: str) -> int | None:
    if "num_kv_layers" in numbers:
        return int(numbers["num_kv_layers"])
    found = re.search(r"(\d+)\s+KV layers", text)
    return int(found[1]) if found else None
