"""The evaluation: 40 incidents of each sick kind and 300 healthy ones, on every core, resumable.

One incident is one task: made, diagnosed, noted. What was noted before is not made again.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from labkit.experiments.incidents.kinds import HEALTHY, KINDS
from labkit.experiments.incidents.make import make_incident, plan_incidents
from labkit.experiments.incidents.score import answer, summarise

NUM_EACH, NUM_HEALTHY = 40, 300


def evaluation_rows(num_each: int = NUM_EACH, num_healthy: int = NUM_HEALTHY) -> list[dict[str, str]]:
    """What is made: every kind with all severities, traces, look-alikes, and a tenth of doubles."""
    rows = []
    for name in KINDS:
        number = num_healthy if name == HEALTHY else num_each
        rows += plan_incidents(number, [name], None, None) if number else []
    return rows


def evaluate(
    seed: int,
    out: str | Path,
    *,
    num_each: int = NUM_EACH,
    num_healthy: int = NUM_HEALTHY,
    workers: int | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Make and diagnose; answers are kept in `out/answers-SEED.jsonl` as they come, so that a stopped run goes on."""
    rows = evaluation_rows(num_each, num_healthy)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    notes = out / f"answers-{seed}.jsonl"
    known = _read(notes, rows)
    if on_progress is not None and known:
        on_progress(len(known))
    # in mixed order, so that a part of the run already says something about every kind
    todo = [int(i) for i in np.random.default_rng(seed).permutation(len(rows)) if i not in known]
    with notes.open("a", encoding="utf-8") as file, ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        futures = [pool.submit(one, seed, i, rows[i]) for i in todo]
        try:
            for future in as_completed(futures):
                note = future.result()
                file.write(json.dumps(note) + "\n")
                file.flush()
                known[note["number"]] = note
                if on_progress is not None:
                    on_progress(1)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for what has not begun
    ordered = [known[i] for i in range(len(rows))]
    return {"seed": seed, **summarise([n["kinds"] for n in ordered], [n["answers"] for n in ordered])}


def one(seed: int, number: int, row: dict[str, str]) -> dict[str, Any]:
    """One incident made in a temporary folder and diagnosed from its evidence alone."""
    with tempfile.TemporaryDirectory() as folder:
        evidence = Path(folder) / "evidence"
        incident = make_incident(seed, number, row, evidence)
        return {"number": number, "row": row, "kinds": incident.kinds, "answers": answer(evidence)}


def _read(path: Path, rows: list[dict[str, str]]) -> dict[int, dict[str, Any]]:
    """Notes of an earlier run; a last line that was cut off is left out."""
    known = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            note = json.loads(line)
        except ValueError:
            continue
        if note["number"] < len(rows) and note["row"] == rows[note["number"]]:
            known[note["number"]] = note
    return known


def confusion_table(result: dict[str, Any]) -> str:
    """The matrix as a Markdown table: rows are what was made, cells what was said."""
    confusion = result["confusion"]
    lines = ["| made | right | said instead |", "| --- | --- | --- |"]
    for kind in [k for k in KINDS if k in confusion]:
        row = confusion[kind]
        others = ", ".join(
            f"{name} {n}" for name, n in sorted(row.items(), key=lambda r: -r[1]) if name != kind
        )
        lines.append(f"| `{kind}` | {row.get(kind, 0)} of {sum(row.values())} | {others or '-'} |")
    return "\n".join(lines)
