"""A soak run on one page: verdict, curves with the restart, before against after, and every test."""

from __future__ import annotations

import html
from pathlib import Path

from matplotlib.figure import Figure

from labkit.experiments.soak_result import SoakResult
from labkit.units import format_bytes
from labkit.viz.figure import png_bytes
from labkit.viz.palette import CACHED, color_of
from labkit.viz.player import embed_image, write_page
from labkit.viz.timeline import Event, Series, draw_timeline

#: name of a figure in the "before and after" table -> (words, is it bytes, scale, unit)
ROWS = {
    "ttft_p50_s": ("TTFT P50", 1000, "ms"),
    "ttft_p95_s": ("TTFT P95", 1000, "ms"),
    "itl_p95_s": ("time between tokens P95", 1000, "ms"),
    "e2e_p95_s": ("whole request P95", 1, "s"),
    "live_bytes": ("live after drain", 0, ""),
    "cached_bytes": ("cached after drain", 0, ""),
    "free_bytes": ("free after drain", 0, ""),
    "fragmentation": ("free outside the largest span", 100, "%"),
    "reserved_bytes": ("reserved after drain (pool and workspace)", 0, ""),
}


def draw_soak(result: SoakResult, *, figure: Figure | None = None) -> Figure:
    """Memory after each drain, fragmentation, and TTFT, over the hours."""
    rows = result.windows
    hours = [w.end_h for w in rows]
    events = [] if result.restart_h is None else [Event(result.restart_h, "restart")]
    return draw_timeline(
        [
            Series("live", hours, [w.live_bytes for w in rows], color=color_of("session"), step=False),
            Series("cached", hours, [w.cached_bytes for w in rows], color=CACHED, step=False),
            Series("free", hours, [w.free_bytes for w in rows], color="#8A8A8A", step=False, dashed=True),
            Series("free, not in one span", hours, [100 * w.fragmentation for w in rows], unit="% of what is free", step=False),
            Series("TTFT P95", hours, [w.ttft_p95_s for w in rows], unit="TTFT (s)", step=False),
            Series("TTFT P50", hours, [w.ttft_p50_s for w in rows], unit="TTFT (s)", step=False, color="#56B4E9"),
        ],
        events=events,
        title=f"{result.options.policy}, {result.rate:.2f} requests/s: {result.verdict}",
        xlabel="time (h); memory in the drained server at the end of each window",
        figure=figure,
    )  # fmt: skip


def save_soak_report(result: SoakResult, path: str | Path) -> Path:
    """Write the page, first under a temporary name."""
    return write_page(path, soak_page(result), title=f"Soak: {result.verdict}")


def soak_page(result: SoakResult) -> str:
    """The page's body: no scripts, nothing from the network."""
    options = result.options
    measured = (
        f"{100 * options.share:.0f} % of the measured saturation of {result.saturation:.2f} requests/s"
        if options.rate is None
        else "given"
    )
    facts = (
        f"{result.num_requests:,} requests in {options.hours:g} simulated hours on policy {options.policy}, rate "
        f"{result.rate:.2f} requests/s ({measured}), pool of {options.capacity_tokens:,} tokens, fault: "
        f"{options.fault or 'none'}, seed {options.seed}. {result.origin}"
    )
    return "\n".join(
        [
            STYLE,
            f"<h1>Soak: {html.escape(result.verdict)}</h1>",
            f"<p><b>{html.escape(result.sentence)}</b></p><p>{html.escape(facts)}</p>",
            embed_image(png_bytes(draw_soak(result)), "memory, fragmentation and latency over the run"),
            _before_and_after(result),
            _tests(result),
            "<p>A figure has aged when it rose by its threshold and either still grows (Mann-Kendall, p below 0.01) or has "
            "settled there (every window of the second half above half the threshold); fewer than six windows prove nothing.</p>",
        ]
    )


STYLE = (
    "<style>body{font:15px/1.45 system-ui,sans-serif;max-width:960px;margin:24px auto;padding:0 12px}"
    "table{border-collapse:collapse;margin:12px 0}td,th{padding:3px 10px;border-bottom:1px solid #ddd;text-align:right}"
    "td{white-space:nowrap}td:first-child,th:first-child,td:nth-child(10),th:nth-child(10){text-align:left;white-space:normal}.aged{background:#FBE3D6}img{max-width:100%}</style>"
)


def _before_and_after(result: SoakResult) -> str:
    pairs = result.before_and_after()
    if not pairs:
        return "<p>No restart in this run.</p>"
    rows = []
    for name, (before, after) in pairs.items():
        words, scale, unit = ROWS[name]
        shown = [f"{v * scale:,.1f} {unit}" if scale else format_bytes(int(v)) for v in (before, after)]
        rows.append(f"<tr><td>{words}</td><td>{shown[0]}</td><td>{shown[1]}</td></tr>")
    return (
        "<h2>Before and after the restart</h2><table><tr><th></th><th>before</th><th>after</th></tr>"
        + "".join(rows)
        + "</table><p>Latencies are medians over the last quarter before and the first quarter after; memory is that of the "
        "drained server, and of the new one before its first request.</p>"
    )


def _tests(result: SoakResult) -> str:
    rows = []
    for t in result.trends:
        rows.append(
            f'<tr class="{"aged" if t.aged else ""}"><td>{html.escape(t.name)}</td><td>{t.life + 1}</td><td>{t.num_windows}</td>'
            f"<td>{t.fresh:.3f}</td><td>{t.last:.3f}</td><td>{t.threshold:.3f}</td><td>{t.slope:+.4f}</td><td>{t.p:.2g}</td>"
            f"<td>{'aged' if t.aged else 'no'}</td><td>{html.escape(t.unit)}</td></tr>"
        )
    return (
        "<h2>Slope tests</h2><table><tr><th>figure</th><th>life</th><th>windows</th><th>fresh</th><th>last quarter</th>"
        "<th>threshold</th><th>slope an hour</th><th>p</th><th>aged</th><th>unit</th></tr>"
        + "".join(rows)
        + "</table>"
    )
