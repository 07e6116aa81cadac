"""The diagnosis as a person reads it."""

from labkit.doctor.diagnose import Diagnosis, Finding
from labkit.doctor.fixes import ESTIMATED, Effect
from labkit.doctor.report import as_text


def test_an_effect_that_cannot_be_seen_is_said_to_be_none():
    effects = [
        Effect("P95 of TTFT (s)", 0.08531, 0.08529, ESTIMATED),
        Effect("preemptions", 40.0, 2.0, ESTIMATED),
    ]
    finding = Finding(
        "slow_reclaim", ["12.2"], "blocks come back late", [], "the delay", "reclaim sooner", effects
    )
    lines = as_text(Diagnosis("slow_reclaim", [finding], {}, {}, [], [])).splitlines()
    assert any("P95 of TTFT (s) stays at 0.0853, so the fix does not show in it" in line for line in lines)
    assert any("preemptions 40 -> 2 (" in line for line in lines)
