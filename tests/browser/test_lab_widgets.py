"""The player and the slider panel in JupyterLab, with a kernel. Part of `make browser`."""

import nbformat
import pytest
from lab_browser import drag_slider, move_slider, pictures, sliders, wait_for_change

pytestmark = pytest.mark.browser_all

PANEL = """
import time
import numpy as np
from labkit.errors import LabError
from labkit.viz import Choice, Series, Slider, SliderPanel, draw_timeline
drawn = []
def draw(level, policy, figure=None):
    drawn.append(level)
    time.sleep(0.05)
    if level == 19:
        raise LabError('level 19 is one too many')
    return draw_timeline([Series(policy, np.arange(9.0), np.arange(9.0) * level, 'count')], title=f'level {level}', figure=figure)
panel = SliderPanel(draw, {'level': Slider(5, 0, 20), 'policy': Choice('paged', ['paged', 'reserve'])}, title='Panel')
panel
"""

PLAYER = """
import numpy as np
from labkit.memory import make_allocator, OutOfMemory
from labkit.viz.player import RunBuilder, player
allocator, rng, live = make_allocator('best-fit', 64 << 20), np.random.default_rng(0), []
builder = RunBuilder(64 << 20, title='best fit', time_unit='step')
for step in range(80):
    try:
        live.append(allocator.malloc(int(rng.integers(1 << 18, 4 << 20)), tag=f'request {step}', lifetime='request'))
    except OutOfMemory:
        builder.event(step, 'oom', 'no room')
    if step > 9 and rng.random() < 0.45:
        allocator.free(live.pop(int(rng.integers(len(live)))))
    builder.add(step, allocator.layout())
player(builder.finish(), time=0)
"""


@pytest.fixture(scope="module")
def opened(lab, browser):
    """The notebook, run once."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source.strip()) for source in (PANEL, PLAYER, "print(drawn)")],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    path = lab.root / "widgets.ipynb"
    nbformat.write(notebook, path)
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    lab.open(page, path)
    lab.run_all(page)
    page.wait_for_selector(".labkit-panel img")
    page.wait_for_selector(".lkp[data-ready]")
    yield page
    lab.close_notebook(page)
    page.close()
    assert not errors, errors


def value(page):
    return page.locator(".labkit-panel .widget-readout").first.text_content()


def test_a_key_on_the_slider_makes_a_new_picture(opened):
    assert len(set(map(str, [move_slider(opened, 0) for _ in range(3)]))) == 3
    assert value(opened) == "8"


def test_a_drag_ends_in_the_picture_of_the_last_value_without_a_queue(opened):
    drag_slider(opened, 0, by_pixels=-120, num_moves=40)
    opened.wait_for_timeout(1500)
    last = int(value(opened))
    count = opened.evaluate(
        """async () => { const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
        let text = ''; const future = kernel.requestExecute({ code: 'print(len(drawn), drawn[-1], panel.figure(level=drawn[-1]) is not None)' });
        future.onIOPub = (m) => { if (m.content.text) text += m.content.text }; await future.done; return text }"""
    ).split()
    assert int(count[1]) == last
    assert int(count[0]) < 40


def test_the_button_goes_back_to_the_notebooks_values(opened):
    before = pictures(opened, ".labkit-panel")
    opened.locator(".labkit-panel button").click()
    wait_for_change(opened, before, ".labkit-panel")
    assert value(opened) == "5"


def test_a_choice_changes_the_picture_too(opened):
    before = pictures(opened, ".labkit-panel")
    opened.locator(".labkit-panel select").select_option("reserve")
    wait_for_change(opened, before, ".labkit-panel")


def test_an_error_is_a_sentence_and_the_picture_stays(opened):
    handle = sliders(opened).first
    handle.focus()
    for _ in range(14):  # 5 -> 19
        handle.press("ArrowRight")
    opened.wait_for_selector(".labkit-panel [role=alert]", timeout=15_000)
    assert value(opened) == "19"
    assert opened.locator(".labkit-panel [role=alert]").text_content() == "level 19 is one too many"
    before = pictures(opened, ".labkit-panel")
    handle.press("ArrowLeft")
    wait_for_change(opened, before, ".labkit-panel")
    assert opened.locator(".labkit-panel [role=alert]").count() == 0


def test_the_player_is_the_widget_and_keys_stay_inside_it(opened):
    root = opened.locator(".lkp")
    assert root.count() == 1, "the widget and its HTML twin must not both be shown"
    root.scroll_into_view_if_needed()
    active = "jupyterapp.shell.currentWidget.content.activeCellIndex"
    opened.locator(".lkp .name").first.click()
    root.focus()
    cell = opened.evaluate(active)
    seen = pictures(opened, ".lkp .maps")
    for step in range(1, 6):
        opened.keyboard.press("ArrowRight")
        seen = wait_for_change(opened, seen, ".lkp .maps")
        assert opened.evaluate("document.querySelector('.lkp').labkitPlayer.now") == step
    assert opened.evaluate(active) == cell


def test_the_player_follows_the_mouse(opened):
    slider = opened.locator(".lkp input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    seen = pictures(opened, ".lkp .maps")
    opened.mouse.move(box["x"] + 8 + 5 / 79 * (box["width"] - 16), box["y"] + box["height"] / 2)
    opened.mouse.down()
    for part in (0.3, 0.6, 0.9):
        opened.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
        seen = wait_for_change(opened, seen, ".lkp .maps")
    opened.mouse.up()
    canvas = opened.locator(".lkp canvas.map")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    opened.mouse.move(box["x"] + 5, box["y"] + 5)
    assert "references: 1" in opened.locator(".lkp .tip").text_content()
