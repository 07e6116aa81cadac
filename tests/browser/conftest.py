"""Chromium and JupyterLab for tests. Used by the player's own tests and by `make browser` for every notebook.

    from lab_browser import move_slider

    def test_one(lab, browser_page):
        lab.open(browser_page, Path("notebooks/05_contiguous_kv.ipynb"))   # a copy is opened, the original stays as it is
        lab.run_all(browser_page)
        changed = move_slider(browser_page, 0)      # ArrowRight on the first ipywidgets slider; waits for a new picture

A machine without Chromium skips these tests with that reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_browser import CHROMIUM_FLAGS, NO_CHROMIUM, Lab, find_chromium


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


def _no_chromium() -> None:
    """A machine without Chromium skips; CI, which installs it, must not."""
    if os.environ.get("LABKIT_REQUIRE_BROWSER"):
        pytest.fail(NO_CHROMIUM + ", and LABKIT_REQUIRE_BROWSER is set")
    pytest.skip(NO_CHROMIUM)


@pytest.fixture(scope="module")
def browser():
    """One Chromium for a module: Playwright's event loop runs as long as it is open, and asyncio tests of other modules need theirs."""
    executable = find_chromium()
    if executable is None:
        _no_chromium()
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        yield running
        running.close()


@pytest.fixture
def browser_page(browser):
    """A fresh page 1280 x 900; the test fails if a script of the page threw."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    # JupyterLab itself throws these two when a page is used offline
    errors = [error for error in errors if not any(text in error for text in ("MathJax", "Canceled"))]
    assert not errors, errors


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """One JupyterLab for the session; its kernels import this checkout of labkit."""
    if find_chromium() is None:
        _no_chromium()
    server = Lab(tmp_path_factory.mktemp("lab"))
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()
