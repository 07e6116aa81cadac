"""Which of three ways runs the kernels. Decided once, here, before `triton` is imported.

    triton      compiled Triton on CUDA tensors
    interpret   Triton's interpreter, on the CPU: slow, for tests of the kernels' arithmetic
    reference   the plain torch function that stands beside each kernel

`LABKIT_KERNELS=auto|triton|interpret|reference` asks for one. `auto` (the default) means `interpret` when
`TRITON_INTERPRET=1` is set, else `triton` where CUDA and Triton are both there, else `reference`. The choice cannot
change later: Triton decides while a kernel is *defined* whether it will be compiled or interpreted.

Nothing falls back in silence. Under `auto` on a CUDA machine, CUDA tensors go to Triton and CPU tensors to the
reference, and `describe()` says so; every other mode refuses tensors that it cannot run.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any, Literal

import torch

from labkit.errors import LabError

Mode = Literal["triton", "interpret", "reference"]
CHOICES = ("auto", "triton", "interpret", "reference")


def describe() -> dict[str, Any]:
    """For `labkit env`: what was asked, what runs, and why."""
    return {
        "requested": REQUESTED,
        "mode": MODE,
        "reason": _REASON,
        "cuda_tensors": _runner("cuda"),
        "cpu_tensors": _runner("cpu"),
        "torch": torch.__version__,
        "triton": None if triton is None else triton.__version__,
        "triton_importable": TRITON_IMPORTABLE,
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def uses_triton(tensor: torch.Tensor) -> bool:
    """True when a kernel must be launched for `tensor`, False when the torch reference runs.

    Raises `LabError` where the mode cannot run a tensor of that device.
    """
    runner = _runner(tensor.device.type)
    if runner == "refused":
        raise LabError(
            f"kernels: LABKIT_KERNELS={REQUESTED} runs compiled kernels on CUDA tensors only and got one on "
            f"{tensor.device}; move it to a CUDA device, or start with LABKIT_KERNELS=auto or reference"
        )
    return runner != "reference"


def interpreting() -> bool:
    """Whether Triton's interpreter runs the kernels."""
    return MODE == "interpret"


def _runner(device_type: str) -> str:
    if MODE != "triton":
        return MODE
    if device_type == "cuda":
        return "triton"
    return "refused" if REQUESTED == "triton" else "reference"


def _triton_importable() -> bool:
    try:
        return importlib.util.find_spec("triton") is not None
    except (ImportError, ValueError):
        return False


def _choose() -> tuple[str, Mode, str]:
    requested = os.environ.get("LABKIT_KERNELS", "auto").strip().lower() or "auto"
    if requested not in CHOICES:
        raise LabError(f"LABKIT_KERNELS={requested!r} is not a backend; choose one of: {', '.join(CHOICES)}")
    if requested in ("triton", "interpret") and not TRITON_IMPORTABLE:
        raise LabError(
            f"LABKIT_KERNELS={requested} needs triton, which cannot be imported here; use reference"
        )
    interpret_env = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")
    if requested == "triton" and interpret_env:
        raise LabError("LABKIT_KERNELS=triton contradicts TRITON_INTERPRET=1; unset one of them")
    if requested == "auto":
        if not TRITON_IMPORTABLE:
            return requested, "reference", "triton cannot be imported: only the torch references run"
        if interpret_env:
            return requested, "interpret", "TRITON_INTERPRET=1 is set"
        if torch.cuda.is_available():
            return requested, "triton", "a CUDA device and triton are there"
        return requested, "reference", "no CUDA device: the torch references run"
    if requested == "interpret":
        loaded = sys.modules.get("triton")
        if loaded is not None and not interpret_env:
            raise LabError(
                "LABKIT_KERNELS=interpret came too late: triton was imported before labkit.kernels"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    return requested, requested, f"LABKIT_KERNELS={requested}"  # type: ignore[return-value]


class _NoTriton:
    """Stands for `triton.language` where the reference runs: kernels can be defined, never launched."""

    def __getattr__(self, name: str) -> Any:
        if name == "constexpr":
            return lambda value: value
        raise LabError(f"kernels: triton.language.{name} was used, and the backend is {MODE}")


def _not_launchable(function: Any = None, **_: Any) -> Any:
    """Replaces `@triton.jit` where the reference runs, so that `import labkit.kernels` needs no triton."""
    return function if function is not None else _not_launchable


TRITON_IMPORTABLE = _triton_importable()
REQUESTED, MODE, _REASON = _choose()

triton: types.ModuleType | None
tl: Any
jit: Any
if MODE == "reference":
    triton, tl, jit = None, _NoTriton(), _not_launchable
else:
    import triton as _triton
    import triton.language as _language

    triton, tl, jit = _triton, _language, _triton.jit
