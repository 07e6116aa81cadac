"""What the doctor says about incidents, against the truth.

A single counts as right when its kind comes first, a double when both kinds are in the top two; a double that is not right
is counted under its first kind, with the first wrong (or missing) answer as what was said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.doctor.diagnose import HEALTHY, diagnose
from labkit.doctor.load import load_evidence
from labkit.errors import InputError


def score_folder(folder: str | Path, on_progress: Callable[[int], object] | None = None) -> dict[str, Any]:
    """Diagnose every incident of a folder that `make_incidents` wrote. Raises `InputError` when there is no truth."""
    folder = Path(folder)
    truth = _truth(folder / "truth.json")
    answers = []
    for row in truth:
        answers.append(answer(folder / row["incident_id"] / "evidence"))
        if on_progress is not None:
            on_progress(1)
    return summarise([row["kinds"] for row in truth], answers)


def answer(evidence: Path) -> list[str]:
    """The doctor's kinds in order; its verdict when it found none."""
    diagnosis = diagnose(load_evidence([evidence]))
    return diagnosis.kinds or [diagnosis.verdict]


def said(kinds: Sequence[str], answers: Sequence[str]) -> str:
    """The row of the confusion matrix: the first kind itself when right, otherwise what was said instead."""
    top = list(answers[:2])
    if len(kinds) == 1:
        return top[0]
    if set(kinds) <= set(top):
        return kinds[0]
    wrong = [name for name in top if name not in kinds]
    return wrong[0] if wrong else "only one of two"


def summarise(truth: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]) -> dict[str, Any]:
    """`macro_f1` over the kinds that are there, `per_kind_recall`, `confusion[truth][said]`, `healthy_called_sick`."""
    confusion: dict[str, dict[str, int]] = {}
    for kinds, got in zip(truth, answers, strict=True):
        row = confusion.setdefault(kinds[0], {})
        name = said(kinds, got)
        row[name] = row.get(name, 0) + 1
    recall, scores = {}, []
    for kind, row in sorted(confusion.items()):
        hits = row.get(kind, 0)
        called = sum(other.get(kind, 0) for other in confusion.values())
        recall[kind] = hits / sum(row.values())
        scores.append(2 * hits / (sum(row.values()) + called))
    healthy = confusion.get(HEALTHY, {})
    sick = sum(n for name, n in healthy.items() if name not in (HEALTHY, "not enough evidence"))
    return {
        "num_incidents": len(truth),
        "num_doubles": sum(len(kinds) > 1 for kinds in truth),
        "macro_f1": sum(scores) / len(scores) if scores else 0.0,
        "per_kind_recall": recall,
        "healthy_called_sick": sick / sum(healthy.values()) if healthy else 0.0,
        "confusion": confusion,
    }


def _truth(path: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["incidents"]
        if not rows or not all(row["kinds"] and row["incident_id"] for row in rows):
            raise KeyError
    except FileNotFoundError:
        raise InputError(
            path, "no such file; give a folder that `labkit doctor incidents make` wrote"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            path, "is not the truth of incidents; expected what `labkit doctor incidents make` wrote"
        ) from None
    return list(rows)
