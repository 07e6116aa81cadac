"""The player in Chromium, in an exported page: no kernel, no server, no network. This is the one page of `make test`."""

import numpy as np
import pytest
from lab_browser import pictures, wait_for_change

from labkit.memory.base import Span
from labkit.viz.player import player
from labkit.viz.player_builder import RunBuilder

NUM_STEPS, TOTAL = 60, 4 << 30
MAP = ".lkp .maps"


def make_run(seed, title):
    """Ranges that come, go and grow in 4 GiB, with two events; owner and size of the first one are known."""
    rng = np.random.default_rng(seed)
    builder = RunBuilder(TOTAL, title=title)
    slots = TOTAL // 64
    for step in range(NUM_STEPS):
        spans = [Span(0, slots, "allocated", slots - (1 << 20), "weights of layer 0", "weights")]
        for index in range(1, 64):
            if rng.random() < 0.5:
                spans.append(
                    Span(
                        index * slots,
                        int(slots * rng.uniform(0.3, 1)),
                        "allocated",
                        0,
                        f"r{index}",
                        "request",
                    )
                )
        builder.add(step * 0.1, spans, refs=[7] + [1] * (len(spans) - 1))
    builder.event(2.0, "oom", "asked 2 GiB")
    builder.event(4.0, "eviction", "prefix")
    return builder.finish()


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    path = tmp_path_factory.mktemp("player") / "run.html"
    player([make_run(1, "first"), make_run(2, "second")], title="Two pools", time=0).save_html(path)
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector(".lkp[data-ready]")
    yield page
    page.close()
    assert requests == [path.as_uri()], "the page asked for something else"
    assert not errors


def step_of(page):
    return page.evaluate("document.querySelector('.lkp').labkitPlayer.now")


@pytest.fixture
def page(opened):
    """The player at step 0, everything in view."""
    opened.keyboard.press("Escape")
    opened.evaluate(
        "() => { const p = document.querySelector('.lkp').labkitPlayer; p.zoom(Infinity); p.go(0); p.draw(); p.root.focus() }"
    )
    return opened


def test_dragging_the_time_slider_with_the_mouse_changes_the_picture_each_time(page):
    box = page.locator(".lkp input[type=range]").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, y)
    page.mouse.down()
    seen = [pictures(page, MAP)]
    for part in (0.2, 0.4, 0.6, 0.8, 0.5):
        page.mouse.move(box["x"] + part * box["width"], y)
        seen.append(wait_for_change(page, seen[-1], MAP))
    page.mouse.up()
    assert len({tuple(one) for one in seen}) == 6
    assert 25 <= step_of(page) <= 34


def test_dragging_on_the_time_strip_moves_the_clock(page):
    box = page.locator(".lkp .strip").bounding_box()
    before = pictures(page, MAP)
    page.mouse.move(box["x"] + 5, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 40)
    wait_for_change(page, before, MAP)
    page.mouse.up()
    assert step_of(page) == NUM_STEPS - 1


def test_keys_step_and_each_step_changes_the_picture(page):
    seen = [pictures(page, MAP)]
    for key, step in [
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("Shift+ArrowRight", 12),
        ("ArrowLeft", 11),
        ("End", 59),
        ("Home", 0),
    ]:
        page.keyboard.press(key)
        seen.append(wait_for_change(page, seen[-1], MAP))
        assert step_of(page) == step
    assert seen[-1] == seen[0], "back at the start, the cells must hold the same sums to the last bit"


def test_any_way_to_a_step_gives_the_same_picture(page):
    walk = "async (to) => { const p = document.querySelector('.lkp').labkitPlayer; for (const s of to) { p.now = s; p.draw() } }"
    page.evaluate(walk, [37])
    jumped = pictures(page, MAP)
    page.evaluate(walk, [*range(38, 60), *range(59, -1, -1), *range(38)])
    assert pictures(page, MAP) == jumped


def test_brackets_jump_to_events_and_the_list_does_too(page):
    page.keyboard.press("]")
    page.wait_for_function("document.querySelector('.lkp').labkitPlayer.now === 20")
    assert "oom" in page.locator(".lkp select.events option:checked").text_content()
    page.keyboard.press("]")
    page.wait_for_function("document.querySelector('.lkp').labkitPlayer.now === 40")
    page.keyboard.press("[")
    page.wait_for_function("document.querySelector('.lkp').labkitPlayer.now === 20")
    page.locator(".lkp select.events").select_option(index=3)
    page.wait_for_function("document.querySelector('.lkp').labkitPlayer.now === 40")


def test_space_plays_and_pauses(page):
    page.locator(".lkp select[aria-label=Speed]").select_option("8")
    page.evaluate("document.querySelector('.lkp').focus()")
    page.keyboard.press(" ")
    page.wait_for_function("document.querySelector('.lkp').labkitPlayer.now > 5")
    page.keyboard.press(" ")
    stopped = step_of(page)
    page.wait_for_timeout(150)
    assert step_of(page) == stopped


def test_hovering_tells_owner_size_age_references_and_lifetime(page):
    page.evaluate("() => { const p = document.querySelector('.lkp').labkitPlayer; p.go(30); p.draw() }")
    box = page.locator(".lkp canvas.map").first.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + 4)
    text = page.locator(".lkp .tip").text_content()
    assert text.split("\n") == [
        "owner: weights of layer 0",
        "lifetime: static weights",
        "size: 64 MiB, asked 63 MiB",
        "at: 0 B",
        "age: 3 s",
        "references: 7",
    ]
    page.mouse.move(5, 5)
    assert page.locator(".lkp .tip").is_hidden()


def test_arrow_keys_on_the_map_move_the_pointer_and_not_the_clock(page):
    page.locator(".lkp canvas.map").first.focus()
    page.keyboard.press("ArrowRight")
    assert "weights of layer 0" in page.locator(".lkp .tip").text_content()
    for _ in range(12):
        page.keyboard.press("Shift+ArrowRight")
    assert "weights of layer 0" not in page.locator(".lkp .tip").text_content()
    assert step_of(page) == 0


def test_zooming_shows_a_part_and_says_which(page):
    before = pictures(page, MAP)
    page.keyboard.press("+")
    wait_for_change(page, before, MAP)
    assert "zoomed: 1 GiB to 3 GiB of 4 GiB" in page.locator(".lkp .axis").first.text_content()
    page.keyboard.press("0")
    assert "whole space: 4 GiB" in page.locator(".lkp .axis").first.text_content()
    assert pictures(page, MAP) == before


def test_two_runs_follow_one_clock(page):
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.lkp').labkitPlayer.now === 59")
    page.wait_for_timeout(50)
    states = page.locator(".lkp .state").all_text_contents()
    assert len(states) == 2
    assert all(state.startswith("5.9 s: used ") for state in states)


def test_the_pixels_are_those_of_the_static_map(page):
    """At step 0 the first cell of the map is the colour of weights, the last one that of free space."""
    from matplotlib.colors import to_rgb

    from labkit.viz.palette import color_of

    first, last = page.evaluate(
        """() => { const c = document.querySelector('.lkp canvas.map'), g = c.getContext('2d');
        return [[...g.getImageData(0, 0, 1, 1).data], [...g.getImageData(c.width - 1, c.height - 1, 1, 1).data]] }"""
    )
    assert first == [*(round(255 * c) for c in to_rgb(color_of("weights"))), 255]
    assert last[3] == 0 or last[:3] == [round(255 * c) for c in to_rgb(color_of("free"))]
