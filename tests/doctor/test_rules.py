"""Each row of the table: fires when its checks hold, and every single check can excuse it."""

from __future__ import annotations

import pytest

from labkit.doctor.diagnose import _examine, diagnose
from labkit.doctor.evidence import Evidence
from labkit.doctor.rules import RULES
from labkit.doctor.signals import SIGNALS, Signal, Signals
from labkit.experiments.incidents.kinds import HEALTHY, KINDS


class Given(Signals):
    """Signals with given values and no others."""

    def __init__(self, values):
        super().__init__(Evidence())
        self.values = values

    def __getitem__(self, name):
        return Signal(self.values[name]) if name in self.values else None


def satisfied(rule):
    return {
        c.signal: c.threshold if c.op != "<" else c.threshold - 0.5 * abs(c.threshold) - 1e-9
        for c in rule.checks
    }


@pytest.mark.parametrize("rule", RULES, ids=[f"{r.kind} {i}" for i, r in enumerate(RULES)])
def test_a_row(rule):
    values = satisfied(rule)
    assert _examine(rule, Given(values)) == (None, [])
    for check in rule.checks:
        worse = values | {check.signal: check.threshold - 1e-6 if check.op == ">=" else check.threshold}
        failed, _ = _examine(rule, Given(worse))
        assert failed, f"{check} cannot fail"
        assert SIGNALS[check.signal].says in failed
        without = {name: value for name, value in values.items() if name != check.signal}
        assert _examine(rule, Given(without)) == (None, [check.signal])


def test_every_sick_kind_has_a_rule_and_every_signal_exists():
    assert set(KINDS) - {HEALTHY} <= {rule.kind for rule in RULES}
    for rule in RULES:
        assert all(check.signal in SIGNALS for check in rule.checks)
        assert rule.situations
        assert rule.fix
        assert rule.next_measurement


def test_nothing_given_is_not_healthy():
    diagnosis = diagnose(Evidence())
    assert diagnosis.verdict == "not enough evidence"
    assert "kv_block_leak" in diagnosis.missing
