"""The panels' part of `browser_latency.py`: controls moved in JupyterLab, one at a time, each until its picture came."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from lab_browser import SHOW_ALL, Lab  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))

#: from the event of a control to the first task after the frame in which the panel's new picture was loaded
PROBE = """(panel) => {
  const image = panel.querySelector('img');
  const probe = window.probe = { latency: [], pending: null };
  const heard = (e) => { if (e.type !== 'pointermove' || e.buttons & 1) probe.pending ??= e.timeStamp; };
  for (const type of ['pointermove', 'keydown', 'change']) panel.addEventListener(type, heard, true);
  window.addEventListener('pointermove', heard, true);  // a drag leaves the panel's box
  image.addEventListener('load', () => {
    if (probe.pending === null) return;
    const began = probe.pending;
    probe.pending = null;
    const channel = new MessageChannel();
    channel.port1.onmessage = () => probe.latency.push(performance.now() - began);
    requestAnimationFrame(() => channel.port2.postMessage(0));
  });
}"""

#: true when a picture came, false when the kernel has long been idle again: the values gave the same picture
ANSWERED = """async (seen) => {
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  let idleSince = performance.now();
  while (probe.latency.length <= seen) {
    if (kernel.status !== 'idle') idleSince = performance.now();
    if (performance.now() - idleSince > 600) { probe.pending = null; return false; }
    await new Promise((done) => setTimeout(done, 5));
  }
  return true;
}"""

#: 2,000 operations of an allocator and its memory map: what a panel of the lab costs, without a notebook around it
SMALL_NOTEBOOK = [
    "import numpy as np\nfrom labkit.memory import ALLOCATORS\nfrom labkit.memory.base import OutOfMemory\n"
    "from labkit.viz.memory_map import draw_layout\nfrom labkit.viz.panel import Slider, SliderPanel",
    "def experiment(mean_kib, seed, figure=None):\n"
    "    rng = np.random.default_rng(seed)\n"
    "    allocator, live = ALLOCATORS['best-fit'](64 << 20), []\n"
    "    for step in range(2000):\n"
    "        try:\n"
    "            live.append(allocator.malloc(int(rng.exponential(mean_kib << 10)) + 1, lifetime='request'))\n"
    "        except OutOfMemory:\n"
    "            pass\n"
    "        if rng.random() < 0.5 and live:\n"
    "            allocator.free(live.pop(int(rng.integers(len(live)))))\n"
    "    return draw_layout(allocator.layout(), title=f'mean {mean_kib} KiB', figure=figure)",
    "panel = SliderPanel(experiment, {'mean_kib': Slider(64, 8, 512, label='mean size (KiB)'), 'seed': Slider(0, 0, 9)})\npanel",
]


def small_notebook(folder: Path) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in SMALL_NOTEBOOK]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = folder / "2,000 operations.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)
    return path


def measure_panels(browser, chosen: Sequence[str], num_moves: int) -> Iterator[dict]:
    """A row for each control of each panel of the chosen notebooks (two digits each), the small panel first."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        notebooks = [small_notebook(folder), *(path for path in NOTEBOOKS if path.stem[:2] in chosen)]
        lab = Lab(folder)
        try:
            lab.wait_until_up()
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            for notebook in notebooks:
                lab.open(page, notebook)
                page.evaluate(SHOW_ALL)
                lab.run_all(page)
                page.wait_for_selector(".labkit-panel img")
                panels = page.locator(".labkit-panel")
                for number in range(panels.count()):
                    yield from measure_panel(page, panels.nth(number), notebook.stem, num_moves)
                lab.close_notebook(page)
        finally:
            lab.stop()


def measure_panel(page, panel, what: str, num_moves: int) -> Iterator[dict]:
    panel.scroll_into_view_if_needed()
    page.wait_for_timeout(800)
    panel.evaluate(PROBE)
    reset = panel.get_by_role("button", name="Reset")
    for how, actions in controls(page, panel, num_moves):
        yield row(page, what, how, actions)
        reset.click()
        page.wait_for_timeout(600)


def controls(page, panel, num_moves: int) -> Iterator[tuple[str, Iterator]]:
    """Every control of a panel, by name, and its moves."""
    handles, boxes, lists = (panel.locator(css) for css in (".noUi-handle", "input[type=checkbox]", "select"))
    for index in range(handles.count()):
        for how in ("keys", "drag") if index == 0 else ("keys",):
            yield f"slider {index + 1}, {how}", slide(page, handles.nth(index), how, num_moves)
    for index in range(lists.count()):
        control = lists.nth(index)
        options = control.locator("option").all_inner_texts()
        yield (
            f"list {index + 1}",
            (
                lambda control=control, option=option: control.select_option(option)
                for option in [*options, *options][:num_moves]
            ),
        )
    for index in range(boxes.count()):
        yield f"box {index + 1}", (boxes.nth(index).click for _ in range(8))


def slide(page, handle, how: str, num_moves: int) -> Iterator:
    """Moves of one slider, spread over its range: by keys from one end to the other, or by a mouse that goes to and fro."""
    handle.scroll_into_view_if_needed()
    handle.focus()
    if how == "drag":
        track = handle.locator("xpath=ancestor::*[contains(@class, 'noUi-target')]").bounding_box()
        box = handle.bounding_box()
        y = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] / 2, y)
        page.mouse.down()
        for move in range(num_moves):
            part = (move * 37 % 100) / 100
            yield lambda part=part: page.mouse.move(track["x"] + part * track["width"], y)
        page.mouse.up()
        return
    handle.press("Home")
    page.wait_for_timeout(600)
    for move in range(num_moves):
        at_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
        key = "Home" if at_end else "PageUp" if move % 2 else "ArrowRight"  # one step, five steps
        yield lambda key=key: handle.press(key)


def row(page, what: str, how: str, actions) -> dict:
    same = 0
    page.evaluate("() => { probe.latency.length = 0 }")
    for action in actions:
        seen = page.evaluate("() => { probe.pending = null; return probe.latency.length }")
        action()
        if not page.evaluate(ANSWERED, seen):
            same += 1
    latency = page.evaluate("probe.latency")
    return {"what": what, "how": how, "moves": len(latency) + same, "latency": latency}
