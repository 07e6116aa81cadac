"""The diagnosis: which causes fired, in order; what was excluded and by what; what is missing when nothing can be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labkit.doctor.evidence import Evidence
from labkit.doctor.fixes import Effect, effects_of
from labkit.doctor.load import load_evidence
from labkit.doctor.rules import RULES, Rule
from labkit.doctor.signals import SIGNALS, Signals, felt

HEALTHY, NOT_ENOUGH = "healthy", "not enough evidence"


@dataclass(frozen=True, slots=True)
class Sign:
    """One number behind a finding, as it was compared."""

    metric: str
    value: float
    op: str
    threshold: float
    time_s: float | None
    unit: str
    says: str


@dataclass(frozen=True)
class Finding:
    """One cause that the evidence shows, the signs for it, and what to measure and to change next. `effects` is what the fix
    does to the figures, where the run can be served again."""

    kind: str
    situations: list[str]
    cause: str
    evidence: list[Sign]
    next_measurement: str
    fix: str
    effects: list[Effect] = field(default_factory=list)


@dataclass(frozen=True)
class Diagnosis:
    """`verdict` is the first finding's kind, "healthy" or "not enough evidence". `excluded` is one line a cause that was
    looked for and not found; `missing` names the evidence without which a cause stays open."""

    verdict: str
    findings: list[Finding]
    excluded: dict[str, str]
    missing: dict[str, list[str]]
    notes: list[str]
    sources: list[str]

    @property
    def kinds(self) -> list[str]:
        """The kinds of all findings, in their order."""
        return [finding.kind for finding in self.findings]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def diagnose_paths(paths: Sequence[str | Path], *, effects: bool = True) -> Diagnosis:
    """Read the evidence and judge it. `effects` replays a recorded run, or a load fitted to a scrape, with the fix."""
    return diagnose(load_evidence(paths), effects=effects)


def diagnose(evidence: Evidence, *, effects: bool = False) -> Diagnosis:
    """Judge what was read."""
    signals = Signals(evidence)
    hurt = felt(signals)
    fired: dict[str, Rule] = {}
    excluded: dict[str, str] = {}
    missing: dict[str, list[str]] = {}
    for rule in RULES:
        if rule.kind in fired:
            continue
        failed, unknown = _examine(rule, signals)
        if failed is None and not unknown and rule.felt and hurt is False:
            failed = "users feel nothing: no long waits, refusals or preemptions"
        if failed is not None:
            excluded.setdefault(rule.kind, failed)
        elif unknown:
            missing.setdefault(rule.kind, sorted({SIGNALS[name].needs for name in unknown}))
        elif rule.felt and hurt is None:
            missing.setdefault(rule.kind, ["what users feel: a series of /metrics pages"])
        else:
            fired[rule.kind] = rule
    for kind in fired:
        excluded.pop(kind, None)
        missing.pop(kind, None)
    for kind in excluded:
        missing.pop(kind, None)
    ranked = sorted(fired.values(), key=lambda rule: rule.rank)
    findings = [_finding(rule, signals) for rule in ranked]
    if effects and findings:
        findings[0].effects.extend(effects_of(findings[0].kind, evidence, signals))
    return Diagnosis(
        _verdict(findings, hurt, excluded),
        findings,
        excluded,
        missing,
        _notes(evidence, signals),
        evidence.sources,
    )


def _examine(rule: Rule, signals: Signals) -> tuple[str | None, list[str]]:
    """The first check that does not hold, as a sentence; and the signals that are missing."""
    unknown = []
    for check in rule.checks:
        value = signals.value(check.signal)
        if value is None:
            unknown.append(check.signal)
        elif not check.holds(value):
            info = SIGNALS[check.signal]
            return f"{info.says}: {value:.3g}, would have to be {_words(check.op)} {check.threshold:g}", []
    return None, unknown


def _words(op: str) -> str:
    return {">=": "at least", "<": "below", "==": "exactly"}[op]


def _finding(rule: Rule, signals: Signals) -> Finding:
    signs = []
    for check in rule.checks:
        seen, info = signals[check.signal], SIGNALS[check.signal]
        assert seen is not None
        signs.append(
            Sign(check.signal, seen.value, check.op, check.threshold, seen.time_s, info.unit, info.says)
        )
    return Finding(rule.kind, list(rule.situations), rule.cause, signs, rule.next_measurement, rule.fix)


def _verdict(findings: list[Finding], hurt: bool | None, excluded: dict[str, str]) -> str:
    """Healthy needs a series that shows that users feel nothing, or that what they feel has none of the causes: a burst."""
    if findings:
        return findings[0].kind
    queues = {rule.kind for rule in RULES if rule.felt}
    return HEALTHY if hurt is False or (hurt and queues <= set(excluded)) else NOT_ENOUGH


def _notes(evidence: Evidence, signals: Signals) -> list[str]:
    notes = [f"not used: {sentence}" for sentence in evidence.damaged]
    if signals.frame is not None and int(signals.frame["restarts"].iloc[-1]):
        notes.append(
            f"the server restarted {int(signals.frame['restarts'].iloc[-1])} time(s); counters were joined"
        )
    for verdict in evidence.ooms[:1]:
        notes.append(f"out of memory ({verdict.kind.replace('_', ' ')}): {verdict.sentence}")
    for card in evidence.cards[-1:]:
        notes.append(
            f"nvidia-smi shows {100 * card.used_bytes / card.total_bytes:.0f} % used: that is what is reserved, not what is live"
        )
    return notes
