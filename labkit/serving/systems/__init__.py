"""Three real systems, decision for decision, each under its own option names.

    make_system("vllm", num_gpu_blocks=4096, max_num_seqs=64)
    make_system("sglang", {"max_total_tokens": 65536})

A system's module is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from labkit.errors import LabError
from labkit.serving.base import Scheduler

#: name -> module below this package, class
SYSTEMS = {
    "vllm": ("vllm", "VllmScheduler"),
    "sglang": ("sglang", "SglangScheduler"),
    "tensorrt_llm": ("tensorrt_llm", "TensorRtLlmScheduler"),
}


def system_class(name: str) -> type[Scheduler]:
    """Its scheduler class, imported now. Raises `LabError` that lists the names."""
    if name not in SYSTEMS:
        raise LabError(f"unknown system {name!r}; choose one of: {', '.join(sorted(SYSTEMS))}")
    module, cls = SYSTEMS[name]
    return cast(type[Scheduler], getattr(import_module(f"{__name__}.{module}"), cls))


def make_system(name: str, options: Mapping[str, Any] | None = None, **named: Any) -> Scheduler:
    """A scheduler with that system's rules; `options` and `named` are its own option names, and `record_chunks`."""
    return system_class(name)(**{**(options or {}), **named})
