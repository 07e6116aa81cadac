"""Comparing a model with a recording of the real system, field by field.

A replayer is a function `replay(recording: dict) -> Comparison`. It re-runs the recorded input on the lab's model and
calls `compare` for *every* recorded field, so that a single changed value in the file shows up under its own path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Difference:
    """One recorded value that the model did not reproduce. `path` reads like `steps[12].preempted[0].blocks`."""

    path: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return f"{self.path}: recorded {self.recorded!r}, replayed {self.replayed!r}"


@dataclass
class Comparison:
    """Outcome of one replay. `num_ops` counts operations or steps; only the first differences are kept."""

    format: str
    num_ops: int = 0
    num_differences: int = 0
    kept: list[Difference] = field(default_factory=list)
    max_kept: int = 20

    @property
    def first(self) -> Difference | None:
        """The first difference; None when there is none."""
        return self.kept[0] if self.kept else None

    def compare(self, path: str, recorded: Any, replayed: Any) -> bool:
        """Compare one value (containers are walked so that the path names the exact element). True when equal."""
        if type(recorded) is type(replayed) and recorded == replayed:
            return True
        if isinstance(recorded, dict) and isinstance(replayed, dict):
            for key in recorded.keys() | replayed.keys():
                self.compare(f"{path}.{key}", recorded.get(key, "<absent>"), replayed.get(key, "<absent>"))
            return recorded == replayed
        if isinstance(recorded, list | tuple) and isinstance(replayed, list | tuple):
            if len(recorded) != len(replayed):
                self._note(f"{path}.length", len(recorded), len(replayed))
            for index, (left, right) in enumerate(zip(recorded, replayed, strict=False)):
                self.compare(f"{path}[{index}]", left, right)
            return list(recorded) == list(replayed)
        if recorded == replayed and not isinstance(recorded, bool) and not isinstance(replayed, bool):
            return True  # 1 and 1.0
        self._note(path, recorded, replayed)
        return False

    def _note(self, path: str, recorded: Any, replayed: Any) -> None:
        self.num_differences += 1
        if len(self.kept) < self.max_kept:
            self.kept.append(Difference(path, recorded, replayed))
