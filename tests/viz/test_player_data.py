"""A run must give back the layouts that went in, and the page must get the same numbers."""

import contextlib
import gzip
import json

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.memory import ALLOCATORS
from labkit.memory.base import OutOfMemory, Span
from labkit.viz.player_builder import RunBuilder
from labkit.viz.player_data import pack


def shown(spans):
    """What the player keeps of a layout: holes are the background, a lifetime is its class."""
    return [(s.offset, s.size, s.tag, s.requested, s.lifetime) for s in spans if s.state == "allocated"]


def churn(name, seed, num_steps=120, total=1 << 20):
    rng = np.random.default_rng(seed)
    allocator = ALLOCATORS[name](total)
    live, frames = [], []
    for step in range(num_steps):
        if rng.random() < 0.6:
            with contextlib.suppress(OutOfMemory):
                live.append(
                    allocator.malloc(int(rng.integers(1, 40_000)), tag=f"r{step}", lifetime="request")
                )
        elif live:
            allocator.free(live.pop(int(rng.integers(len(live)))))
        frames.append((step * 0.5, allocator.layout(), allocator.stats()))
    return total, frames


@pytest.mark.parametrize("name", ["first-fit", "best-fit", "buddy"])
def test_every_step_gives_back_the_layout_that_was_added(name):
    total, frames = churn(name, seed=7)
    builder = RunBuilder(total)
    for time, layout, _ in frames:
        builder.add(time, layout)
    run = builder.finish()
    for step, (time, layout, stats) in enumerate(frames):
        assert run.step_at(time) == step
        assert shown(run.layout(step)) == shown(layout)
        assert run.largest_free[step] == stats.largest_free_bytes
        assert run.free[step] == stats.free_bytes
    assert len(run.records["start"]) < sum(len(layout) for _, layout, _ in frames) / 5, (
        "unchanged spans were stored again"
    )


def decode(packed):
    raw = gzip.decompress(packed)
    length = int.from_bytes(raw[:4], "little")
    header = json.loads(raw[4 : 4 + length])
    base = 8 * -(-(4 + length) // 8)
    runs = []
    for meta in header["runs"]:
        columns = {
            name: np.frombuffer(raw, f"<{kind}", count, base + at)
            for name, kind, at, count in meta["columns"]
        }
        runs.append((meta, columns))
    return header, runs


def test_the_page_gets_the_same_records_on_aligned_columns():
    total, frames = churn("best-fit", seed=3)
    builder = RunBuilder(total, title="one")
    for time, layout, _ in frames:
        builder.add(time, layout)
    builder.event(10.0, "oom", "asked")
    run = builder.finish()
    header, [(meta, columns), _] = decode(pack([run, run], title="both"))
    assert header["title"] == "both"
    assert all(at % 8 == 0 for _, _, at, _ in meta["columns"])
    for name in ("offset", "size"):
        assert np.array_equal(columns[name].astype(np.int64) * meta["granule"], run.records[name])
    for name in ("start", "end", "since", "owner", "cls", "refs", "slack"):
        assert np.array_equal(columns[name], run.records[name])
    assert meta["events"] == [[20, "oom", "asked"]]
    assert np.all(np.diff(columns["start"].astype(int)) >= 0)


def test_addresses_beyond_four_bytes_stay_exact():
    builder = RunBuilder(1 << 45)
    builder.add(0, [Span((1 << 44) + 1, (1 << 33) + 1, "allocated", 1 << 33)])
    _, [(meta, columns)] = decode(pack([builder.finish()]))
    assert int(columns["offset"][0]) * meta["granule"] == (1 << 44) + 1
    assert int(columns["size"][0]) * meta["granule"] == (1 << 33) + 1


def test_age_survives_growth_and_new_references_and_not_a_new_owner():
    builder = RunBuilder(100, unit="blocks", time_unit="step")
    builder.add(0, [Span(0, 10, "allocated", 10, "a", "prefix")], refs=[1])
    builder.add(1, [Span(0, 10, "allocated", 10, "a", "prefix")], refs=[2])
    builder.add(2, [Span(0, 20, "allocated", 20, "a", "prefix")], refs=[2])
    builder.add(3, [Span(0, 20, "allocated", 20, "b", "prefix")], refs=[1])
    records = builder.finish().records
    assert records["start"].tolist() == [0, 1, 2, 3]
    assert records["since"].tolist() == [0, 0, 0, 3]
    assert records["refs"].tolist() == [1, 2, 2, 1]
    assert records["end"].tolist() == [1, 2, 3, 4]


def test_a_space_with_unreserved_parts_keeps_its_free_spans():
    builder = RunBuilder(100)
    builder.add(0, [Span(0, 10, "free"), Span(10, 10, "allocated", 10)])
    run = builder.finish()
    assert run.background == "not reserved"
    assert [span.state for span in run.layout(0)] == ["free", "allocated"]
    assert run.free[0] == 10


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([Span(0, 10, "free"), Span(5, 10, "free")], "overlap at offset 5"),
        ([Span(95, 10, "free")], "outside of the space"),
        ([Span(0, 0, "free")], "empty one"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(spans, message):
    with pytest.raises(LabError, match=message):
        RunBuilder(100).add(0, spans)


def test_time_must_not_go_back_and_units_must_agree():
    builder = RunBuilder(100)
    builder.add(2, [Span(0, 10, "free")])
    with pytest.raises(LabError, match="time goes back from 2 to 1"):
        builder.add(1, [Span(0, 10, "free")])
    other = RunBuilder(100, time_unit="step")
    other.add(0, [])
    with pytest.raises(LabError, match="one time unit"):
        pack([builder.finish(), other.finish()])
    with pytest.raises(LabError, match="at least one layout"):
        RunBuilder(100).finish()


def test_in_a_pool_of_equal_blocks_every_free_one_counts_as_largest_free():
    spans = [Span(at, 1, "allocated" if at % 2 else "free", 1) for at in range(10)]
    plain, pool = RunBuilder(10), RunBuilder(10, interchangeable=True)
    for builder in (plain, pool):
        builder.add(0.0, spans)
        builder.add(1.0, [span for span in spans if span.state == "allocated"])  # holes left out
    assert plain.finish().largest_free.tolist() == [1, 1]
    assert pool.finish().largest_free.tolist() == pool.finish().free.tolist() == [5, 5]
