"""What a fix would do: the recorded requests served again with it, or, for a scrape, a load fitted to its totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.doctor.evidence import Evidence

if TYPE_CHECKING:
    from labkit.doctor.diagnose import Effect
    from labkit.doctor.signals import Signals


def effects_of(kind: str, evidence: Evidence, signals: Signals) -> list[Effect]:
    """Empty until the evidence allows it."""
    return []
