"""The five groups of metrics of one recorded run on one panel, under one clock.

    dashboard(recorder)                                  # in a notebook: the picture with a clock
    dashboard(recorder, player_run=run)                  # and a player below it, on the same clock
    dashboard(recorder).figure()                         # the picture for papermill, HTML and print

Left of each row what it does over time, right of it the metrics of the group for the whole run, by exactly their names. After
it is sent, no kernel is needed: the clock works in an exported page too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.errors import LabError
from labkit.memory.base import AllocatorStats, Span
from labkit.observe.measure import measure
from labkit.observe.metrics import Metric
from labkit.observe.recorder import RunRecorder
from labkit.units import format_bytes
from labkit.viz.figure import WIDTH, byte_unit, margins, new_figure, png_bytes
from labkit.viz.palette import CACHED, FREE, color_of
from labkit.viz.player import MAX_EMBEDDED_BYTES, SCRIPT, embed_image, write_page
from labkit.viz.player_data import Run, pack
from labkit.viz.timeline import CURVES, Event

GROUPS = ("capacity", "fragmentation", "lifetime", "scheduling", "user")
#: points of a curve, and inches: row, and margins of the picture
NUM_POINTS, ROW_HEIGHT, LEFT, RIGHT = 240, 1.3, 0.75, 3.2
DASHBOARD_SCRIPT = SCRIPT.replace("export default { render };", "") + files("labkit.viz").joinpath(
    "static/dashboard.js"
).read_text(encoding="utf-8")

#: one curve: label, values [num_points], colour, dashed
Curve = tuple[str, np.ndarray, str, bool]


def dashboard(
    recorder: RunRecorder,
    *,
    title: str = "",
    player_run: Run | None = None,
    events: Sequence[Event] = (),
    time: float | None = None,
    block_bytes: int | None = None,
    max_num_seqs: int | None = None,
    capacity: Mapping[str, int] | None = None,
    allocator: AllocatorStats | None = None,
    layout: list[Span] | None = None,
    restart_s: float | None = None,
) -> Dashboard:
    """The panel of a run that was recorded at level full; `time` is where its clock opens (the end by default). What
    `measure` cannot know from the recorder alone is given as there. Raises `LabError` at level summary."""
    if recorder.series is None or not recorder.series.rows:
        raise LabError("a dashboard needs the series of a run; record it at level full")
    metrics = measure(
        recorder,
        block_bytes=block_bytes,
        max_num_seqs=max_num_seqs,
        capacity=capacity,
        allocator=allocator,
        layout=layout,
        restart_s=restart_s,
    )
    return Dashboard(recorder, metrics, title, list(events), time, player_run)


class Dashboard(anywidget.AnyWidget):
    """The widget behind `dashboard`. `metrics` is what `measure` found, `curves` what the rows draw."""

    _esm = DASHBOARD_SCRIPT
    data = traitlets.Bytes(b"").tag(sync=True)
    first_step = traitlets.Int(0).tag(sync=True)
    info = traitlets.Unicode("").tag(sync=True)
    picture = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        recorder: RunRecorder,
        metrics: dict[Metric, Any],
        title: str,
        events: list[Event],
        time: float | None,
        run: Run | None,
    ):
        self.metrics, self.title, self.events, self.run = metrics, title, events, run
        self.times, self.curves = _curves(recorder)
        self.opens = float(self.times[-1]) if time is None else float(time)
        png = png_bytes(self.figure(cursor=False))
        super().__init__(
            data=b"" if run is None else pack([run], title="", height=300),
            first_step=0 if run is None else run.step_at(self.opens),
            info=json.dumps(self._info()),
            picture="data:image/png;base64," + base64.b64encode(png).decode(),
        )

    def figure(
        self, time: float | None = None, *, cursor: bool = True, figure: Figure | None = None
    ) -> Figure:
        """Five rows, one a group. A line marks `time` (where the clock opens) unless `cursor` is off."""
        figure = new_figure(WIDTH, 0.85 + len(GROUPS) * ROW_HEIGHT, figure)
        margins(figure, left=LEFT, right=RIGHT, top=0.4, bottom=0.45)
        figure.subplots_adjust(hspace=0.2)
        grid = figure.subplots(len(GROUPS), 1, sharex=True)
        for axes, group in zip(grid, GROUPS):
            self._row(axes, group)
            if cursor:
                axes.axvline(self.opens if time is None else time, color="black", linewidth=1.2)
            for event in self.events:
                axes.axvline(event.time, color="#555555", linewidth=0.9, linestyle=":")
        for event in self.events:
            _above(grid[0], event.time, event.text or event.kind, "left")
        if cursor:
            _above(grid[0], self.opens if time is None else time, "clock", "right")
        grid[-1].set_xlabel("time (s)", fontsize=9)
        grid[-1].set_xlim(float(self.times[0]), float(self.times[-1]))
        figure.suptitle(self.title, fontsize=10, x=0.02, y=0.995, ha="left", va="top")
        return figure

    def _row(self, axes: Axes, group: str) -> None:
        unit, curves = self.curves[group]
        if group == "capacity" and curves:
            shown = [c for c in curves if not c[3]]
            axes.stackplot(
                self.times, [c[1] for c in shown], colors=[c[2] for c in shown], labels=[c[0] for c in shown],
                step="post", linewidth=0,
            )  # fmt: skip
            curves = [c for c in curves if c[3]]
        for label, values, color, dashed in curves:
            axes.plot(
                self.times,
                values,
                color=color,
                label=label,
                linewidth=1.2,
                linestyle="--" if dashed else "-",
            )
        axes.set_ylim(0, 1.28 * max(axes.get_ylim()[1], 1e-9))  # room for the legend
        axes.set_ylabel(unit, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(True, color="#E8E8E8", linewidth=0.5)
        axes.set_axisbelow(True)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(
                fontsize=7.5, loc="upper left", framealpha=0.75, ncols=3, handlelength=1.2, borderpad=0.2
            )
        lines = [
            f"{metric.info.name}: {_say(metric, value)}"
            for metric, value in self.metrics.items()
            if metric.info.group == group
        ]
        axes.text(1.02, 1.02, group, transform=axes.transAxes, fontsize=8.5, fontweight="bold", va="top")
        axes.text(
            1.02, 0.88, "\n".join(lines), transform=axes.transAxes, fontsize=7.5, va="top", linespacing=1.2
        )

    def _info(self) -> dict[str, Any]:
        every = max(1, len(self.times) // NUM_POINTS)
        readouts = [
            (f"{label} ({unit})", [_short(v) for v in values[::every]])
            for unit, curves in self.curves.values()
            for label, values, _, _ in curves
        ]
        return {
            "times": [float(t) for t in self.times[::every]],
            "readouts": readouts,
            "left": LEFT / WIDTH,
            "right": 1 - RIGHT / WIDTH,
            "start": float(self.times[0]),
            "end": float(self.times[-1]),
            "opens": self.opens,
        }

    def fragment(self) -> str:
        """HTML that starts the panel where it stands: no kernel, no network."""
        data = base64.b64encode(self.data).decode()
        return (
            '<div class="labkit-dashboard"></div>\n'
            f"<noscript>{embed_image(png_bytes(self.figure()), 'static picture of the dashboard')}</noscript>\n"
            f'<script type="module">\n{DASHBOARD_SCRIPT.replace("export default { render: renderDashboard };", "")}\n'
            f'const packed = Uint8Array.from(atob("{data}"), (c) => c.charCodeAt(0));\n'
            f"const state = {{ data: new DataView(packed.buffer), first_step: {int(self.first_step)}, "
            f"info: {json.dumps(self.info).replace('</', '<' + chr(92) + '/')}, picture: {json.dumps(self.picture)} }};\n"
            "const place = [...document.querySelectorAll('.labkit-dashboard')].find((node) => !node.dataset.taken);\n"
            "place.dataset.taken = 'true';\n"
            "renderDashboard({ model: { get: (name) => state[name] }, el: place });\n"
            "</script>\n"
        )

    def save_html(self, path: str | Path) -> Path:
        """A page of its own, written under a temporary name first."""
        return write_page(path, self.fragment(), title=self.title or "Dashboard")

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widget; beside it HTML that runs by itself, and a picture."""
        shown = super()._repr_mimebundle_(**kwargs)
        data, metadata = shown if isinstance(shown, tuple) else (shown or {}, {})
        data = {**data, "image/png": base64.b64encode(png_bytes(self.figure())).decode()}
        if len(self.data) <= MAX_EMBEDDED_BYTES:
            data["text/html"] = self.fragment()
        return data, metadata


def _above(axes: Axes, time: float, text: str, side: str) -> None:
    """Name a vertical line above the frame, where no curve runs; `side` is the edge of the text that stands at the line."""
    axes.annotate(
        text, (time, 1.0), xycoords=("data", "axes fraction"), fontsize=8, ha=side,
        xytext=(1 if side == "left" else -1, 3), textcoords="offset points",
    )  # fmt: skip


# --- curves --------------------------------------------------------------------------------------------------------------


def _curves(recorder: RunRecorder) -> tuple[np.ndarray, dict[str, tuple[str, list[Curve]]]]:
    """Times `[num_points]` in seconds, and by group the unit and the curves. The series is looked at at equal distances;
    latencies are taken over the requests of the eighth of the run that ends there."""
    assert recorder.series is not None
    series = recorder.series
    ends = np.asarray(series.column("end_s"), dtype=float)
    times = np.linspace(ends[0], ends[-1], NUM_POINTS) if len(ends) > 1 else ends
    at = np.clip(np.searchsorted(ends, times, side="right") - 1, 0, len(ends) - 1)

    def column(name: str) -> np.ndarray:
        return np.array([np.nan if v is None else v for v in series.column(name)], dtype=float)[at]

    live, cached, free = (column(f"kv_{n}_bytes") for n in ("live", "cached", "free"))
    reserved, allocated = (column(f"device_{n}_bytes") for n in ("reserved", "allocated"))
    token, largest = column("kv_token_bytes"), column("kv_largest_free_bytes")
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = np.where(free > 0, 100 * (1 - largest / free), 0.0)
        waste = np.where(live > 0, 100 * (1 - token / live), 0.0)
    known = [v for v in (live + cached + free, reserved) if np.isfinite(v).any()]
    scale, unit = byte_unit(max((float(np.nanmax(v)) for v in known), default=1.0))
    capacity: list[Curve] = []
    if np.isfinite(live).any():
        capacity = [
            ("KV live", live / scale, color_of("request"), False),
            ("KV cached", cached / scale, CACHED, False),
            ("KV free", free / scale, FREE, False),
        ]
    if np.isfinite(reserved).any():
        capacity.append(("device reserved", reserved / scale, CURVES[6], True))
        capacity.append(("device allocated", allocated / scale, CURVES[1], True))
    fragmentation = [
        ("free outside the largest run", lost, CURVES[1], False),
        ("waste inside blocks", waste, CURVES[0], False),
    ]
    done = [r for r in recorder.requests.values() if r.finish_s is not None and r.admission_s is not None]
    lives = [(r.finish_s or 0.0, (r.finish_s or 0.0) - (r.admission_s or 0.0)) for r in done]
    first = [(r.first_token_s, r.ttft_s) for r in recorder.requests.values() if r.first_token_s is not None]
    window = (times[-1] - times[0]) / 8
    return times, {
        "capacity": (unit, capacity),
        "fragmentation": ("%", fragmentation if np.isfinite(lost).any() else []),
        "lifetime": (
            "s",
            [
                ("request lifetime, mean", _over(lives, times, window, None), CURVES[2], False),
                ("P95", _over(lives, times, window, 0.95), CURVES[2], True),
            ],
        ),
        "scheduling": (
            "requests",
            [
                ("active sequences", column("num_running"), CURVES[0], False),
                ("waiting", column("num_waiting"), CURVES[1], False),
            ],
        ),
        "user": (
            "s",
            [
                ("TTFT P50", _over(first, times, window, 0.5), CURVES[5], False),
                ("TTFT P95", _over(first, times, window, 0.95), CURVES[3], False),
            ],
        ),
    }


def _over(
    points: Sequence[tuple[Any, Any]], times: np.ndarray, window_s: float, q: float | None
) -> np.ndarray:
    """Mean (`q` None) or quantile of the values whose instant lies in the `window_s` before each time; NaN where none does."""
    ordered = sorted(points)
    instants = np.array([p[0] for p in ordered], dtype=float)
    values = np.array([p[1] for p in ordered], dtype=float)
    result = np.full(len(times), np.nan)
    for i, time in enumerate(times):
        part = values[
            np.searchsorted(instants, time - window_s, side="right") : np.searchsorted(instants, time, side="right")
        ]  # fmt: skip
        if len(part):
            result[i] = part.mean() if q is None else np.quantile(part, q)
    return result


# --- numbers as text -----------------------------------------------------------------------------------------------------


def _say(metric: Metric, value: Any) -> str:
    unit = metric.info.unit
    if value is None:
        return "-"
    if isinstance(value, dict):
        if "p95" in value:
            shown = "/".join(_short(value[p]) for p in ("p50", "p95", "p99"))
            return f"{shown} s" if metric is Metric.LATENCY else f"{shown} s (P50/P95/P99)"
        if "ratio" in value:
            return f"{_short(value['before'])} and {_short(value['after'])} s"
        if metric is Metric.REFERENCE_COUNTS:
            return ", ".join(f"{c}: {100 * s:.0f} %" for c, s in list(value.items())[:4])
        return f"{len(value)} classes, largest {format_bytes(max(value, default=0))}"
    if unit == "bytes":
        return format_bytes(int(value))
    if unit == "share":
        return f"{100 * value:.1f} %"
    return f"{_short(value)} {unit if unit in ('s', 'tokens/s', 'blocks') else ''}".strip()


def _short(value: Any) -> str:
    if value is None or not np.isfinite(value):
        return "-"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
