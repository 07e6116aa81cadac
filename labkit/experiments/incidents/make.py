"""Make incidents: a seed gives the same files again. Evidence lies in `OUT/<id>/evidence/`, the truth apart in `OUT/truth.json`.

Every sick incident is felt by users: the generator serves the same load with and without the fault and raises the fault
until P95 of TTFT or the share of refused requests is worse by what the severity asks (or the fault cannot grow further;
the effect stands in the truth either way).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.atomic_file import write_atomic
from labkit.errors import LabError
from labkit.experiments.incidents.kinds import (
    HEALTHY,
    KINDS,
    LOOK_ALIKES,
    PARTNERS,
    RECIPES,
    ROOM,
    Plan,
    not_weights_only,
    recipe_order,
)
from labkit.experiments.incidents.load import TRACES, Load, make_load
from labkit.experiments.incidents.seen import Watched
from labkit.experiments.incidents.server import watch
from labkit.experiments.incidents.writing import write_evidence
from labkit.serving.progress import NoProgress

#: severity -> (first strength, P95 of TTFT worse by at least, refusals higher by at least)
SEVERITIES = {"mild": (0.35, 0.3, 0.02), "moderate": (0.8, 0.6, 0.04), "severe": (1.3, 1.2, 0.08)}
#: and at least this many seconds of P95: a tenth of 0.3 s is nobody's incident
LEAST_S = 0.25
#: kinds whose sign is a queue that waits again and again
QUEUES = frozenset(
    ("capacity_too_small", "weights_only_quantisation", "workspace_limited", "admission_too_conservative",
     "contiguous_fragmentation", "cache_without_eviction_policy", "pool_held_by_long_requests")
)  # fmt: skip
MAX_TRIES = 9


@dataclass(frozen=True)
class Incident:
    """What the truth file says about one incident."""

    incident_id: str
    kinds: list[str]
    severity: str
    trace: str
    system: str
    look_alike: str
    ttft_p95_s: float
    ttft_p95_without_s: float
    refusals: float
    num_tries: int

    def felt(self, p95: float, refusals: float) -> bool:
        """Worse than without the fault by this share of P95, or these more refusals."""
        before, now = self.ttft_p95_without_s, self.ttft_p95_s
        return self.refusals >= refusals or now >= max((1 + p95) * before, before + LEAST_S)


def plan_incidents(
    num: int, kinds: Sequence[str] | None, severity: str | None, trace: str | None
) -> list[dict[str, str]]:
    """One row an incident: its first kind (spread evenly), severity, trace, look-alike, second kind's place."""
    kinds = list(kinds or KINDS)
    for name in kinds:
        if name not in KINDS:
            raise LabError(f"unknown kind {name!r}; choose one of: {', '.join(KINDS)}")
    if severity not in (None, "mixed", *SEVERITIES):
        raise LabError(f"unknown severity {severity!r}; choose one of: mixed, {', '.join(SEVERITIES)}")
    if trace not in (None, "mixed", *TRACES):
        raise LabError(f"unknown trace {trace!r}; choose one of: mixed, {', '.join(TRACES)}")
    if num < 1:
        raise LabError(f"--num {num} makes nothing; start at 1")
    rows, seen = [], dict.fromkeys(kinds, 0)
    for i in range(num):
        name = kinds[i % len(kinds)]
        nth, seen[name] = seen[name], seen[name] + 1
        level = severity if severity in SEVERITIES else list(SEVERITIES)[nth % len(SEVERITIES)]
        rows.append(
            {
                "kind": name,
                "severity": level or "mild",
                "trace": trace if trace in TRACES else TRACES[(nth + i) % len(TRACES)],
                "look_alike": LOOK_ALIKES[nth % len(LOOK_ALIKES)] if name == HEALTHY else "",
                "double": "yes" if nth % 10 == 9 and name != HEALTHY else "",
            }
        )
    return rows


def make_incidents(
    seed: int,
    num: int,
    out: str | Path,
    *,
    kinds: Sequence[str] | None = None,
    severity: str | None = None,
    trace: str | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> list[Incident]:
    """Write `num` incidents under `out`. What is already there (same seed and request) is kept, so a run that was stopped
    goes on where it was."""
    out = Path(out)
    rows = plan_incidents(num, kinds, severity, trace)
    done = _already(out, seed, rows)
    found = []
    for number, row in enumerate(rows):
        name = f"{number:04d}"
        if name not in done:
            incident = make_incident(seed, number, row, out / name / "evidence")
            done = dataclasses.asdict(incident) | {"row": row, "seed": seed}
            write_atomic(out / name / "made.part", json.dumps(done, indent=1), parents=True)
            done[name] = incident
        found.append(done[name])
        if on_progress is not None:
            on_progress(1)
    truth = {"seed": seed, "incidents": [dataclasses.asdict(i) for i in found]}
    write_atomic(out / "truth.json", json.dumps(truth, indent=1), parents=True)
    for name in done:
        (out / name / "made.part").unlink(missing_ok=True)
    return found


def make_incident(
    seed: int,
    number: int,
    row: dict[str, str],
    folder: Path,
    *,
    card_fill: float | None = None,
    weight_bits: int | None = None,
    prefix_cache: bool | None = None,
) -> Incident:
    """One incident: the load, the run without the fault, the fault raised until it is felt, the evidence. `card_fill`,
    `weight_bits` and `prefix_cache` (for causes that do not need one) replace what would be drawn."""
    rng = np.random.default_rng([seed, number])
    wanted = [row["kind"]]
    if row["double"]:
        wanted.append(str(rng.choice(PARTNERS[row["kind"]])))
    look = row["look_alike"]
    needs_cache = {"late_prefix_release", "cache_without_eviction_policy"} & set(
        wanted
    ) or look == "full cache"
    prefix = bool(needs_cache) or bool(rng.random() < 0.3)
    if prefix_cache is not None and not needs_cache:
        prefix = prefix_cache
    if "contiguous_fragmentation" in wanted:
        prefix = False
    load = make_load(
        rng, row["trace"], shares_prefixes=prefix, burst=look == "burst", long_prompts=look == "long prompts"
    )
    block_size = 64 if row["trace"].startswith("mooncake") else 16
    peak = watch(load, 40_000_000, rng, prefix=False, block_size=block_size).peak_live_tokens
    setting: dict[str, Any] = {
        "weight_bits": int(rng.choice([16, 16, 16, 8, 4])), "kv_bits": int(rng.choice([16, 16, 16, 8])),
        "workspace_share": float(rng.uniform(0.05, 0.16)), "room": ROOM * float(rng.uniform(0.95, 1.15)),
    }  # fmt: skip
    if look == "burst":
        setting["room"] *= 0.82
    if look == "98 % at rest":
        setting["card_fill"] = 0.985
    if card_fill is not None:
        setting["card_fill"] = card_fill
    if weight_bits is not None:
        setting["weight_bits"] = weight_bits
    setting["restart"] = look == "restart"

    def served(strength: float, names: Sequence[str]) -> tuple[Plan, Watched]:
        own = np.random.default_rng([seed, number, 1])
        plan = Plan(own, load, peak, prefix=prefix, kinds=tuple(names), **setting)
        for name in sorted(names, key=recipe_order):
            RECIPES[name](plan, strength)
        if len(names) > 1:
            not_weights_only(plan)
        return plan, serve_plan(plan, block_size)

    _, without = served(0.0, [])
    strength, p95, refusals = SEVERITIES[row["severity"]] if row["kind"] != HEALTHY else (0.0, 0.0, 0.0)
    system = str(rng.choice(["vllm", "vllm", "sglang"]))
    growth = 1.3
    for tries in range(1, 3 * MAX_TRIES):
        try:
            plan, watched = served(strength, wanted)
        except NoProgress:  # the fault left too little for the longest request
            strength, growth = 0.8 * strength, 1.0
            continue
        incident = Incident(
            f"{number:04d}", wanted, row["severity"] if row["kind"] != HEALTHY else "none", row["trace"], system,
            look, watched.ttft_p95_s, without.ttft_p95_s, watched.refusal_share, tries,
        )  # fmt: skip
        often = watched.is_blocked_often or not QUEUES & set(wanted)
        felt = often and incident.felt(p95, refusals)
        if row["kind"] == HEALTHY or felt or tries >= MAX_TRIES or growth == 1.0:
            break
        strength = strength * growth + 0.1
    write_evidence(folder, plan, watched, system, old_names=bool(rng.random() < 0.25))
    return incident


def serve_plan(plan: Plan, block_size: int) -> Watched:
    """Serve the plan's load on the plan's server."""
    options = dict(plan.options)
    load: Load = plan.load
    if "max_output" in options:
        allowed = options.pop("max_output")
        asked = [
            dataclasses.replace(r, max_output_tokens=max(r.num_output_tokens, allowed)) for r in load.requests
        ]
        load = dataclasses.replace(load, requests=asked)
    return watch(
        load, plan.capacity_tokens, plan.rng, kv_name=plan.kv_name, block_size=block_size, prefix=plan.prefix,
        max_num_batched_tokens=8192 if block_size > 16 else 2048, faults=plan.faults, extra=plan.extra, refused=plan.refused, pauses=plan.pauses, **options,
    )  # fmt: skip


def _already(out: Path, seed: int, rows: list[dict[str, str]]) -> dict[str, Incident]:
    done = {}
    for number, row in enumerate(rows):
        path = out / f"{number:04d}" / "made.part"
        if path.is_file():
            said = json.loads(path.read_text(encoding="utf-8"))
            if said.pop("row") == row and said.pop("seed") == seed:
                done[path.parent.name] = Incident(**said)
    return done
