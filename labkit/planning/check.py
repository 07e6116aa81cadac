"""Printed capacity lines against the planner's arithmetic, step by step.

A line tests every step that its own terms allow: bytes a token (exact), GiB from the budget terms, blocks and tokens
from GiB, tokens from blocks, concurrency from tokens, and so on. A step passes within 0.2 % on one rank and 1.5 %
across ranks, or when it is equal at the printed decimals (a printed number is an interval). Where terms are missing the
planner estimates them and says how far off that is; an estimate is never a test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.planning.estimates import estimate_steps
from labkit.planning.printed import PrintedLine
from labkit.planning.steps import Step
from labkit.planning.steps_capacity import capacity_steps
from labkit.planning.steps_lengths import length_steps
from labkit.units import GIB


@dataclass(frozen=True)
class CheckedLine:
    """One row of the table. `verdict`: "ok", "flagged" (a step that can be tested misses), "estimated" or
    "estimate off" (nothing could be tested, the planner's range holds the number or does not), "untested"."""

    line: PrintedLine
    steps: list[Step] = field(default_factory=list)
    estimates: list[Step] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """ "flagged", "ok", or, where no exact step applies, "estimated", "estimate off" or "untested"."""
        if any(not step.holds for step in self.steps):
            return "flagged"
        if self.steps:
            return "ok"
        if self.estimates:
            return "estimated" if all(step.holds for step in self.estimates) else "estimate off"
        return "untested"

    @property
    def flagged(self) -> bool:
        return self.verdict == "flagged"

    @property
    def worst(self) -> Step | None:
        """The tested step that deviates most, else the estimate that does."""
        return max(self.steps or self.estimates, key=lambda s: abs(s.deviation), default=None)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "id": self.line.id,
            "model": self.line.text,
            "gpu": self.line.gpu_text,
            "engine": self.line.engine,
            "verdict": self.verdict,
            "tested": [step.name for step in self.steps],
            "steps": [step.as_dict() for step in self.steps],
            "estimates": [step.as_dict() for step in self.estimates],
        }


def check_line(line: PrintedLine) -> CheckedLine:
    """Test what can be tested, estimate the rest. Where the unit of the pool is open, the reading that fits the line's
    other numbers better counts, GiB before 10^9 bytes."""
    if line.kv_unit_unsure:
        decimal = {**line.numbers, "kv_gib": line.numbers["kv_gib"] * 1e9 / GIB}
        readings = [replace(line, kv_unit_unsure=False), replace(line, kv_unit_unsure=False, numbers=decimal)]
        return min(map(check_line, readings), key=lambda r: sum(not step.holds for step in r.steps))
    return CheckedLine(line, [*capacity_steps(line), *length_steps(line)], list(estimate_steps(line)))


def check_lines(lines: Iterable[PrintedLine]) -> list[CheckedLine]:
    """One result a line, in order."""
    return [check_line(line) for line in lines]


def table(results: Iterable[CheckedLine]) -> list[tuple[str, str, str, str, str, str, str]]:
    """Rows `(id, model, step, printed, planned, deviation, verdict)`, one a step; what could not be tested as well."""
    rows = []
    for result in results:
        steps = [(s, "") for s in result.steps] + [(s, " (estimate)") for s in result.estimates]
        if not steps:
            rows.append((result.line.id, result.line.text, "-", "-", "-", "-", "untested"))
        for step, mark in steps:
            verdict = (
                ("ok" if step.holds else "flagged") if not mark else ("in range" if step.holds else "off")
            )
            rows.append(
                (
                    result.line.id,
                    result.line.text,
                    step.name + mark,
                    _show(step.printed),
                    _show(step.planned),
                    f"{100 * step.deviation:+.2f} %" if math.isfinite(step.deviation) else "-",
                    verdict,
                )
            )
    return rows


def _show(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 100 else f"{value:,.2f}"
