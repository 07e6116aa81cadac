"""Section 12: five situations that are easy to misjudge, each listed cause reproduced and told apart by evidence alone.

    python -m labkit.experiments.situations            # every situation, cause by cause, and what the doctor says

A case is an incident (`labkit.experiments.incidents`): a known fault in a served load. What is diagnosed is only its evidence.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.doctor.diagnose import Diagnosis, diagnose
from labkit.doctor.evidence import Evidence
from labkit.doctor.load import load_evidence
from labkit.doctor.signals import Signals
from labkit.experiments.incidents.faults import (
    Fault,
    IdleSessions,
    LatePrefixRelease,
    Leak,
    NoEviction,
    SlowReclaim,
)
from labkit.experiments.incidents.load import make_load
from labkit.experiments.incidents.make import Incident, make_incident
from labkit.experiments.incidents.seen import Watched
from labkit.experiments.incidents.server import watch

#: situation -> listed cause -> the kind of incident that reproduces it
SITUATIONS: dict[str, dict[str, str]] = {
    "12.1": {
        "no contiguous room": "contiguous_fragmentation",
        "pool held by long requests": "pool_held_by_long_requests",
        "shared prefixes released late": "late_prefix_release",
        "allocator reserved high, active low": "reserved_high_active_low",
    },
    "12.2": {
        "long and short mixed degrade the pool": "contiguous_fragmentation",
        "small objects churn": "reserved_high_active_low",
        "reclaim slower than allocation": "slow_reclaim",
        "residency without eviction": "cache_without_eviction_policy",
    },
    "12.3": {
        "weights saved, keys and values not": "weights_only_quantisation",
        "workspace is the limit": "workspace_limited",
        "scheduler too conservative": "admission_too_conservative",
    },
    "12.5": {
        "allocator cache growth": "reserved_high_active_low",
        "pool fragmentation": "contiguous_fragmentation",
        "late reclaim": "late_prefix_release",
        "sessions left behind": "idle_sessions_left_behind",
    },
}
#: situation -> what is added to a hundred times the seed, so that no two situations share a load
_OWN = {"12.1": 1, "12.2": 2, "12.3": 3, "12.5": 5}
#: 11.6: four root causes behind one reading of nvidia-smi
FOUR_CAUSES = {
    "too little memory for the load": "capacity_too_small",
    "the framework leaks": "kv_block_leak",
    "the cache is never evicted": "cache_without_eviction_policy",
    "a limit that was set too low": "admission_too_conservative",
}


@dataclass(frozen=True)
class Case:
    """One cause: what was made, its evidence, the diagnosis from all of it and from nvidia-smi alone."""

    cause: str
    kind: str
    incident: Incident
    evidence: Evidence
    diagnosis: Diagnosis
    from_smi_alone: Diagnosis

    @property
    def reading_percent(self) -> int:
        """What nvidia-smi shows at the end, in whole percent of the card."""
        card = self.evidence.cards[-1]
        return round(100 * card.used_bytes / card.total_bytes)

    def signal(self, name: str) -> float | None:
        """A number of the doctor's, by name."""
        return Signals(self.evidence).value(name)

    @property
    def is_named(self) -> bool:
        """The evidence gives this case its own cause first."""
        return self.diagnosis.verdict == self.kind

    @property
    def is_named_by_smi(self) -> bool:
        """The control: nvidia-smi alone does."""
        return self.from_smi_alone.verdict == self.kind

    @property
    def is_felt(self) -> bool:
        """P95 of TTFT is at least 30 % worse than on the same server without the fault, or 2 points of requests are refused:
        what a restart undoes for a while."""
        return self.incident.felt(0.3, 0.02)

    def ttft_by_eighths_s(self) -> list[float]:
        """Mean TTFT of each eighth of the requests, in order; the first one meets a fresh server."""
        frame = self.evidence.series
        count, total = frame["ttft_count"].to_numpy(), frame["ttft_sum"].to_numpy()
        cuts = np.searchsorted(count, count[-1] * np.arange(9) / 8)
        served = np.maximum(1.0, np.diff(count[cuts]))
        return [float(mean) for mean in np.diff(total[cuts]) / served]

    def ttft_early_and_late_s(self) -> tuple[float, float]:
        """Mean TTFT of the first eighth, and of the worst later one."""
        early, *later = self.ttft_by_eighths_s()
        return early, max(later)

    def gets_worse(self) -> bool:
        """Some later eighth waits at least a third longer for its first tokens than the first one, and users feel the fault."""
        early, late = self.ttft_early_and_late_s()
        return self.is_felt and late > 4 / 3 * early


def reproduce(
    causes: dict[str, str],
    seed: int,
    *,
    severity: str = "severe",
    trace: str = "azure-conv",
    card_fill: float | None = None,
    weight_bits: int | None = None,
    prefix_cache: bool | None = None,
) -> list[Case]:
    """One case a cause, each on a load of its own drawn from `seed`. `card_fill` (a share), `weight_bits` and `prefix_cache` are
    fixed where they are given and drawn otherwise."""
    cases = []
    for number, (cause, kind) in enumerate(causes.items()):
        row = {"kind": kind, "severity": severity, "trace": trace, "look_alike": "", "double": ""}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "evidence"
            incident = make_incident(
                seed, 5000 + number, row, path, card_fill=card_fill, weight_bits=weight_bits, prefix_cache=prefix_cache
            )  # fmt: skip
            evidence = load_evidence([path])
            alone = diagnose(load_evidence([path / "nvidia-smi.csv"]))
        cases.append(Case(cause, kind, incident, evidence, diagnose(evidence), alone))
    return cases


def situation(name: str, seed: int, draw: int = 0) -> list[Case]:
    """The cases of one situation of `SITUATIONS`; in 12.3 every server has 8-bit weights (or fewer) and no prefix cache. Another
    `draw` has other loads and other servers."""
    fixed: dict[str, Any] = {"weight_bits": 8, "prefix_cache": False} if name == "12.3" else {}
    return reproduce(SITUATIONS[name], 101 * seed + _OWN[name] + 1_000_003 * draw, **fixed)


def holds_for_most(draws: Sequence[Sequence[Case]], test: Callable[[Case], bool]) -> bool:
    """For every cause, `test` holds in more than half of the draws. About one verdict in a hundred is wrong (a pool that is
    full by chance looks like another cause), and a single set of cases would make a claim of that."""
    return all(2 * sum(map(test, cases)) > len(cases) for cases in zip(*draws, strict=True))


def told_apart(diagnoses: Sequence[Diagnosis], kinds: Sequence[str]) -> bool:
    """Every case gets its own cause first, and no two get the same."""
    said = [diagnosis.verdict for diagnosis in diagnoses]
    return said == list(kinds) and len(set(said)) == len(said)


def four_causes_one_reading(rng: np.random.Generator) -> list[Case]:
    """11.6: four servers whose nvidia-smi shows the same, each sick for another reason."""
    return reproduce(FOUR_CAUSES, int(rng.integers(1, 2**31)), card_fill=0.95)


def one_reading_four_verdicts(cases: Sequence[Case], *, from_smi_alone: bool = False) -> bool:
    """The readings agree within a point, and the verdicts (from all evidence, or from nvidia-smi alone) are four and right."""
    readings = [case.reading_percent for case in cases]
    diagnoses = [case.from_smi_alone if from_smi_alone else case.diagnosis for case in cases]
    return max(readings) - min(readings) <= 1 and told_apart(diagnoses, [case.kind for case in cases])


def held_back(rng: np.random.Generator, fault: str, held_share: float, *, num_requests: int = 240) -> Watched:
    """One load on a pool of 1.35 times what it takes at once, and `held_share` of the pool taken by "leak", "idle sessions", "slow reclaim", "late prefixes" or "nothing"."""
    load = make_load(rng, "azure-conv", num_requests=num_requests, shares_prefixes=fault == "late prefixes")
    longest = max(r.num_prompt_tokens + r.num_output_tokens for r in load.requests)
    capacity = max(int(1.35 * 42_000), 2 * longest)
    share = min(held_share, 1 - 1.1 * longest / capacity)
    each = int(share * capacity / (0.3 * 0.75 * len(load.requests))) + 1
    delay_s = float(np.clip(share * capacity / (load.rate * load.mean_tokens), 2.0, 30.0))
    makers = {
        "nothing": None,
        "leak": Leak(rng, 0.3, each),
        "idle sessions": IdleSessions(rng, 0.3, each),
        "slow reclaim": SlowReclaim(delay_s),
        "late prefixes": LatePrefixRelease(rng, 0.5, 120.0),
    }
    maker = makers[fault]
    faults = [(maker, share)] if maker is not None and share > 0 else []
    return watch(load, capacity, rng, prefix=fault == "late prefixes", faults=faults)


# --- 12.4: a higher hit rate and more pressure -------------------------------------------------------------------------


@dataclass(frozen=True)
class Caching:
    """One load on one pool with one way of caching. `pressure` is preemptions and logged waits for memory, per request."""

    name: str
    hit_ratio: float
    pressure: float
    ttft_p95_s: float
    run: Watched

    def more_hits_and_more_pressure(self, without: Caching) -> bool:
        """More prompt tokens are found, and more requests meet a full pool, than without the cache."""
        return self.hit_ratio > without.hit_ratio + 0.05 and self.pressure > without.pressure + 0.1


def hit_rate_and_pressure(
    rng: np.random.Generator, *, kept_share: float = 0.75, room: float = 1.2, trace: str = "azure-conv"
) -> list[Caching]:
    """The same requests without a prefix cache, with one that gives way, and with one that keeps up to `kept_share`."""
    load = make_load(rng, trace, shares_prefixes=True)
    longest = max(r.num_prompt_tokens + r.num_output_tokens for r in load.requests)
    peak = watch(load, 40_000_000, rng).peak_live_tokens
    capacity = max(int(room * peak), 3 * longest)
    ways: dict[str, dict[str, Any]] = {
        "no cache": {},
        "cache that gives way": {"prefix": True},
        "cache that keeps": {"prefix": True},
    }
    found = []
    for name, options in ways.items():
        faults: list[tuple[Fault, float]] = []
        if name == "cache that keeps":
            faults = [(NoEviction(rng), min(kept_share, 1 - 1.1 * longest / capacity))]
        run = watch(load, capacity, rng, faults=faults, **options)
        values = run.rows[-1].values
        waits = sum(wait.limit == "blocks" for wait in run.waits)
        found.append(
            Caching(
                name,
                values["num_prefix_hits"] / max(1.0, values["num_prefix_queries"]),
                (run.num_preempted + waits) / run.num_requests,
                run.ttft_p95_s,
                run,
            )
        )
    return found


def main(seed: int = 0) -> None:
    """Print every situation, cause by cause."""
    for name in SITUATIONS:
        for case in situation(name, seed):
            print(f"{name}  {case.cause:40} {case.diagnosis.verdict:32} P95 {case.incident.ttft_p95_without_s:.2f} -> {case.incident.ttft_p95_s:.2f} s")  # fmt: skip
    for way in hit_rate_and_pressure(np.random.default_rng(seed)):
        print(f"12.4  {way.name:40} hits {way.hit_ratio:.2f}, pressure {way.pressure:.2f} a request, P95 {way.ttft_p95_s:.2f} s")  # fmt: skip
    for case in four_causes_one_reading(np.random.default_rng(seed)):
        print(f"11.6  {case.cause:40} {case.diagnosis.verdict:32} nvidia-smi {case.reading_percent} %")


if __name__ == "__main__":
    main()
