"""The engine loop: clocks, streams, observers."""

from __future__ import annotations

import pytest

from labkit.errors import InputError, LabError
from labkit.kv import make_kv_cache
from labkit.serving.base import Recorder
from labkit.serving.closed_loop import simulate_closed
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.fast_loop import LinearStepTime, summarize_load
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


def lab(num_tokens: int = 10_000, **options):
    return make_scheduler(
        "lab", make_kv_cache("paged", capacity_tokens=num_tokens, bytes_per_token=1), **options
    )


def test_times_add_up_on_a_load_counted_by_hand():
    """10 ms + 0.05 ms a token. r0: prompt 20 at 0 s; r1 arrives while it decodes."""
    log = []

    class Log(Recorder):
        def on_arrival(self, spec, now_s, refused):
            log.append((spec.request_id, round(now_s * 1e3, 6)))

        def on_step(self, scheduler, plan, outcome, start_s, end_s):
            log.append((plan.num_scheduled_tokens, round(start_s * 1e3, 6), round(end_s * 1e3, 6)))

    load = [RequestSpec("r0", 0.0, 20, 3), RequestSpec("r1", 0.015, 40, 1)]
    totals = simulate(lab(), LinearStepCost(), load, Log())
    assert log == [
        ("r0", 0.0),
        (20, 0.0, 11.0),  # prefill, first token
        (1, 11.0, 21.05),  # second token; r1 arrives meanwhile
        ("r1", 21.05),
        (41, 21.05, 33.1),  # third token of r0, prefill and only token of r1
    ]
    assert (totals.num_finished, totals.num_steps, totals.num_scheduled_tokens) == (2, 3, 62)


def test_idle_time_is_skipped():
    totals = simulate(lab(), LinearStepCost(), [RequestSpec("a", 0.0, 5, 1), RequestSpec("b", 100.0, 5, 1)])
    assert totals.num_steps == 2
    assert totals.end_s == pytest.approx(100.01025)


def test_step_clock_does_not_look_at_durations():
    plans = []

    class Log(Recorder):
        def on_step(self, scheduler, plan, outcome, start_s, end_s):
            plans.append((start_s, [row.request_id for row in plan.admitted]))

    load = [RequestSpec(f"r{i}", float(i), 5, 4) for i in range(3)]
    simulate(lab(), LinearStepCost(1000.0), load, Log(), clock="step")
    assert [admitted for _, admitted in plans[:4]] == [["r0"], ["r1"], ["r2"], []]
    assert [start for start, _ in plans] == list(range(6))


def test_a_generator_is_read_as_it_is_needed():
    drawn = 0

    def stream():
        nonlocal drawn
        for i in range(100_000):
            drawn += 1
            yield RequestSpec(f"r{i}", i * 0.05, 10, 2)

    totals = simulate(lab(), LinearStepCost(), stream(), max_steps=50)
    assert totals.num_requests < 60
    assert drawn <= totals.num_requests + 1


def test_progress_adds_up():
    seen = []
    simulate(
        lab(),
        LinearStepCost(),
        (RequestSpec(f"r{i}", i * 0.1, 10, 2) for i in range(250)),
        on_progress=seen.append,
    )
    assert sum(seen) == 250
    assert len(seen) >= 3


def test_unknown_clock():
    with pytest.raises(LabError, match="clock='wall' is not known; choose one of: time, step"):
        simulate(lab(), LinearStepCost(), [], clock="wall")


@pytest.mark.parametrize("num_clients", [1, 3, 7])
def test_clients_send_when_they_have_their_answer(num_clients):
    most = []

    class Live(Recorder):
        def on_step(self, scheduler, plan, outcome, start_s, end_s):
            most.append(plan.num_running + len(scheduler.waiting))

    load = [RequestSpec(f"r{i}", 99.0, 10, 3, 3) for i in range(20)]
    totals = simulate_closed(lab(), LinearStepCost(), load, num_clients, Live())
    assert totals.num_finished == totals.num_requests == 20
    assert max(most) == num_clients


def test_clients_go_on_after_a_refusal():
    load = [RequestSpec(f"r{i}", 0.0, 10 if i % 2 else 500, 3, 3) for i in range(10)]
    totals = simulate_closed(lab(320), LinearStepCost(), load, 2)
    assert (totals.num_requests, totals.num_refused, totals.num_finished) == (10, 5, 5)


def test_an_id_twice_in_a_list_is_refused_before_the_run():
    """Also where the first of the two would have finished long before; a generator is not remembered."""
    load = [RequestSpec(name, at, 16, 2) for name, at in (("a", 0.0), ("b", 1.0), ("a", 900.0))]
    for run in (
        lambda requests: simulate(make_scheduler("vllm", num_gpu_blocks=64), LinearStepTime(), requests),
        lambda requests: summarize_load(make_scheduler("vllm", num_gpu_blocks=64), requests),
    ):
        with pytest.raises(InputError, match="row 3, field request_id: 'a' is there twice"):
            run(load)
        assert run(iter(load)).num_finished == 3
