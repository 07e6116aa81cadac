"""How fast pictures answer, in a real browser with a real mouse and keyboard.

    python benchmarks/browser_latency.py [--moves 100] [--blocks 100000] [--no-lab]

Player: a pool of 100,000 blocks, the exported page without a kernel. A move is one mouse move of a drag, or one key. Its latency
runs from the event's own `timeStamp` to the first task after the next animation frame, so the screen refresh is inside. `work` is the
page's own time in its handler and its drawing. Panel: a slider in JupyterLab that re-runs an experiment in the kernel
and redraws a figure; from the event to the first task after the frame in which the new picture was loaded.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from lab_browser import CHROMIUM_FLAGS, Lab, find_chromium  # noqa: E402

from labkit.viz.player import player  # noqa: E402
from labkit.viz.player_builder import RunBuilder  # noqa: E402

PLAYER_PROBE = """() => {
  const root = document.querySelector('.lkp');
  window.probe = { latency: [], work: [], steps: [] };
  root.addEventListener('labkit:drawn', (e) => { probe.work.push(e.detail.workMs); probe.steps.push(e.detail.step); });
  const heard = (e) => {
    if (e.type === 'pointermove' && !(e.buttons & 1)) return;
    const channel = new MessageChannel();
    channel.port1.onmessage = () => probe.latency.push(performance.now() - e.timeStamp);
    requestAnimationFrame(() => channel.port2.postMessage(0));
  };
  window.addEventListener('pointermove', heard, true);
  window.addEventListener('keydown', heard, true);
}"""

PANEL_PROBE = """() => {
  const image = document.querySelector('.labkit-panel img');
  window.probe = { latency: [], pending: null };
  const heard = (e) => { if (e.type === 'keydown' || e.buttons & 1) probe.pending = e.timeStamp; };
  window.addEventListener('pointermove', heard, true);
  window.addEventListener('keydown', heard, true);
  image.addEventListener('load', () => {
    if (probe.pending === null) return;
    const began = probe.pending;
    probe.pending = null;
    const channel = new MessageChannel();
    channel.port1.onmessage = () => probe.latency.push(performance.now() - began);
    requestAnimationFrame(() => channel.port2.postMessage(0));
  });
}"""


def make_pool(num_blocks: int, num_steps: int, seed: int = 0):
    """A pool in which every step some requests come, grow and go: 3 % of the blocks change hands a step."""
    rng = np.random.default_rng(seed)
    builder = RunBuilder(num_blocks, title=f"{num_blocks:,} blocks", unit="blocks", time_unit="step")
    codes = [builder.class_code(name) for name in ("request", "session", "prefix")]
    owners = [builder.owner_code(f"request {i}") for i in range(3000)]
    cls, owner = np.full(num_blocks, -1), np.zeros(num_blocks, np.int64)
    for step in range(num_steps):
        for share, value in ((0.95 if step == 0 else 0.03, None), (0.01, -1)):
            chosen = rng.random(num_blocks) < share
            cls[chosen] = rng.choice(codes, chosen.sum()) if value is None else value
            owner[chosen] = rng.choice(owners, chosen.sum())
        live = np.flatnonzero(cls >= 0)
        builder.add_columns(step, offset=live, size=np.ones_like(live), cls=cls[live], owner=owner[live])
    return builder.finish()


def measure_player(browser, num_blocks: int, num_moves: int) -> list[dict]:
    run = make_pool(num_blocks, num_steps=num_moves + 20)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = player(run, time=0).save_html(Path(folder) / "pool.html")
        for how in ("drag", "keys", "drag to and fro"):
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto(path.as_uri())
            page.wait_for_selector(".lkp[data-ready]")
            page.wait_for_timeout(500)
            page.evaluate(PLAYER_PROBE)
            if how == "keys":
                page.evaluate("document.querySelector('.lkp').focus()")
                for move in range(num_moves):
                    page.keyboard.press("ArrowRight")
                    page.wait_for_function(f"probe.latency.length > {move}")
            else:
                box = page.locator(".lkp input[type=range]").bounding_box()
                y = box["y"] + box["height"] / 2
                page.mouse.move(box["x"] + 8, y)
                page.mouse.down()
                for move in range(num_moves):
                    # far jumps, or steady progress of one or two steps a move
                    part = (move * 37 % 100) / 100 if how == "drag to and fro" else (move + 1) / num_moves
                    page.mouse.move(box["x"] + 8 + part * (box["width"] - 16), y)
                    page.wait_for_function(f"probe.latency.length > {move}")
                page.mouse.up()
            probe = page.evaluate("probe")
            page.close()
            changed = len(set(probe["steps"])) if how != "drag to and fro" else len(probe["steps"])
            rows.append(
                {
                    "what": f"player, {num_blocks:,} blocks",
                    "how": how,
                    "pictures": changed,
                    **figures(probe["latency"], probe["work"]),
                }
            )
    return rows


NOTEBOOK_CELLS = [
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


def measure_panel(browser, num_moves: int) -> list[dict]:
    import nbformat

    cells = [nbformat.v4.new_code_cell(source) for source in NOTEBOOK_CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        notebook = Path(folder) / "panel.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), notebook)
        lab = Lab(Path(folder))
        try:
            lab.wait_until_up()
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            lab.open(page, notebook)
            lab.run_all(page)
            page.wait_for_selector(".labkit-panel img")
            handle = page.locator(".labkit-panel .noUi-handle").first
            handle.scroll_into_view_if_needed()
            page.wait_for_timeout(1000)
            page.evaluate(PANEL_PROBE)
            for how in ("keys", "drag"):
                page.evaluate("probe.latency.length = 0")
                if how == "drag":
                    box = handle.bounding_box()
                    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
                    page.mouse.move(x, y)
                    page.mouse.down()
                else:
                    handle.focus()
                for move in range(num_moves):
                    if how == "drag":
                        page.mouse.move(x + 3 * (move + 1), y)
                    else:
                        page.keyboard.press("ArrowRight")
                    page.wait_for_function(f"probe.latency.length > {move}", timeout=10000)
                if how == "drag":
                    page.mouse.up()
                latency = page.evaluate("probe.latency")
                rows.append(
                    {
                        "what": "panel, 2,000 operations re-run",
                        "how": how,
                        "pictures": len(latency),
                        **figures(latency, []),
                    }
                )
        finally:
            lab.stop()
    return rows


def figures(latency: list[float], work: list[float]) -> dict[str, float | None]:
    """Milliseconds, one decimal."""

    def percentile(values, q):
        return round(float(np.percentile(values, q)), 1) if values else None

    return {
        "moves": len(latency),
        "p50_ms": percentile(latency, 50),
        "p95_ms": percentile(latency, 95),
        "max_ms": percentile(latency, 100),
        "work_p95_ms": percentile(work, 95),
        "work_max_ms": percentile(work, 100),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--no-lab", action="store_true", help="only the player's page")
    options = parser.parse_args()
    if find_chromium() is None:
        raise SystemExit("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        version = browser.version
        rows = measure_player(browser, options.blocks, options.moves)
        if not options.no_lab:
            rows += measure_panel(browser, min(options.moves, 50))
        browser.close()
    print(
        f"Chromium {version}, {platform.machine()}, {platform.system()}; milliseconds from event.timeStamp to the task after the frame"
    )
    print(
        f"{'what':<34}{'how':<18}{'moves':>6}{'pictures':>9}{'P50':>8}{'P95':>8}{'max':>8}{'work P95':>10}{'work max':>10}"
    )
    for row in rows:
        print(
            f"{row['what']:<34}{row['how']:<18}{row['moves']:>6}{row['pictures']:>9}{row['p50_ms']:>8}{row['p95_ms']:>8}{row['max_ms']:>8}"
            f"{row['work_p95_ms'] if row['work_p95_ms'] is not None else '-':>10}{row['work_max_ms'] if row['work_max_ms'] is not None else '-':>10}"
        )
    print(json.dumps({"benchmark": "browser_latency", "chromium": version, "rows": rows}))


if __name__ == "__main__":
    main()
