"""A diagnosis as text for a terminal."""

from __future__ import annotations

from labkit.doctor.diagnose import HEALTHY, NOT_ENOUGH, Diagnosis, Finding


def as_text(diagnosis: Diagnosis) -> str:
    """Findings first, then what was excluded, then what is missing."""
    lines = []
    if diagnosis.verdict == HEALTHY:
        lines.append("healthy: nothing here points to a fault")
    elif diagnosis.verdict == NOT_ENOUGH:
        lines.append("not enough evidence for a diagnosis")
    for number, finding in enumerate(diagnosis.findings, start=1):
        lines += _finding(number, finding)
    if diagnosis.excluded:
        lines.append("excluded:")
        lines += [f"  {kind:30} {why}" for kind, why in diagnosis.excluded.items()]
    if diagnosis.missing:
        lines.append("open, for want of:")
        lines += [f"  {kind:30} {'; '.join(needs)}" for kind, needs in diagnosis.missing.items()]
    lines += [f"note: {note}" for note in diagnosis.notes]
    return "\n".join(lines)


def _finding(number: int, finding: Finding) -> list[str]:
    lines = [f"{number}. {finding.kind.replace('_', ' ')} ({', '.join(finding.situations)}): {finding.cause}"]
    for sign in finding.evidence:
        at = "" if sign.time_s is None else f" at {sign.time_s:,.0f} s"
        lines.append(
            f"   {sign.metric} {sign.value:.3g} {sign.op} {sign.threshold:g} ({sign.unit}){at}: {sign.says}"
        )
    lines.append(f"   measure next: {finding.next_measurement}")
    lines.append(f"   try: {finding.fix}")
    for effect in finding.effects:
        before, after = f"{effect.before:.3g}", f"{effect.after:.3g}"
        change = (
            f"{before} -> {after}"
            if before != after
            else f"stays at {before}, so the fix does not show in it"
        )
        lines.append(f"   effect: {effect.figure} {change} ({effect.how})")
    return lines
