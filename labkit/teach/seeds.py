"""The same notebooks under several seeds: a claim that depends on luck is a bad experiment.

    rows = run_seeds(find_notebooks(Path("notebooks"), ["06"]), [1, 2, 3], Path("build/seeds"))
    print(seeds_table(rows, [1, 2, 3]))

Every finished run is kept (`seed-N/NAME.ipynb` as executed and `seed-N/NAME.json`), so a matrix that was stopped goes on
where it was; a kept run counts only while the notebook, the package, the parameters and the traces at hand are what they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import labkit
from labkit.atomic_file import write_atomic
from labkit.errors import LabError
from labkit.teach.claims import HELD, NOT_MEASURED, claim_list, known_exceptions, verdict_from
from labkit.teach.runner import NotebookRun, check_parameters, run_notebooks
from labkit.workload.traces import TRACES, find_trace

#: what a cell of the table says beside the three verdicts of a claim
CONTROL_HOLDS, MISSING, RAN, FAILED = "control holds", "missing", "ran", "failed"
MARKS = {HELD: "✓", NOT_MEASURED: "–", RAN: "✓", CONTROL_HOLDS: "c", MISSING: "?"}


@dataclass(frozen=True)
class Row:
    """One claim, and what came of it under each seed; with an empty `claim_id` a notebook that makes none, or that failed."""

    notebook: str
    claim_id: str
    outcomes: Mapping[int, str]

    @property
    def flips(self) -> bool:
        """Not the same under every seed."""
        return len(set(self.outcomes.values())) > 1

    @property
    def good(self) -> bool:
        """The same verdict everywhere, and one that `labkit notebooks run` would accept."""
        accepted = {HELD, NOT_MEASURED, RAN} | (
            {"not held"} if self.claim_id in known_exceptions() else set()
        )
        return not self.flips and set(self.outcomes.values()) <= accepted


def parse_seeds(text: str) -> list[int]:
    """ "1,2,5-8" as numbers, in order and without repetition. Raises `LabError` for anything else."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise LabError(
                f"--seeds {text!r}: {part.strip()!r} is neither a number from 0 on nor a range like 1-8"
            )
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))


def run_seeds(
    notebooks: Sequence[Path],
    seeds: Sequence[int],
    out: Path,
    *,
    parameters: Mapping[str, Any] | None = None,
    timeout_s: int = 300,
    num_kernels: int = 1,
    on_done: Callable[[str, int], object] | None = None,
) -> list[Row]:
    """Run each notebook under each seed and return a row a claim, in the order of the sections.

    `on_done(notebook, seed)` is called for kept runs too. Raises `LabError` for an undeclared parameter before anything
    runs; a notebook that fails does not stop the others.
    """
    shared = dict(parameters or {})
    if "seed" in shared:
        raise LabError("-p seed: the seeds of this command come from --seeds")
    for path in notebooks:
        check_parameters(path, {**shared, "seed": 0})
    conditions = _conditions(shared)
    prints = {path.stem: hashlib.sha256(path.read_bytes() + conditions).hexdigest() for path in notebooks}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for seed in seeds:
        folder = out / f"seed-{seed}"

        def keep(run: NotebookRun, seed: int = seed, folder: Path = folder) -> None:
            record = {
                "notebook": run.notebook, "seed": seed, "fingerprint": prints[run.notebook], "error": run.error,
                "duration_s": round(run.duration_s, 1), "verdicts": [asdict(v) for v in run.verdicts],
            }  # fmt: skip
            write_atomic(
                folder / f"{run.notebook}.json",
                json.dumps(record, indent=1, ensure_ascii=False) + "\n",
                parents=True,
            )
            found[run.notebook, seed] = record
            if on_done is not None:
                on_done(run.notebook, seed)

        missing = []
        for path in notebooks:
            kept = _kept(folder / f"{path.stem}.json", prints[path.stem])
            if kept is None:
                missing.append(path)
                continue
            found[path.stem, seed] = kept
            if on_done is not None:
                on_done(path.stem, seed)
        if missing:
            run_notebooks(
                missing, folder, parameters={**shared, "seed": seed}, timeout_s=timeout_s, num_kernels=num_kernels, on_done=keep
            )  # fmt: skip
    return list(_rows([path.stem for path in notebooks], seeds, found))


def seeds_table(rows: Sequence[Row], seeds: Sequence[int]) -> str:
    """A line a claim, a column a seed, and the count of flips last."""
    width = max(3, *(len(str(seed)) + 1 for seed in seeds))
    lines = [f"{'claim':>7}  " + "".join(f"{seed:>{width}}" for seed in seeds) + "   (seeds)"]
    for row in rows:
        cells = "".join(f"{MARKS.get(row.outcomes[seed], '✗'):>{width}}" for seed in seeds)
        note = (
            "   FLIPS" if row.flips else "" if row.good else f"   {next(iter(row.outcomes.values())).upper()}"
        )
        lines.append(f"{row.claim_id or row.notebook[:2]:>7}  {cells}{note}")
    flips = sum(row.flips for row in rows)
    lines.append(
        "✓ held (or: ran)   – not measured here   ✗ not held (or: failed)   c its control holds too   ? missing"
    )
    lines.append(f"{len(rows)} rows x {len(seeds)} seeds: {flips} flip{'' if flips == 1 else 's'}")
    return "\n".join(lines)


def seeds_json(rows: Sequence[Row], seeds: Sequence[int]) -> dict[str, Any]:
    """The table as data."""
    return {
        "seeds": list(seeds),
        "rows": [
            {"id": r.claim_id, "notebook": r.notebook, "flips": r.flips, "good": r.good, "outcomes": {str(s): r.outcomes[s] for s in seeds}}
            for r in rows
        ],
        "num_flips": sum(row.flips for row in rows),
    }  # fmt: skip


def _rows(
    names: Sequence[str], seeds: Sequence[int], found: Mapping[tuple[str, int], Mapping[str, Any]]
) -> Iterator[Row]:
    for name in names:
        claims = [claim_id for claim_id, entry in claim_list().items() if entry["notebook"] == name[:2]]
        ends = {seed: _end(found[name, seed]) for seed in seeds}
        if not claims or FAILED in ends.values():
            yield Row(name, "", ends)
        for claim_id in claims:
            yield Row(name, claim_id, {seed: _outcome(found[name, seed], claim_id) for seed in seeds})


def _end(record: Mapping[str, Any]) -> str:
    """A last cell that counts false claims is no failure of its own: the claims have rows."""
    return FAILED if record["error"] and "ClaimsFailed" not in record["error"] else RAN


def _outcome(record: Mapping[str, Any], claim_id: str) -> str:
    for verdict in map(verdict_from, record["verdicts"]):
        if verdict.id == claim_id:
            return CONTROL_HOLDS if verdict.control else verdict.verdict
    return MISSING


def _kept(path: Path, fingerprint: str) -> dict[str, Any] | None:
    """A run of exactly this notebook under exactly these conditions, if there is one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("fingerprint") == fingerprint else None


def _conditions(parameters: Mapping[str, Any]) -> bytes:
    """A digest that changes with any source or data file of the package, with the parameters and with the traces."""
    digest = hashlib.sha256()
    package = Path(labkit.__file__).parent
    for path in sorted(p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    traces = {name: str(find_trace(name)) for name in TRACES}
    digest.update(json.dumps([parameters, traces], sort_keys=True, default=str).encode())
    return digest.digest()
