"""GPU facts: usable memory, bandwidth, matrix rate. `labkit/data/gpus.json` says which number was seen where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from labkit.errors import InputError, LabError, shown
from labkit.json_text import read_json
from labkit.models.fields import Fields
from labkit.units import GIB


@dataclass(frozen=True, slots=True)
class GPUSpec:
    """`total_bytes` is what the driver reports as usable; bandwidth and FLOP/s are datasheet peaks."""

    name: str
    total_bytes: int
    bandwidth_bytes_s: float
    flops_16bit: float
    compute_capability: float
    note: str = ""

    @property
    def total_gib(self) -> float:
        return self.total_bytes / GIB


def get_gpu(name: str) -> GPUSpec:
    """A GPU of the catalogue (`"H100-80GB"`, or any unambiguous beginning such as `"H100"`), or a JSON file of one's
    own with `total_gib`, `bandwidth_gb_s` and `bf16_dense_tflops`. Raises `LabError` that lists the names."""
    if name.endswith(".json"):
        return _read_file(Path(name))
    catalogue = load_gpus()
    wanted = name.casefold().replace(" ", "-")
    exact = [spec for key, spec in catalogue.items() if key.casefold() == wanted]
    begins = [spec for key, spec in catalogue.items() if key.casefold().startswith(wanted)]
    if len(begins) > 1:  # "H100" is the card of that name, not the H100NVL
        begins = [spec for spec in begins if spec.name.casefold().startswith(wanted + "-")] or begins
    if exact or (wanted and len(begins) == 1):
        return (exact or begins)[0]
    raise LabError(
        f"unknown GPU {shown(name)}; choose one of: {', '.join(catalogue)}, or give a .json file of your own"
    )


@cache
def load_gpus() -> dict[str, GPUSpec]:
    """The catalogue, by name."""
    text = resources.files("labkit").joinpath("data/gpus.json").read_text(encoding="utf-8")
    return {name: _gpu(name, facts, "gpus.json") for name, facts in json.loads(text)["gpus"].items()}


def _read_file(path: Path) -> GPUSpec:
    facts = read_json(
        path,
        "a GPU's name, or an object with total_gib, bandwidth_gb_s, bf16_dense_tflops",
    )
    if not isinstance(facts, Mapping):
        raise InputError(path, "is not a JSON object; expected total_gib, bandwidth_gb_s, bf16_dense_tflops")
    return _gpu(str(facts.get("name", path.stem)), facts, path)


def _gpu(name: str, facts: Mapping[str, Any], where: object) -> GPUSpec:
    fields = Fields(facts, where)
    return GPUSpec(
        name=name,
        total_bytes=round(fields.number("total_gib", minimum=0.0, maximum=1e6) * GIB),
        bandwidth_bytes_s=fields.number("bandwidth_gb_s", minimum=0.0, maximum=1e9) * 1e9,
        flops_16bit=fields.number("bf16_dense_tflops", minimum=0.0, maximum=1e9) * 1e12,
        compute_capability=fields.number("compute_capability", default=0.0, maximum=1000.0),
        note=str(facts.get("seen") or facts.get("note") or ""),
    )
