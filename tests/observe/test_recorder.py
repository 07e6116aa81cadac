"""The recorder against runs small enough to do by hand, and token gaps against a list of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.kv.paged import PagedKVCache
from labkit.memory.caching import CachingAllocator
from labkit.observe.percentiles import percentiles, weighted_percentiles
from labkit.observe.recorder import RunRecorder, make_recorder
from labkit.observe.series import Series
from labkit.observe.token_gaps import TokenGaps
from labkit.serving.base import Admitted, Preempted, StepOutcome, StepPlan
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


class NoScheduler:
    """Stands where the recorder only reads what is there."""


def play(recorder: RunRecorder) -> None:
    """r0 (prompt 4, 3 tokens) and r1 (prompt 2, 2 tokens); r1 is preempted once. r2 never fits."""
    recorder.on_arrival(RequestSpec("r0", 0.0, 4, 3), 0.0, None)
    recorder.on_arrival(RequestSpec("r1", 0.5, 2, 2), 0.5, None)
    recorder.on_arrival(RequestSpec("r2", 0.5, 999, 2), 0.5, "too long")
    scheduler = NoScheduler()
    steps = [
        (
            StepPlan(0, 6, 6, 0, 2, admitted=[Admitted("r0", 0, False), Admitted("r1", 0, False)]),
            ["r0", "r1"],
            [],
        ),
        (StepPlan(1, 1, 0, 1, 1, preempted=[Preempted("r1", 1, 2)]), [], []),
        (StepPlan(2, 4, 3, 1, 2, admitted=[Admitted("r1", 0, True)]), [], ["r0", "r1"]),
    ]
    now = 1.0
    for plan, started, finished in steps:
        recorder.on_step(scheduler, plan, StepOutcome(started, finished), now, now + 1.0)
        now += 1.0
    recorder.on_end(scheduler, now)


def test_latencies_are_differences_of_instants():
    recorder = RunRecorder(Series())
    play(recorder)
    summary = recorder.summary()
    assert summary["num_requests"] == 3
    assert summary["num_admitted"] == summary["num_finished"] == 2
    assert summary["num_refused"] == summary["num_preemptions"] == summary["num_preempted_requests"] == 1
    assert summary["num_lost_tokens"] == 2
    r0, r1 = recorder.requests["r0"], recorder.requests["r1"]
    assert (r0.queue_s, r0.ttft_s, r0.tpot_s, r0.e2e_s) == (1.0, 2.0, 1.0, 4.0)
    assert (r1.queue_s, r1.ttft_s, r1.tpot_s) == (0.5, 1.5, 2.0)
    gaps, counts = recorder.gaps.weighted()
    assert sorted(np.repeat(gaps, counts)) == [1.0, 1.0, 2.0]


def test_series_and_frames():
    recorder = RunRecorder(Series())
    play(recorder)
    frame = recorder.series_frame()
    assert list(frame["num_waiting"]) == [0, 1, 0]
    assert list(frame["num_running"]) == [2, 1, 2]
    requests = recorder.requests_frame()
    assert list(requests["refused"].dropna()) == ["too long"]
    assert requests.set_index("request_id").loc["r0", "ttft_s"] == 2.0


def test_levels():
    assert type(make_recorder("off")).__name__ == "Recorder"
    assert make_recorder("summary").series is None
    assert make_recorder("full").series is not None
    with pytest.raises(LabError, match="choose one of: off, summary, full"):
        make_recorder("all")
    with pytest.raises(LabError, match="level full"):
        make_recorder("summary").series_frame()


@pytest.mark.parametrize("seed", range(5))
def test_pooled_gaps_are_those_of_a_list_of_tokens(seed):
    """Random runs in which every decoding request gets a token in every decode step."""
    rng = np.random.default_rng(seed)
    gaps, tokens, running, now, lost = TokenGaps(), {}, {}, 0.0, {}
    for step in range(300):
        now += float(rng.uniform(0.01, 0.1))
        for name in list(running):
            if rng.random() < 0.02:  # preempted: decodes no more until its prompt is computed again
                del running[name]
                lost[name] = step + int(rng.integers(1, 6))
                gaps.interrupted(name, len(tokens[name]))
        started = [f"r{step}"] if rng.random() < 0.3 else []
        resumed = [name for name, at in lost.items() if at <= step]
        if running or resumed:
            gaps.decode_step(now)
        for name in (*running, *resumed):
            tokens[name].append(now)
        for name in resumed:
            del lost[name]
            running[name] = int(rng.integers(1, 40))
        for name in started:
            tokens[name] = [now]
            running[name] = int(rng.integers(1, 40))
            gaps.first_token(name, now)
        for name in list(running):
            running[name] -= 1
            if running[name] <= 0 and name not in started:
                gaps.finished(name, len(tokens[name]))
                del running[name]
    for name in (*running, *lost):
        gaps.finished(name, len(tokens[name]))
    expected = sorted(gap for times in tokens.values() for gap in np.diff(times))
    found = sorted(np.repeat(*gaps.weighted()))
    assert len(found) == len(expected) > 500
    assert found == pytest.approx(expected, abs=1e-9)


def test_percentiles():
    values = np.random.default_rng(0).uniform(0, 1, 1000)
    plain = percentiles(values)
    weighted = weighted_percentiles(values, np.ones(1000, dtype=int))
    assert plain["p50"] == pytest.approx(np.median(values))
    assert weighted["p95"] == pytest.approx(plain["p95"], abs=0.01)
    assert percentiles([]) == dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
    assert percentiles([None, 2.0])["max"] == 2.0


def test_three_device_series():
    """The device's allocator beside the KV cache: reserved stays when what was allocated is gone."""
    device = CachingAllocator(1 << 30)
    recorder = make_recorder("full", device=device)
    recorder.series._other_bytes = 7
    load = [RequestSpec("a", 0.0, 40, 12)]
    scheduler = make_scheduler("lab", PagedKVCache(40, 64, block_size=16))

    class Workspace(LinearStepCost):
        def execute(self, plan):
            held = device.malloc((plan.step + 1) << 20)
            if plan.step % 2:
                device.free(held)
            return super().execute(plan)

    simulate(scheduler, Workspace(), load, recorder)
    frame = recorder.series_frame()
    assert (frame["device_reserved_bytes"] >= frame["device_allocated_bytes"]).all()
    assert frame["device_allocated_bytes"].iloc[-1] == device.stats().allocated_bytes > 0
    assert (frame["device_reserved_bytes"].diff().dropna() >= 0).all()
    assert set(frame["device_other_bytes"]) == {7}
    assert make_recorder("full").series._device is None
