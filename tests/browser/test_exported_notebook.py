"""A player inside an executed notebook that was exported to HTML: alive without a kernel and without a network."""

from types import SimpleNamespace

import nbformat
import pytest
from lab_browser import pictures, wait_for_change

from labkit.memory.base import Span
from labkit.teach.report import write_html
from labkit.viz.player import player
from labkit.viz.player_builder import RunBuilder

pytestmark = pytest.mark.browser_all


def make_player(title):
    builder = RunBuilder(1000, title=title, unit="blocks", time_unit="step")
    for step in range(30):
        builder.add(step, [Span(10 * step, 300, "allocated", 300, "owner", "prefix")])
    return player(builder.finish(), time=0)


def test_two_players_of_one_exported_notebook_answer_to_keys(browser_page, tmp_path):
    cells = []
    for title in ("first", "second"):
        cell = nbformat.v4.new_code_cell(f"{title}")
        data, _ = make_player(title)._repr_mimebundle_()
        data = {mime: value for mime, value in data.items() if mime != "text/plain"}
        cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
        cells.append(cell)
    source, target = tmp_path / "n.ipynb", tmp_path / "n.html"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), source)
    write_html(SimpleNamespace(output=source, notebook="n"), target)
    asked = []
    browser_page.on("request", lambda request: asked.append(request.url))
    browser_page.route("http*://**", lambda route: route.abort())
    browser_page.goto(target.as_uri())
    browser_page.wait_for_function("document.querySelectorAll('.lkp[data-ready]').length === 2")
    names = browser_page.locator(".lkp .one .name").all_text_contents()
    assert names == ["first", "second"]
    seen = pictures(browser_page, ".lkp .maps")
    browser_page.locator(".lkp").nth(1).focus()
    browser_page.keyboard.press("ArrowRight")
    moved = wait_for_change(browser_page, seen, ".lkp .maps")
    assert moved[0] == seen[0], "the keys of one player moved the other"
    assert moved[1] != seen[1]
