"""The doctor on pages that another program wrote, with nothing else given."""

from __future__ import annotations

import foreign_pages as pages
import pytest

from labkit.doctor.diagnose import diagnose_paths


def healthy(state, i, busy):
    """Nothing."""


def leaking(state, i, busy):
    state.usage += 0.008 * i


def idle(state, i, busy):
    left = i // 12
    state.running, state.usage = state.running + left, state.usage + 0.05 * left


def slow(state, i, busy):
    if busy:
        state.usage = 0.6
    elif i % 20 < 12:
        state.usage = 0.3


def full(state, i, busy):
    if busy:
        state.running, state.usage, state.waiting, state.preempted = 22, 0.99, 6, state.preempted + 4
        state.queued = [*state.queued[:-10], *[3.0] * 10]


def late(state, i, busy):
    state.hits = state.prompt * 0.4
    if busy:
        state.usage = 0.6
    else:
        state.usage = 0.35 if i % 20 < 18 else 0.0


def keeping(state, i, busy):
    state.hits, state.cached = state.prompt * 0.5, min(0.65, 0.02 * i)
    if busy and i > 15:
        state.waiting, state.usage = 5, 0.33
        state.queued = [*state.queued[:-10], *[3.0] * 10]


FAULTS = {
    "healthy": healthy, "kv_block_leak": leaking, "idle_sessions_left_behind": idle, "slow_reclaim": slow,
    "capacity_too_small": full, "late_prefix_release": late,
}  # fmt: skip


def write(tmp_path, fault, text):
    for i, state in enumerate(pages.day(80, fault)):
        (tmp_path / f"{i:03d}.prom").write_text(text(state, 1000 + 10 * i))
    return tmp_path


CASES = [(kind, system) for kind in FAULTS for system in ("vllm", "sglang")]
CASES += [(kind, "vllm, old names") for kind in ("healthy", "kv_block_leak")]


@pytest.mark.parametrize(("kind", "system"), CASES)
def test_verdicts(tmp_path, kind, system):
    text = pages.sglang if system == "sglang" else lambda s, at: pages.vllm(s, at, old="old" in system)
    diagnosis = diagnose_paths([write(tmp_path, FAULTS[kind], text)], effects=False)
    assert diagnosis.verdict == kind, (diagnosis.kinds, diagnosis.excluded, diagnosis.missing)


def test_a_cache_that_keeps(tmp_path):
    """SGLang says what is cached and evicted; vLLM does not, and the doctor says what it would need."""
    diagnosis = diagnose_paths([write(tmp_path, keeping, pages.sglang)], effects=False)
    open_or_found = set(diagnosis.kinds) | set(diagnosis.missing)
    assert "cache_without_eviction_policy" in open_or_found
    assert "admission_too_conservative" not in diagnosis.kinds


def test_queues_without_a_reason(tmp_path):
    """Requests wait beside a half-empty pool with a warm cache and no log: not enough, and the log is named."""
    sub = tmp_path / "vllm"
    sub.mkdir()
    diagnosis = diagnose_paths([write(sub, keeping, pages.vllm)], effects=False)
    assert diagnosis.verdict == "not enough evidence"
    assert any("log lines" in need for needs in diagnosis.missing.values() for need in needs)


def test_a_restart_is_not_a_leak_that_heals(tmp_path):
    """Counters go backwards in the middle: noted, joined, and the leak before and after is still seen."""
    first = pages.day(50, leaking)
    again = pages.day(50, leaking)
    for i, state in enumerate([*first, *again]):
        (tmp_path / f"{i:03d}.prom").write_text(pages.vllm(state, 1000 + 10 * i))
    diagnosis = diagnose_paths([tmp_path], effects=False)
    assert any("restarted 1 time" in note for note in diagnosis.notes)
    assert diagnosis.verdict == "kv_block_leak"
