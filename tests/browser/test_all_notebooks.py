"""Every notebook in JupyterLab: all cells run without an error, every panel's first control is moved and the picture
changes. Screenshots are kept under build/browser/. Part of `make browser`."""

from pathlib import Path

import pytest
from lab_browser import SHOW_ALL, pictures, wait_for_change

pytestmark = pytest.mark.browser_all

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
SCREENSHOTS = ROOT / "build" / "browser"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_all_cells_run_and_every_panel_moves(lab, browser_page, notebook):
    page = browser_page
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    lab.open(page, notebook)
    try:
        page.evaluate(SHOW_ALL)
        lab.run_all(page, timeout_s=240)
        page.wait_for_selector(".labkit-panel img", timeout=60_000)
        panels = page.locator(".labkit-panel")
        assert panels.count() >= 1
        for number in range(panels.count()):
            panel = panels.nth(number)
            panel.scroll_into_view_if_needed()
            try:
                move(page, panel)
            except AssertionError as error:
                said = panel.locator("[role=alert]").all_text_contents()
                pytest.fail(f"{notebook.stem}, panel {number}: {error}; the panel says {said or 'nothing'}")
            finally:
                panel.screenshot(path=SCREENSHOTS / f"{notebook.stem}_panel{number}.png")
    finally:
        page.screenshot(path=SCREENSHOTS / f"{notebook.stem}.png")
        lab.close_notebook(page)


def move(page, panel) -> None:
    """Change the panel's first control, whatever it is, and wait for another picture in this panel."""
    identity = panel.evaluate(
        "(node) => { node.id ||= 'panel' + Math.random().toString(36).slice(2); return node.id }"
    )
    scope = f"#{identity}"
    before = pictures(page, scope)
    handle, box, choice = (panel.locator(css) for css in (".noUi-handle", "input[type=checkbox]", "select"))
    if handle.count():
        handle.first.focus()
        for _ in range(4):  # one step may round to the same picture
            handle.first.press("ArrowRight")
    elif box.count():
        box.first.click()
    else:
        options = choice.first.locator("option").all_inner_texts()
        choice.first.select_option(options[-1])
    wait_for_change(page, before, scope, timeout_s=30.0)
