"""How fast pictures answer, in a real browser with a real mouse and keyboard.

    python benchmarks/browser_latency.py [--moves 100] [--blocks 100000] [--notebooks 00 08 | --notebooks none] [--json]

Player: a pool of 100,000 blocks, the exported page without a kernel. A move is one mouse move of a drag, or one key. Its latency
runs from the event's own `timeStamp` to the first task after the next animation frame, so the screen refresh is inside. `work` is the
page's own time in its handler and its drawing. Panel: a control in JupyterLab that re-runs an experiment in the kernel
and redraws a figure; from the event to the first task after the frame in which the new picture was loaded. Measured on a
panel of 2,000 allocator operations, and on every panel of every notebook after all its cells ran: each slider by keys over
its whole range, the first also by the mouse, each list and each checkbox through all its values.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from lab_browser import CHROMIUM_FLAGS, find_chromium  # noqa: E402
from panel_latency import NOTEBOOKS, measure_panels  # noqa: E402

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


def summary(row: dict) -> dict:
    """A row of `measure_panels` with its latencies summed up."""
    return {
        **{key: value for key, value in row.items() if key != "latency"},
        "pictures": len(row["latency"]),
        **figures(row["latency"], []),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--moves", type=int, default=100, help="moves of the player; a panel's control gets a fifth of them"
    )
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--no-lab", action="store_true", help="only the player's page")
    every = [path.stem[:2] for path in NOTEBOOKS]
    parser.add_argument(
        "--notebooks",
        nargs="*",
        default=every,
        metavar="NN",
        help="whose panels to measure (default: all; none: only the small one)",
    )
    options = parser.parse_args()
    unknown = sorted(set(options.notebooks) - set(every) - {"none"})
    if unknown:
        parser.error(f"no notebook {unknown[0]}; there are {' '.join(every)}, or none")
    if find_chromium() is None:
        raise SystemExit("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    rows, panels = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        version = browser.version
        print(
            f"Chromium {version}, {platform.machine()}, {platform.system()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f};"
        )
        print("milliseconds from event.timeStamp to the task after the frame")
        print(HEAD)
        for row in measure_player(browser, options.blocks, options.moves):
            rows.append(row)
            print_row(row)
        if not options.no_lab:
            for panel in measure_panels(browser, options.notebooks, max(5, options.moves // 5)):
                panels.append(panel)
                rows.append(summary(panel))
                print_row(rows[-1])
        browser.close()
    if panels:
        for title, chosen in (("all panels, by mouse", "drag"), ("all panels, all controls", "")):
            latency = [value for panel in panels if chosen in panel["how"] for value in panel["latency"]]
            rows.append({"what": title, "how": "", "pictures": len(latency), **figures(latency, [])})
            print_row(rows[-1])
    print(
        json.dumps(
            {
                "benchmark": "browser_latency",
                "chromium": version,
                "load": round(os.getloadavg()[0], 1),
                "rows": rows,
            }
        )
    )


HEAD = f"{'what':<36}{'how':<18}{'moves':>6}{'pictures':>9}{'P50':>8}{'P95':>8}{'max':>8}{'work P95':>10}{'work max':>10}"


def print_row(row: dict) -> None:
    print(
        f"{row['what']:<36}{row['how']:<18}{row['moves']:>6}{row['pictures']:>9}"
        + "".join(f"{'-' if row[key] is None else row[key]:>8}" for key in ("p50_ms", "p95_ms", "max_ms"))
        + "".join(f"{'-' if row[key] is None else row[key]:>10}" for key in ("work_p95_ms", "work_max_ms")),
        flush=True,
    )


if __name__ == "__main__":
    main()
