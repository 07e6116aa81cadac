"""Schedulers by name: the lab's own from its four parts, and the models of real systems.

    make_scheduler("lab", kv, order="fcfs", admission="blocks", batching="chunked", pressure="recompute",
                   headroom=0.05, max_num_batched_tokens=2048)

A part is a name, or an object of one's own. Options go to the part that knows them; an option that none knows is an
error that lists the ones that are known.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from labkit.errors import LabError
from labkit.kv.base import KVCacheManager
from labkit.registry import Registry
from labkit.serving.admission import ADMISSIONS, Admission
from labkit.serving.base import Scheduler
from labkit.serving.batching import BATCHINGS
from labkit.serving.lab import LabScheduler
from labkit.serving.order import ORDERS, QueueOrder
from labkit.serving.pressure import PRESSURES

PARTS: dict[str, tuple[Registry[Any], str]] = {
    "order": (ORDERS, "fcfs"),
    "admission": (ADMISSIONS, "blocks"),
    "batching": (BATCHINGS, "chunked"),
    "pressure": (PRESSURES, "recompute"),
}
SCHEDULER_OPTIONS = ("max_num_seqs", "max_model_len", "record_chunks")
#: models of real systems: modules of `labkit.serving.systems`, each with one scheduler class
SYSTEMS = ("vllm", "sglang", "tensorrt_llm")


def scheduler_names() -> list[str]:
    """ "lab" and the modelled systems."""
    return ["lab", *SYSTEMS]


def make_scheduler(name: str, kv: KVCacheManager | None = None, **options: Any) -> Scheduler:
    """The lab's scheduler on `kv`, or a system's scheduler with that system's own option names."""
    if name == "lab":
        if kv is None:
            raise LabError("the lab's scheduler needs a KV cache manager")
        return _compose(kv, options)
    if name not in SYSTEMS:
        raise LabError(f"unknown scheduler {name!r}; choose one of: {', '.join(scheduler_names())}")
    return _scheduler_of(name)(**options)


def _scheduler_of(name: str) -> Callable[..., Scheduler]:
    """The one scheduler class that `labkit.serving.systems.<name>` defines."""
    path = f"labkit.serving.systems.{name}"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise LabError(
            f"the model of {name!r} is not part of this version; choose another scheduler"
        ) from None
    (found,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Scheduler) and value.__module__ == path
    ]
    return found


def _compose(kv: KVCacheManager, options: dict[str, Any]) -> LabScheduler:
    parts: dict[str, Any] = {}
    classes: dict[str, type] = {}
    known: dict[str, list[str]] = {}
    for part, (registry, default) in PARTS.items():
        chosen = options.pop(part, default)
        if isinstance(chosen, str):
            classes[part] = registry[chosen]
            known[part] = _option_names(classes[part])
        else:
            parts[part] = chosen
    own = {key: options.pop(key) for key in SCHEDULER_OPTIONS if key in options}
    for part, cls in classes.items():
        parts[part] = cls(**{key: value for key, value in options.items() if key in known[part]})
    all_known = sorted({name for names in known.values() for name in names})
    for key in options:
        if key not in all_known:
            listed = ", ".join([*all_known, *SCHEDULER_OPTIONS, *PARTS])
            raise LabError(f"unknown scheduler option {key!r}; these parts know: {listed}")
    return LabScheduler(kv, **parts, **own)


def _option_names(cls: type) -> list[str]:
    """Keyword names of a part's constructor, those that it hands on to its base class included."""
    names: list[str] = []
    for base in (cls, Admission, QueueOrder):
        if issubclass(cls, base):
            parameters = inspect.signature(base).parameters.values()
            names += [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    return names
