"""`labkit verify`: which recording is replayed by whom, and what came out.

A new system adds one line to `REPLAYERS`: the key of its recordings and `"module:function"`, a function
`replay(recording) -> Comparison` that compares every recorded field. Modules are imported when they are needed.
"""

from __future__ import annotations

import gzip
import importlib
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import InputError, LabError
from labkit.recording import Comparison

#: format key -> replay function
REPLAYERS: dict[str, str] = {
    "cuda-caching-allocator-golden/1": "labkit.memory.caching.replay:replay",
    "vllm": "labkit.serving.systems.vllm_recording:replay",
    "sglang": "labkit.serving.systems.sglang_recording:replay",
    "sglang-ops": "labkit.serving.systems.sglang_ops_recording:replay",
    "trtllm-steps-1": "labkit.serving.systems.trtllm_recording:replay",
    "tensorrt_llm": "labkit.serving.systems.trtllm_recording:replay",
}


@dataclass(frozen=True)
class Verdict:
    """Outcome for one file."""

    file: str
    comparison: Comparison

    def as_json(self) -> dict[str, Any]:
        first = self.comparison.first
        return {
            "file": self.file,
            "format": self.comparison.format,
            "num_ops": self.comparison.num_ops,
            "num_differences": self.comparison.num_differences,
            "first": None
            if first is None
            else {"path": first.path, "recorded": first.recorded, "replayed": first.replayed},
        }

    def __str__(self) -> str:
        comparison = self.comparison
        line = f"{self.file}: {comparison.format}, {comparison.num_ops} operations, "
        line += f"{comparison.num_differences} differing fields"
        return line if comparison.first is None else f"{line}; first: {comparison.first}"


def verify_file(path: str | Path) -> Verdict:
    """Replay one recording (`.json` or `.json.gz`); raises `LabError` when it cannot be read or nobody replays it."""
    recording = load_recording(path)
    key = format_key(recording, path)
    try:
        comparison = _replayer(key)(recording)
    except LabError as error:
        raise InputError(path, str(error)) from None
    except AssertionError as error:
        raise InputError(path, f"breaks a law of the {key} model: {error or 'an assertion'}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(
            path, f"is not a whole {key} recording ({type(error).__name__}: {error}); record it again"
        ) from error
    comparison.format = key
    return Verdict(str(path), comparison)


def verify_live(path: str | Path) -> Verdict:
    """Replay an allocator recording on the reader's own PyTorch; raises `LabError` without a CUDA device."""
    from labkit.memory.caching.live import replay_live

    recording = load_recording(path)
    key = format_key(recording, path)
    if key != "cuda-caching-allocator-golden/1":
        raise InputError(path, f"is a {key} recording; --live replays only cuda-caching-allocator-golden/1")
    try:
        return Verdict(str(path), replay_live(recording))
    except LabError as error:
        raise InputError(path, str(error)) from None


def load_recording(path: str | Path) -> dict[str, Any]:
    """The JSON object in a plain or gzip-compressed file; one sentence for everything that can be wrong with it."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(path, f"cannot be read ({reason}); give a .json or .json.gz recording") from None
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        recording = json.loads(data)
    except (ValueError, EOFError, OSError, zlib.error, RecursionError) as error:
        raise InputError(path, f"is not JSON, plain or gzip-compressed ({error})") from None
    if not isinstance(recording, dict):
        raise InputError(path, f"holds a {type(recording).__name__}; a recording is a JSON object")
    return recording


def format_key(recording: dict[str, Any], path: str | Path = "recording") -> str:
    """The key in `REPLAYERS`: the recording's `format`, or its `system` (operation traces of the radix cache have
    `ops` and `results`)."""
    for key in (recording.get("format"), recording.get("system")):
        if isinstance(key, str) and key in REPLAYERS:
            return "sglang-ops" if key == "sglang" and {"ops", "results"} <= recording.keys() else key
    known = ", ".join(sorted(REPLAYERS))
    raise InputError(path, f"has no known format or system; known are: {known}")


def _replayer(key: str) -> Callable[[dict[str, Any]], Comparison]:
    module, function = REPLAYERS[key].split(":")
    try:
        replay: Callable[[dict[str, Any]], Comparison] = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise LabError(
            f"nothing replays {key} recordings in this installation ({module} is missing)"
        ) from None
    return replay
