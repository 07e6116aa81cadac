"""What is recorded adds up at every instant, on random runs: memory, allocator words, and where every request is."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.kv import KV_CACHES, make_kv_cache
from labkit.memory import OutOfMemory, make_allocator
from labkit.observe.recorder import RunRecorder
from labkit.observe.series import Series
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.sessions import SessionLoad, session_load
from labkit.workload.synthetic import synthetic_load

PRESSURES = ("recompute", "swap", "refuse", "throttle", "degrade", "pools")


class Conserving(RunRecorder):
    """Checks after every step, and lets a workspace come and go on the device."""

    def __init__(self, device, rng):
        super().__init__(Series(device=device))
        self.device, self.rng, self.held = device, rng, []
        self.num_ever_admitted = self.num_waiting_again = 0
        self.preempted: set[str] = set()

    def on_step(self, scheduler, plan, outcome, start_s, end_s):
        for _ in range(int(self.rng.integers(0, 3))):
            try:
                self.held.append(self.device.malloc(int(self.rng.integers(1, 3 << 20))))
            except OutOfMemory:
                break
        while len(self.held) > 6:
            self.device.free(self.held.pop(int(self.rng.integers(len(self.held)))))
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        self._memory()
        self._device()
        self._requests(scheduler, plan, outcome)

    def _memory(self):
        live, cached, free, token, largest = (
            self.series.column(f"kv_{n}_bytes")[-1] for n in ("live", "cached", "free", "token", "largest_free")
        )  # fmt: skip
        assert live + cached + free == self.series.capacity_bytes
        assert min(live, cached, free) >= 0
        assert 0 <= token <= live
        assert 0 <= largest <= free

    def _device(self):
        stats = self.device.stats()
        assert stats.reserved_bytes >= stats.active_bytes >= stats.allocated_bytes >= stats.requested_bytes
        assert self.series.column("device_reserved_bytes")[-1] == stats.reserved_bytes
        assert self.series.column("device_allocated_bytes")[-1] == stats.allocated_bytes

    def _requests(self, scheduler, plan, outcome):
        """admitted = running + finished + preempted and waiting + given up"""
        self.preempted -= {row.request_id for row in plan.admitted}
        self.preempted |= {row.request_id for row in plan.preempted}
        admitted = sum(r.admission_s is not None for r in self.requests.values())
        running = len(scheduler.running)
        dropped = sum(r.dropped is not None and r.admission_s is not None for r in self.requests.values())
        assert admitted == running + self.num_finished + len(self.preempted) + dropped
        assert self.num_live == running + len(scheduler.waiting)


def random_run(seed):
    rng = np.random.default_rng(seed)
    kind = str(rng.choice([*KV_CACHES, "paged", "paged"]))
    options, kv_options = {}, {}
    if kind == "paged":
        kv_options = {"prefix": str(rng.choice(["off", "hash", "radix"]))}
    if kind == "reserve-max":
        kv_options = {"max_model_len": 1200}
    if kind == "virtual-contiguous":
        kv_options = {"max_model_len": 1200, "granule_bytes": 8192}
    kv = make_kv_cache(kind, capacity_tokens=int(rng.integers(2500, 9000)), bytes_per_token=64, **kv_options)
    pressure = str(rng.choice(PRESSURES))
    if kind == "paged" and rng.random() < 0.5:
        load = session_load(
            SessionLoad(session_rate=4.0, think_s=1.0, prefix_tokens=64, answer_tokens=60.0), 12, rng
        )
    else:
        load = synthetic_load("azure-conv", 60, rng, rate_scale=20)
    load = [r for r in load if r.num_prompt_tokens + r.num_output_tokens < 1200]
    scheduler = make_scheduler(
        "lab", kv, max_model_len=1200, max_num_seqs=int(rng.integers(2, 40)), pressure=pressure, **options
    )
    recorder = Conserving(make_allocator("caching", 64 << 20), rng)
    simulate(scheduler, LinearStepCost(), load, recorder, max_steps=1500)
    return recorder


@pytest.mark.parametrize("seed", range(24))
def test_everything_adds_up_at_every_recorded_instant(seed):
    recorder = random_run(seed)
    assert recorder.num_steps == len(recorder.series.rows) > 20


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 600))
def test_everything_adds_up_on_many_runs(seed):
    random_run(seed)


def test_a_lost_request_is_seen():
    recorder = random_run(0)
    assert recorder.num_finished
    recorder.num_finished -= 1  # what a recorder that misses an end would have
    scheduler = type("S", (), {"running": {}, "waiting": []})()
    plan = type("P", (), {"admitted": (), "preempted": ()})()
    with pytest.raises(AssertionError):
        recorder._requests(scheduler, plan, None)
