"""Traces by name or path: where a file may lie, which format it has, and what to do when it is not there.

A trace is looked for in `shared/traces` beside or above the project, then in the cache of `labkit traces fetch`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.errors import InputError, LabError
from labkit.workload import azure, lmcache_lengths, own_format
from labkit.workload.azure import load_azure
from labkit.workload.base import RequestSpec
from labkit.workload.lmcache_lengths import load_lmcache_lengths
from labkit.workload.mooncake import load_mooncake
from labkit.workload.own_format import load_own
from labkit.workload.reading import first_line
from labkit.workload.synthetic import LOADS, synthetic_load

_RAW = "https://raw.githubusercontent.com"
_AZURE = f"{_RAW}/Azure/AzurePublicDataset/790921015d50dd6aae7f7e47f39ba0e235ad6b08/data"
_MOONCAKE = f"{_RAW}/kvcache-ai/Mooncake/a2a4b18ac537fd798d50e6e9f57031ce86419a37/FAST25-release/traces"
_SERVEGEN = f"{_RAW}/alibaba/ServeGen/f891d118/data/language/m-large"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A public trace: name, file name, size, SHA-256 of the original, where it is published (None: derived data that
    is not published as such) and under which licence."""

    name: str
    file_name: str
    num_bytes: int
    sha256: str
    url: str | None
    licence: str
    what: str


TRACES = {
    trace.name: trace
    for trace in (
        TraceFile(
            "azure-conv",
            "AzureLLMInferenceTrace_conv.csv",
            719188,
            "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
            f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
            "CC-BY-4.0",
            "Azure 2023, chat: 19,366 requests",
        ),
        TraceFile(
            "azure-code",
            "AzureLLMInferenceTrace_code.csv",
            320117,
            "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
            f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
            "CC-BY-4.0",
            "Azure 2023, code completion: 8,819 requests",
        ),
        TraceFile(
            "mooncake-conversation",
            "mooncake_conversation_trace.jsonl",
            3029533,
            "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
            f"{_MOONCAKE}/conversation_trace.jsonl",
            "Apache-2.0",
            "Mooncake, chat with prefix block ids: 12,031 requests",
        ),
        TraceFile(
            "servegen-m-large-143",
            "servegen_language_m-large_chunk-143-trace.csv",
            141286,
            "b0d7931104da3baff185a92bea31c42b305bfe01b7530bc7625972acb5e8018a",
            f"{_SERVEGEN}/chunk-143-trace.csv",
            "Apache-2.0",
            "ServeGen client 143: arrival rates of 2,016 windows",
        ),
        TraceFile(
            "servegen-m-large-143-dataset",
            "servegen_language_m-large_chunk-143-dataset.json",
            1145495,
            "bdcbfbe9aef50e2d9edde61eb079cb86360382cd8d6c25669aba8195c971c356",
            f"{_SERVEGEN}/chunk-143-dataset.json",
            "Apache-2.0",
            "ServeGen client 143: length distributions",
        ),
        TraceFile(
            "lmcache-agents",
            "derived_lmcache_agent_lengths.csv",
            68903,
            "790eb49840b6350a644e756f64c9dc4ace99693627285077cc21b9484ab84e08",
            None,
            "Apache-2.0",
            "lengths of agent sessions, in characters: 1,619 steps",
        ),
    )
}


def find_trace(name: str) -> Path | None:
    """The file of a trace (by its name above or its file name), or None when it is not on this machine (or when
    `LABKIT_NO_TRACES` is set, which is how the synthetic stand-ins are tested)."""
    if os.environ.get("LABKIT_NO_TRACES"):
        return None
    file_name = TRACES[name].file_name if name in TRACES else name
    return next((folder / file_name for folder in trace_folders() if (folder / file_name).is_file()), None)


def trace_folders() -> list[Path]:
    """Where traces are looked for, in order."""
    root = Path(__file__).resolve().parents[2]
    return [root / "shared" / "traces", root.parent / "shared" / "traces", trace_cache()]


def trace_cache() -> Path:
    """Where `labkit traces fetch` puts files: `$LABKIT_CACHE`, else `~/.cache/labkit`, in its folder `traces`."""
    base = os.environ.get("LABKIT_CACHE")
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "labkit")
    return Path(base) / "traces"


def resolve_trace(name_or_path: str | Path) -> Path:
    """A path as given when it exists, else a known trace by name. Raises `LabError` that says where was looked."""
    path = Path(name_or_path)
    if path.exists():
        return path
    name = str(name_or_path)
    if name not in TRACES:
        raise InputError(
            path, f"no such file, and no trace of that name; known names are {', '.join(sorted(TRACES))}"
        )
    found = find_trace(name)
    if found is None:
        raise LabError(f"trace {name!r} is not on this machine; get it with: labkit traces fetch {name}")
    return found


def load_trace(path: str | Path, limit: int | None = None) -> list[RequestSpec]:
    """The first `limit` requests (None: all) of a trace file, or of a known trace by name; the format is told from its first line.

    Raises `InputError` with row and field; ServeGen files describe distributions and are read by
    `labkit.workload.servegen.load_servegen`, which takes a generator.
    """
    if limit is not None and limit < 1:
        raise LabError(f"limit is {limit}; it must be at least 1")
    path = resolve_trace(path)
    line = first_line(path)
    if not line:
        raise InputError(path, "is empty; expected a trace")
    if line.lstrip().startswith("{"):
        return (load_mooncake if '"hash_ids"' in line else load_own)(path, limit)
    names = [name.strip() for name in line.split(",")]
    if names[0].upper() == "TIMESTAMP" or azure.HEADER[1] in names:
        return load_azure(path, limit)
    if tuple(names) == lmcache_lengths.HEADER:
        return load_lmcache_lengths(path, limit)
    if any(name in own_format.REQUIRED for name in names):
        return load_own(path, limit)
    if path.name.endswith("-trace.csv") and len(names) == 6:
        raise InputError(
            path, "is a ServeGen description and not a list of requests; draw from it with load_servegen"
        )
    raise InputError(
        path,
        f"the first line {line[:60]!r} is not the header of a known trace; accepted are "
        f"{','.join(azure.HEADER)}, {','.join(own_format.REQUIRED)} (the lab's own), and Mooncake JSON lines",
        row=1,
    )


def load_or_synthetic(
    name: str, num_requests: int | None = None, rng: np.random.Generator | None = None
) -> tuple[list[RequestSpec], str]:
    """The first `num_requests` of a trace where it is at hand, else a synthetic load with its statistics, and a
    sentence that says which of the two it is."""
    if name not in LOADS:
        raise LabError(f"no synthetic stand-in for {name!r}; choose one of: {', '.join(sorted(LOADS))}")
    path = find_trace(name)
    if path is not None:
        requests = load_trace(path, num_requests)
        return requests, f"Load: the first {len(requests):,} requests of the trace {path.name}."
    requests = synthetic_load(name, num_requests or 5000, rng or np.random.default_rng(0))
    return requests, (
        f"Load: {len(requests):,} synthetic requests with the statistics of {name}; the trace itself is not on this "
        f"machine (labkit traces fetch {name})."
    )
