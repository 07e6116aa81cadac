"""The player: a run over an address space that the reader scrubs, plays and zooms in the browser.

The run is sent once; after that no kernel is needed, so a player works in an exported page too. Papermill output, print and
readers without JavaScript get the static figure.

    player(run)                       # one run
    player([before, after])           # two on one clock
    player(run).save_html("run.html") # a page of its own
"""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.atomic_file import write_atomic
from labkit.errors import LabError
from labkit.viz.figure import WIDTH, byte_unit, margins, new_figure, png_bytes
from labkit.viz.memory_map import draw_layout_on, row_length
from labkit.viz.palette import EVENTS
from labkit.viz.player_builder import RunBuilder as RunBuilder
from labkit.viz.player_data import Run, pack

#: a run larger than this (compressed) is not written into a notebook a second time, as HTML
MAX_EMBEDDED_BYTES = 4 << 20

SCRIPT = files("labkit.viz").joinpath("static/player.js").read_text(encoding="utf-8")


def player(
    runs: Run | Sequence[Run], *, title: str = "", time: float | None = None, height: int = 420
) -> Player:
    """A player for one run or two. `time` is where it opens (the first out-of-memory, else the first event, else the end); `height` in pixels."""
    runs = [runs] if isinstance(runs, Run) else list(runs)
    if not 1 <= len(runs) <= 2:
        raise LabError(f"a player shows one run or two side by side, not {len(runs)}")
    return Player(runs, title=title, time=time, height=height)


class Player(anywidget.AnyWidget):
    """The widget behind `player`. `figure()` is the static picture of the same runs."""

    _esm = SCRIPT
    data = traitlets.Bytes(b"").tag(sync=True)
    first_step = traitlets.Int(0).tag(sync=True)

    def __init__(self, runs: Sequence[Run], *, title: str, time: float | None, height: int):
        clock = sorted({float(t) for run in runs for t in run.times})
        events = [event for run in runs for event in run.events]
        marked = [
            float(run.times[step])
            for run in runs
            for step, kind, _ in run.events
            if kind == "oom" or all(other != "oom" for _, other, _ in events)
        ]
        opens = time if time is not None else min(marked, default=clock[-1])
        super().__init__(
            data=pack(runs, title=title, height=height),
            first_step=max(0, sum(t <= opens for t in clock) - 1),
        )
        self.runs, self.opens, self.title = list(runs), opens, title

    def figure(self, time: float | None = None) -> Figure:
        """Map of each run at `time` (where the player opens), above its used and largest-free curves with the events."""
        return draw_runs(self.runs, self.opens if time is None else time, title=self.title)

    def fragment(self) -> str:
        """HTML that starts the player where it stands: no kernel, no network. For pages of your own."""
        return fragment(self.data, self.first_step, png_bytes(self.figure()))

    def to_html(self) -> str:
        """A complete page."""
        return page(self.fragment(), self.title or "Memory player")

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_html()` to `path` (to a temporary name first)."""
        return write_page(path, self.fragment(), title=self.title or "Memory player")

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widget for a live page; beside it HTML that runs by itself (exported pages) and a picture (print, other readers)."""
        shown = super()._repr_mimebundle_(**kwargs)
        data, metadata = shown if isinstance(shown, tuple) else (shown or {}, {})
        png = png_bytes(self.figure())
        data = {**data, "image/png": base64.b64encode(png).decode()}
        if len(self.data) <= MAX_EMBEDDED_BYTES:
            data["text/html"] = fragment(self.data, self.first_step, png)
        return data, metadata


def fragment(data: bytes, first_step: int, png: bytes) -> str:
    """HTML of one player, with the static picture inside `<noscript>`."""
    return (
        '<div class="labkit-player"></div>\n'
        f"<noscript>{embed_image(png, 'static picture of the run')}</noscript>\n"
        '<script type="module">\n'
        f"{SCRIPT.replace('export default { render };', '')}\n"
        f'const packed = Uint8Array.from(atob("{base64.b64encode(data).decode()}"), (c) => c.charCodeAt(0));\n'
        f"const state = {{ data: new DataView(packed.buffer), first_step: {int(first_step)} }};\n"
        "const place = [...document.querySelectorAll('.labkit-player')].find((node) => !node.dataset.taken);\n"
        "place.dataset.taken = 'true';\n"
        "render({ model: { get: (name) => state[name] }, el: place });\n"
        "</script>\n"
    )


def embed_image(png: bytes, text: str) -> str:
    """An `<img>` that carries its picture."""
    return f'<img alt="{html.escape(text)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def page(body: str, title: str) -> str:
    """A complete HTML page around `body`."""
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<body style="margin:12px">\n{body}</body></html>\n'
    )


def write_page(path: str | os.PathLike[str], body: str, *, title: str) -> Path:
    """Write a page to `path`, whole or not at all. Raises `LabError` where no file can be written."""
    try:
        return write_atomic(path, page(body, title))
    except OSError as error:
        raise LabError(f"{path}: cannot be written ({error.strerror}); give the path of a file") from None


def draw_runs(runs: Sequence[Run], time: float, *, title: str = "", figure: Figure | None = None) -> Figure:
    """The static picture of `runs` at `time`, one below the other."""
    figure = new_figure(WIDTH, 0.3 + 3.2 * len(runs), figure)
    margins(figure, left=0.85, right=1.9, top=0.55, bottom=0.5)
    grid = figure.subplots(2 * len(runs), 1, gridspec_kw={"hspace": 0.75}, squeeze=False)[:, 0]
    for index, run in enumerate(runs):
        step, upper, lower = run.step_at(time), grid[2 * index], grid[2 * index + 1]
        rows = min(12, max(1, run.peak_records // 60))
        spans = run.layout(step)
        draw_layout_on(
            upper, spans, total=run.total, unit=run.unit,
            row_size=row_length(-(-run.total // rows), run.unit, run.total),
            background=run.background,
        )  # fmt: skip
        when = (
            f"step {run.times[step]:g}"
            if run.time_unit == "step"
            else f"{run.times[step]:.4g} {run.time_unit}"
        )
        upper.set_title(f"{run.title or 'run'} at {when}", fontsize=9, loc="left")
        upper.legend(
            handles=[
                Patch(facecolor=color, edgecolor="#555555", linewidth=0.5, label=text)
                for text, color in run.legend()
            ],
            loc="upper left", bbox_to_anchor=(1.005, 1.08), fontsize=8, frameon=False, handlelength=1.2,
        )  # fmt: skip
        _curves(lower, run, time)
    figure.suptitle(title, fontsize=10, x=0.02, y=0.995, ha="left", va="top")
    return figure


def _curves(axes: Any, run: Run, time: float) -> None:
    scale, name = byte_unit(run.total) if run.unit == "bytes" else (1.0, run.unit)
    axes.fill_between(run.times, run.used / scale, step="post", color="#9ECAE1", label="used", linewidth=0)
    axes.step(
        run.times,
        run.largest_free / scale,
        where="post",
        color="black",
        linestyle="--",
        linewidth=1.0,
        label="largest free",
    )
    axes.axvline(time, color="black", linewidth=1.2)
    for kind in dict.fromkeys(kind for _, kind, _ in run.events):
        color, marker = EVENTS.get(kind, EVENTS["other"])
        at = [run.times[step] for step, other, _ in run.events if other == kind]
        axes.plot(
            at,
            [0.9] * len(at),
            marker,
            color=color,
            markersize=5,
            transform=axes.get_xaxis_transform(),
            label=f"{kind}: {len(at)}",
            clip_on=False,
        )
    axes.set_ylim(0, run.total / scale)
    axes.margins(x=0.01)
    axes.set_ylabel(name, fontsize=9)
    axes.set_xlabel("time (steps)" if run.time_unit == "step" else f"time ({run.time_unit})", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.05), fontsize=8, frameon=False, handlelength=1.2)
