"""A paced replay keeps to the wall clock it is given, and publishes whole states on the way."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.kv.paged import PagedKVCache
from labkit.observe.exposition import RunExporter
from labkit.observe.live import PacedRecorder
from labkit.observe.scrape import parse_pages
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


class Wall:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 100.0
        self.pages = []

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


@pytest.mark.parametrize("speed", [1.0, 10.0])
def test_time_passes_at_the_given_speed(speed):
    wall, exporter = Wall(), RunExporter("vllm")
    recorder = PacedRecorder(exporter, speed, sleep=wall.sleep, clock=lambda: wall.now)
    update, usages = exporter.update, []
    exporter.update = lambda r, **state: (update(r, **state), usages.append(state["usage"]))
    scheduler = make_scheduler("lab", PagedKVCache(200, 64, block_size=16))
    load = [RequestSpec(f"r{i}", 0.5 * i, 200, 20) for i in range(20)]
    simulate(scheduler, LinearStepCost(), load, recorder)
    assert wall.now - 100.0 == pytest.approx(recorder.end_s / speed, rel=0.01)
    assert len(usages) > 10 / speed
    assert all(0 <= usage <= 1 for usage in usages)
    assert max(usages) > 0
    (page,) = parse_pages(exporter.text(), "p")
    assert page.values["num_finished"] == 20
    assert page.values["num_running"] == page.values["kv_usage"] == 0


def test_as_fast_as_it_goes():
    recorder = PacedRecorder(RunExporter("sglang"), 0, sleep=lambda s: pytest.fail("slept"))
    scheduler = make_scheduler("lab", PagedKVCache(200, 64, block_size=16))
    simulate(scheduler, LinearStepCost(), [RequestSpec("r", 0.0, 20, 5)], recorder)
    assert recorder.num_finished == 1
    with pytest.raises(LabError, match="speed"):
        PacedRecorder(RunExporter(), -1)
