"""Small experiments that answer an interview question each: the proofs of `labkit/data/quiz.yaml`.

A proof is a function of arguments that the question gives. It returns a `Proof`: did the predicate hold, and the figures
it rests on. Every question names two sets of arguments: one on which the answer shows, and a control on which the same
predicate must be false.

    from labkit.experiments.proofs.fragmentation import hotel
    hotel(scattered=True).holds, hotel(scattered=False).holds        # True, False
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Proof:
    """One run of one predicate; truth counts as the proof does."""

    holds: bool
    figures: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", bool(self.holds))

    def __bool__(self) -> bool:
        return self.holds
