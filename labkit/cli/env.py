"""`labkit env`: what this machine has, what will really run here and what will be modelled."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "pandas",
    "matplotlib",
    "jupyterlab",
    "ipywidgets",
    "anywidget",
    "papermill",
)


def run(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Versions, device, kernel backend, traces, and which parts run and which are modelled."""
    facts = describe()
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    for group, rows in facts.items():
        print(group)
        for name, value in rows.items():
            print(f"  {name:<24} {value}")


def describe() -> dict[str, dict[str, Any]]:
    """Groups of name and value, as printed."""
    from labkit import __version__
    from labkit.kernels import backend
    from labkit.workload.traces import find_trace

    kernels = backend.describe()
    device = _device()
    on_gpu = device["device"] != "cpu"
    return {
        "versions": {
            "labkit": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "device": device,
        "kernels": dict(kernels),
        "on this machine": {
            "decisions and memory": "run (allocators, caches and schedulers are exact everywhere)",
            "tensors": f"run on {device['device']}",
            "kernel results": "run by Triton on the GPU" if on_gpu else "run by the torch reference",
            "kernel times": "measured by labkit kernels bench"
            if on_gpu
            else "not measured here (needs a CUDA device)",
            "step times": "modelled by a roofline (docs/schedulers.md)",
        },
        "traces": {
            name: "found"
            if find_trace(name)
            else "not found: the synthetic load is used (labkit traces fetch)"
            for name in ("azure-conv", "azure-code", "mooncake-conversation")
        },
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _device() -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        return {"device": "cpu", "note": "torch cannot be imported: no tensors on this machine"}
    if not torch.cuda.is_available():
        return {"device": "cpu", "cores": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": "cuda",
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 2),
    }
