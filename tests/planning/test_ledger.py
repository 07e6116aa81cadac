"""The ledger adds up to the GPU, has the seven kinds and the hidden lines, and its picture shows all of it."""

from __future__ import annotations

import pytest

from labkit.models import get_gpu, get_model
from labkit.models.parallel import Parallel
from labkit.planning.ledger import KINDS, allocator_rounding, make_ledger, naive_concurrency
from labkit.planning.planner import make_plan
from labkit.planning.request import PlanRequest
from labkit.units import GIB, MIB

CASES = [
    ("Llama-3.1-8B", 1),
    ("Qwen3-30B-A3B", 2),
    ("DeepSeek-V3", 8),
    ("gpt-oss-20b", 1),
    ("Qwen3-Next-80B-A3B", 4),
]


def plan(name: str = "Llama-3.1-8B", tp: int = 1, **changes):
    options = {"parallel": Parallel(tp), "max_model_len": 8192} | changes
    return make_plan(PlanRequest(get_model(name), get_gpu("H200-141GB"), **options))


@pytest.mark.parametrize(("name", "tp"), CASES)
def test_it_adds_up(name, tp):
    ledger = make_ledger(plan(name, tp))
    rows = ledger.rows()
    assert sum(row["bytes"] for row in rows) == ledger.total_bytes == round(139.8 * GIB)
    assert {row["kind"] for row in rows} == {*KINDS, "unused"}
    assert sum(ledger.bytes_of(kind) for kind in KINDS) == ledger.used_bytes
    assert ledger.bytes_of("kv_cache") == ledger.plan.num_blocks * ledger.plan.block_bytes
    assert all(row["formula"] for row in rows)
    assert {row["confidence"] for row in rows} <= {"exact", "derived", "estimated", "given"}


def test_the_hidden_lines_are_there_and_count():
    ledger = make_ledger(plan())
    hidden = {line.name for line in ledger.lines if line.hidden}
    assert hidden >= {
        "CUDA graphs",
        "block tables",
        "rotary tables",
        "allocator rounding",
        "growth on a new shape",
        "CUDA context and kernels",
    }
    assert all(line.num_bytes > 0 for line in ledger.lines if line.hidden)
    assert f"{ledger.hidden_bytes / GIB:.2f} GiB" in ledger.sentence()


def test_weights_are_static_and_kv_is_dynamic():
    for line in make_ledger(plan()).lines:
        if line.kind == "weights":
            assert not line.dynamic
        if line.kind in ("kv_cache", "activations"):
            assert line.dynamic


def test_block_tables_by_hand():
    ledger = make_ledger(plan(max_num_seqs=100, block_size=16))
    assert ledger.bytes_of("metadata") == 100 * 512 * 4


def test_rounding_is_that_of_the_caching_allocator():
    small = allocator_rounding(plan())
    assert 0 < small.num_bytes < 400 * MIB
    num_weights = len(get_model("Llama-3.1-8B").weights)
    assert f"{num_weights + 32} tensors" in small.formula, "all weights, and one KV tensor a layer"


def test_weights_and_kv_alone_promise_too_much():
    for name, tp in CASES:
        assert naive_concurrency(plan(name, tp)) > plan(name, tp).max_concurrency


def test_frame_and_picture():
    from labkit.viz.ledger import draw_ledger

    ledger = make_ledger(plan())
    frame = ledger.frame()
    assert list(frame.columns[:3]) == ["kind", "line", "bytes"]
    figure = draw_ledger({"one": ledger, "two": make_ledger(plan(tp=2))})
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["one", "two"]
    first = [p for p in axes.patches if abs(p.get_y() + p.get_height() / 2) < 0.1]
    assert sum(p.get_width() for p in first) == pytest.approx(ledger.total_bytes / GIB, rel=1e-6)
    assert "GiB" in axes.get_xlabel()


def test_panel_answers_and_says_what_is_not_possible():
    from labkit.viz.whatif import whatif_panel

    panel = whatif_panel()
    assert "requests of 16,384" in panel.figure().axes[0].get_title(loc="left")
    panel.widget  # noqa: B018
    before = panel._image.value
    panel._inputs["kv_dtype"].value = "fp8"
    assert panel._image.value != before
    panel._inputs["gpu"].value = "T4-16GB"
    assert "weights take" in panel._message.value
    assert "Output" not in {type(child).__name__ for child in panel.widget.children}
    assert "refuses to start" in panel.figure(
        model="Llama-3.1-8B", gpu="A10G-24GB", max_model_len=131072
    ).axes[0].get_title(loc="left")
