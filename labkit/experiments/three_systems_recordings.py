"""Section 10.4: recordings of the real systems, replayed on the models that the notebook runs."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import LabError
from labkit.experiments.verify import REPLAYERS, Verdict, format_key, load_recording, verify_file
from labkit.recording import Comparison

if TYPE_CHECKING:
    pass

#: a few recordings of each real system, by folder and name under tests/golden
RECORDINGS = (
    "vllm/pressure",
    "vllm/shared_prefix_on",
    "vllm/multi_turn",
    "sglang/pressure_retract",
    "sglang/shared_pressure_lpm",
    "sglang/multi_turn",
    "trtllm/pressure_no_evict",
    "trtllm/pressure_max_util",
    "trtllm/same_step_reuse",
)


def recording_path(name: str) -> Path:
    """Where a recording of the repository lies; raises `LabError` outside of a checkout."""
    path = Path(__file__).resolve().parents[2] / "tests" / "golden" / f"{name}.json.gz"
    if not path.is_file():
        raise LabError(
            f"the recording {path} is not there; recordings come with the repository, not with the package"
        )
    return path


def replay_recordings(names: Sequence[str] = RECORDINGS) -> list[Verdict]:
    """Every recorded field of every step of each recording, against the lab's model."""
    return [verify_file(recording_path(name)) for name in names]


def replay_with_another_pool(name: str) -> Comparison:
    """The control: the same recording replayed with a pool one block (one token: SGLang) larger than the recorded one."""
    recording = copy.deepcopy(load_recording(recording_path(name)))
    config = recording["config"]
    config["max_total_tokens" if "max_total_tokens" in config else "num_blocks"] += 1
    module, function = REPLAYERS[format_key(recording, name)].split(":")
    replayed: Comparison = getattr(importlib.import_module(module), function)(recording)
    return replayed


def exact(comparisons: Sequence[Comparison]) -> bool:
    """Not one recorded field differs: the second half of claim 10.4."""
    return all(comparison.num_differences == 0 for comparison in comparisons)
