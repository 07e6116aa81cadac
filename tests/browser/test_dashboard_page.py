"""The dashboard in an exported page: its clock and the player's are one."""

import pytest

from labkit.kv.paged import PagedKVCache
from labkit.memory.base import Span
from labkit.observe.recorder import make_recorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.viz.dashboard import dashboard
from labkit.viz.player_builder import RunBuilder
from labkit.workload.base import RequestSpec

pytestmark = pytest.mark.browser_all
CLOCKS = "() => { const d = document.querySelector('.lkd').labkitDashboard; return [d.time, d.player.clock[d.player.now]]; }"


def test_both_clocks_move_together(browser_page, tmp_path):
    recorder = make_recorder("full")
    scheduler = make_scheduler("lab", PagedKVCache(120, 4096, block_size=16))
    simulate(
        scheduler, LinearStepCost(), [RequestSpec(f"r{i}", 0.1 * i, 100, 30) for i in range(60)], recorder
    )
    builder = RunBuilder(100, unit="blocks")
    for time in range(7):
        builder.add(float(time), [Span(10 * time, 10, "allocated", 10, "a", "request")])
    page = browser_page
    panel = dashboard(recorder, player_run=builder.finish(), time=2.0)
    page.goto(panel.save_html(tmp_path / "d.html").as_uri())
    page.wait_for_selector("[data-ready=true]")
    assert page.evaluate(CLOCKS) == [2, 2]
    box = page.locator(".lkd img").bounding_box()
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 120)
    page.wait_for_timeout(200)
    own, players = page.evaluate(CLOCKS)
    assert own > 3
    assert players == int(own), "the player shows the last layout that is not after the dashboard's instant"
    page.locator(".lkp input[type=range]").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(200)
    assert page.evaluate(CLOCKS) == [players - 1, players - 1], "and the dashboard follows the player"
    assert f"{players - 1}" in page.locator(".lkd .now").inner_text()
