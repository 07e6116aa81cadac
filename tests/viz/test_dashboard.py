"""The dashboard in Python: five groups by their names, a picture, and HTML that runs by itself."""

import json

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.kv.paged import PagedKVCache
from labkit.memory.base import Span
from labkit.observe.measure import measure
from labkit.observe.metrics import Metric
from labkit.observe.recorder import make_recorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.viz.dashboard import GROUPS, dashboard
from labkit.viz.player_builder import RunBuilder
from labkit.viz.timeline import Event
from labkit.workload.base import RequestSpec


@pytest.fixture(scope="module")
def recorder():
    recorder = make_recorder("full")
    load = [RequestSpec(f"r{i}", 0.05 * i, 100 + 7 * (i % 30), 20 + i % 50) for i in range(80)]
    scheduler = make_scheduler("lab", PagedKVCache(120, 4096, block_size=16), max_num_seqs=32)
    simulate(scheduler, LinearStepCost(), load, recorder)
    return recorder


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_every_metric_stands_beside_its_group_by_its_exact_name(recorder):
    options = {
        "block_bytes": 65536, "max_num_seqs": 32, "capacity": {"weights": 15 << 30, "workspace": 1 << 30}, "restart_s": 2.0,
        "layout": [Span(0, 4096, "free")],
    }  # fmt: skip
    panel = dashboard(recorder, **options)
    shown = "\n".join(texts(panel.figure()))
    for metric in measure(recorder, **options):
        assert f"{metric.info.name}: " in shown, metric
    for group in GROUPS:
        assert group in texts(panel.figure())
    missing = {Metric.ALLOCATOR_RESERVED, Metric.ALLOCATOR_ACTIVE, Metric.PREFIX_RESIDENCY}
    assert set(panel.metrics) == set(Metric) - missing


def test_curves_are_the_series_at_their_instants(recorder):
    panel = dashboard(recorder)
    unit, curves = panel.curves["capacity"]
    total = sum(values for _, values, _, _ in curves)
    assert unit == "MiB"
    assert np.allclose(total, recorder.series.capacity_bytes / 2**20), (
        "live + cached + free is the pool at every instant"
    )
    ends = np.array(recorder.series.column("end_s"))
    running = recorder.series.column("num_running")
    for time, value in list(zip(panel.times, panel.curves["scheduling"][1][0][1]))[::17]:
        assert value == running[np.flatnonzero(ends <= time + 1e-12)[-1]]


def test_the_clock_stands_where_it_was_told_and_the_readout_follows(recorder):
    panel = dashboard(recorder, time=1.0, events=[Event(2.0, "restart")])
    info = json.loads(panel.info)
    assert info["opens"] == 1.0
    assert all(len(values) == len(info["times"]) for _, values in info["readouts"])
    cursor = [line for line in panel.figure().axes[0].lines if list(line.get_xdata()) == [1.0, 1.0]]
    assert cursor
    moved = panel.figure(time=3.0).axes[0].lines
    assert any(list(line.get_xdata()) == [3.0, 3.0] for line in moved)


def test_the_bundle_carries_widget_page_and_picture_and_the_page_loads_nothing(recorder, tmp_path):
    builder = RunBuilder(100, unit="blocks")
    for time in range(4):
        builder.add(float(time), [Span(10 * time, 10, "allocated", 10, "a", "request")])
    panel = dashboard(recorder, title="<run>", player_run=builder.finish(), time=2.0)
    assert panel.first_step == 2, "the player opens at the dashboard's instant"
    data, _ = panel._repr_mimebundle_()
    assert {"image/png", "text/html", "application/vnd.jupyter.widget-view+json"} <= set(data)
    text = panel.save_html(tmp_path / "d.html").read_text()
    assert "&lt;run&gt;" in text
    assert "<noscript><img" in text
    for word in ("http://", "https://", 'src="//'):
        assert word not in text.replace("http://www.w3.org", ""), word


def test_a_summary_recorder_is_refused():
    with pytest.raises(LabError, match="level full"):
        dashboard(make_recorder("summary"))
