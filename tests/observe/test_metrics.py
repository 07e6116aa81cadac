"""Every named metric exists, is documented, and is measured on a run; conservation holds at every recorded instant."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from recorded_runs import run

from labkit.errors import InputError, LabError
from labkit.memory.base import AllocatorStats, Span
from labkit.observe.export import load_parquet, save_parquet, save_perfetto
from labkit.observe.measure import before_and_after, free_by_size_class, measure
from labkit.observe.metrics import INSTANTS, Metric, metric

NAMES = {
    "capacity": [
        "weights",
        "KV",
        "workspace",
        "allocator reserved bytes",
        "allocator active bytes",
        "allocatable blocks",
    ],
    "fragmentation": [
        "free blocks",
        "largest contiguous run",
        "free distribution by size class",
        "waste inside blocks",
        "failed block allocations",
    ],
    "lifetime": [
        "mean request lifetime",
        "share of long requests",
        "residency of prefix-cache objects",
        "reference-count distribution",
        "reclaim delay",
    ],
    "scheduling": [
        "admission refusal rate",
        "prefill wait",
        "decode wait",
        "active sequences",
        "batch occupancy",
    ],
    "user": [
        "TTFT",
        "TPOT",
        "tokens/s",
        "P50/P95/P99 latency",
        "OOM count",
        "performance before and after a restart",
    ],
}
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_exactly_the_names_of_the_five_groups():
    found: dict[str, list[str]] = {}
    for member in Metric:
        found.setdefault(member.info.group, []).append(member.info.name)
        assert member.info.unit
        assert member.info.definition
        assert member.info.formula
    assert found == NAMES
    assert metric("batch occupancy") is Metric.BATCH_OCCUPANCY
    with pytest.raises(LabError, match="choose one of"):
        metric("speed")


def test_the_page_is_made_of_the_table():
    text = DOCUMENT.read_text(encoding="utf-8")
    for member in Metric:
        info = member.info
        assert f"| {info.name} | {info.unit} | {info.definition} | `{info.formula}` |" in text
    for name, meaning in INSTANTS.items():
        assert f"| {name} | {meaning} |" in text
    assert text.index("## Instants") < text.index("## Capacity")


def test_every_metric_of_a_run():
    recorder = run(kind="prefix")
    device = AllocatorStats(1000, 900, 800, 700, 600, 100, 3, 50, 7, num_ooms=2)
    layout = [
        Span(0, 5000, "free"),
        Span(5000, 10, "allocated"),
        Span(5010, 7000, "free"),
        Span(12010, 12, "free"),
    ]
    found = measure(
        recorder,
        block_bytes=1024,
        max_num_seqs=32,
        capacity={"weights": 10, "workspace": 2, "activations": 3},
        allocator=device,
        layout=layout,
        restart_s=recorder.end_s / 2,
    )
    assert set(found) == set(Metric)
    assert found[Metric.WORKSPACE] == 5
    assert found[Metric.FREE_BY_SIZE] == {8: 12, 4096: 12000}
    assert found[Metric.OOM_COUNT] == 2
    assert 0 < found[Metric.WASTE_INSIDE] < 0.2
    assert 0 < found[Metric.BATCH_OCCUPANCY] <= 1
    assert found[Metric.REFUSAL_RATE] == 0
    assert found[Metric.PREFIX_RESIDENCY] > 0
    assert sum(found[Metric.REFERENCE_COUNTS].values()) == pytest.approx(1)
    assert max(found[Metric.REFERENCE_COUNTS]) > 1, "prefixes are shared"
    assert found[Metric.TTFT]["p50"] <= found[Metric.LATENCY]["p50"]
    json.dumps({m.info.name: v for m, v in found.items()})


def test_what_a_run_cannot_answer_is_left_out():
    recorder = run(num=20)
    assert Metric.WEIGHTS not in measure(recorder)
    assert Metric.PREFIX_RESIDENCY not in measure(recorder)
    assert before_and_after(recorder, 1e9)["after"] is None
    assert free_by_size_class([]) == {}


@pytest.mark.parametrize("kind", ["paged", "prefix", "reserve-max", "grow"])
@pytest.mark.parametrize("seed", range(2))
def test_conservation_at_every_instant(kind, seed):
    recorder = run(num=60, num_blocks=420, kind=kind, seed=seed)
    frame = recorder.series_frame()
    assert len(frame) > 50
    total = frame["kv_live_bytes"] + frame["kv_cached_bytes"] + frame["kv_free_bytes"]
    assert (total == recorder.series.capacity_bytes).all()
    assert (frame["kv_token_bytes"] <= frame["kv_live_bytes"]).all()
    assert (frame["kv_largest_free_bytes"] <= frame["kv_free_bytes"]).all()
    assert (frame["end_s"] > frame["start_s"]).all()
    assert (frame["num_waiting"] >= 0).all()
    summary = recorder.summary()
    assert summary["num_admitted"] == summary["num_finished"] + summary["num_dropped"]
    assert recorder.num_live == 0


def test_files(tmp_path):
    recorder = run(num=30)
    requests, series = save_parquet(recorder, tmp_path / "run")
    assert len(load_parquet(requests)) == len(recorder.requests)
    assert list(load_parquet(series).columns)[:3] == ["step", "start_s", "end_s"]
    path = save_perfetto(recorder, tmp_path / "run" / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "C"}
    decode = [e for e in events if e["name"] == "decode"]
    assert len(decode) == recorder.num_finished
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "requests.parquet",
        "series.parquet",
        "trace.json",
    ]


def test_half_a_file_is_said(tmp_path):
    path = save_parquet(run(num=20), tmp_path)[0]
    half = tmp_path / "half.parquet"
    half.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=r"half\.parquet: is not a whole Parquet file") as raised:
        load_parquet(half)
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="no such file"):
        load_parquet(tmp_path / "none.parquet")
    assert re.search("whole", str(raised.value))
