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

from labkit.errors import InputError
from labkit.json_text import read_json
from labkit.models.catalogue import find_in_text
from labkit.models.gpus import GPUSpec
from labkit.models.quantization import Quantization
from labkit.models.spec import ModelSpec
from labkit.planning.free_text import (
    first_number,
    num_gpus,
    read_engine,
    read_gpu,
    read_kv_dtype,
    read_num_kv_layers,
    read_quantization,
    read_utilisation,
)
from labkit.planning.printed_names import ALIASES, NUMBERS
from labkit.planning.printed_numbers import (
    fill_from_result,
    fill_kv_gib,
    read_blocks,
    read_flat_terms,
    read_ledger,
    read_max_model_len,
    read_number,
)


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
    lists = {k: v for k, v in entry.items() if isinstance(v, list) and ALIASES.get(k, k) in NUMBERS}
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
    values: dict[str, Any] = {ALIASES.get(str(name), str(name)): value for name, value in entry.items()}
    text = str(values.get("model", ""))
    if not text and not any(name in values for name in NUMBERS):
        raise InputError(where, "has neither a model nor a printed number", row=row)
    fill_from_result(values)
    numbers = {
        name: read_number(values[name], where, row, name)
        for name in NUMBERS
        if values.get(name) not in (None, "")
    }
    unsure = fill_kv_gib(numbers, values, where, row)
    gpu_text = str(values.get("gpu", ""))
    if "tp" not in numbers and (cards := num_gpus(gpu_text)):
        numbers["tp"] = max(1, cards // int(numbers.get("pp", 1)))
    ledger = read_ledger(values.get("ledger_gib") or {}, where, row)
    ledger = {**read_flat_terms(values, where, row), **ledger}
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
        kv_dtype=read_kv_dtype(values, text),
        num_kv_layers=read_num_kv_layers(numbers, text),
        quantization=read_quantization(text),
        max_model_len=read_max_model_len(values, text, where, row),
        numbers=numbers,
        blocks=read_blocks(values.get("gpu_blocks"), where, row),
        ledger=ledger,
        result=str(values.get("result", "")),
        note=str(values.get("note", "")),
        kv_unit_unsure=unsure,
    )
