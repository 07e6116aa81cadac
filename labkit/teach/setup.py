"""First cell of every notebook: turn the parameters into a scale, a device and a generator, and say what will run."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from labkit.errors import LabError

SCALES = ("ci", "lab", "gpu")
T = TypeVar("T")


@dataclass(frozen=True)
class Setup:
    """`scale` is "ci", "lab" or "gpu"; `device` is "cpu" or "cuda"; `rng(k)` is a generator of its own for part `k`."""

    scale: str
    device: str
    seed: int

    def pick(self, *, ci: T, lab: T, gpu: T | None = None) -> T:
        """A size for this scale; "gpu" uses the lab's size unless it has its own."""
        if self.scale == "ci":
            return ci
        return lab if self.scale == "lab" or gpu is None else gpu

    def rng(self, part: int = 0) -> np.random.Generator:
        """A fresh generator for one part of a notebook: same seed and part, same numbers."""
        return np.random.default_rng([self.seed, part])


def setup(scale: str, device: str, seed: int) -> Setup:
    """Check the parameters, print what runs here and what is modelled, and return the `Setup`."""
    if scale not in SCALES:
        raise LabError(f"scale is {scale!r}; choose one of: {', '.join(SCALES)}")
    if device not in ("auto", "cpu", "cuda"):
        raise LabError(f"device is {device!r}; choose one of: auto, cpu, cuda")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise LabError(f"seed is {seed!r}; it is a whole number from 0 on")
    found = _cuda_name() if device != "cpu" else None
    if device == "cuda" and found is None:
        raise LabError("device is 'cuda' and PyTorch finds no CUDA device here; use device='auto' or 'cpu'")
    chosen = Setup(scale, "cuda" if found else "cpu", seed)
    if found:
        print(f"scale {scale}, seed {seed}. GPU: {found}. Decisions, tensors and Triton kernels run here.")
    else:
        print(
            f"scale {scale}, seed {seed}. No GPU here: allocators, caches and schedulers run exactly, tensors run on the "
            "CPU, step times are modelled, kernel times are not measured."
        )
    return chosen


def _cuda_name() -> str | None:
    if (
        shutil.which("nvidia-smi") is None
    ):  # importing torch costs seconds; without a driver the answer is known
        return None
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
