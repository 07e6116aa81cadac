"""The claims table and the HTML of executed notebooks."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.atomic_file import write_atomic
from labkit.teach.claims import CLAIM_MIME, RSS_MIME, Verdict, verdict_html
from labkit.teach.pages import notebook_body, page
from labkit.teach.runner import NotebookRun, _nbformat

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


def write_claims(verdicts: Sequence[Verdict], build: Path) -> None:
    """`claims.json` (all fields) and `claims.html` (the table) under `build`."""
    ordered = sorted(verdicts, key=lambda v: [int(part) for part in v.id.split(".")])
    text = json.dumps([asdict(v) for v in ordered], indent=1, ensure_ascii=False) + "\n"
    write_atomic(build / "claims.json", text, parents=True)
    write_atomic(build / "claims.html", page("Claims", claims_body(ordered)), parents=True)


def claims_body(verdicts: Sequence[Verdict], *, link: Callable[[Verdict], str] = lambda verdict: "") -> str:
    """The claims as boxes under a search field; `link(verdict)` is where a claim's notebook is, or empty."""
    held = sum(v.held for v in verdicts)
    boxes = []
    for verdict in verdicts:
        target = link(verdict)
        more = (
            f'<a href="{target}">notebook {verdict.notebook}</a>'
            if target
            else f"notebook {verdict.notebook}"
        )
        words = html.escape(f"{verdict.id} {verdict.statement} {verdict.verdict}".lower(), quote=True)
        boxes.append(
            f'<div class="claim" data-words="{words}">{verdict_html(verdict)}<small>{more}</small></div>'
        )
    return (
        f"<h1>{held} of {len(verdicts)} claims held on this run</h1>"
        '<p><input type="search" id="q" placeholder="search by id or word, e.g. 5.2 or restart" autofocus></p>'
        + "\n".join(boxes)
        + f"<script>{_SEARCH}</script>"
    )


_SEARCH = """
const field = document.getElementById("q");
const show = () => { const words = field.value.toLowerCase().split(/\\s+/).filter(Boolean);
  document.querySelectorAll(".claim").forEach((box) => { box.hidden = !words.every((w) => box.dataset.words.includes(w)); }); };
field.addEventListener("input", show);
if (location.hash.length > 1) { field.value = decodeURIComponent(location.hash.slice(1)); show(); }
"""


def write_html(run: NotebookRun, target: Path, *, links: Sequence[tuple[str, str]] = ()) -> None:
    """The executed notebook as one HTML file that needs no kernel and no network; `links` is its navigation."""
    title = run.notebook.replace("_", " ")
    write_atomic(
        target, page(title, notebook_body(readable(run.output)), links=links, here=target.name), parents=True
    )


def readable(path: Path) -> Any:
    """An executed notebook without what needs a live page.

    Widget views need scripts from a network, so they are dropped: what a widget shows is always beside it as a figure, or
    as HTML that stands on its own (the player).
    """
    notebook = _nbformat().read(path, as_version=4)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [kept for kept in map(_without_widget, cell.outputs) if kept is not None]
    return notebook


def _without_widget(output: Any) -> Any:
    """The output without what only a live page or the runner understands; None when nothing readable is left."""
    data = output.get("data")
    if data is None or not set(data) & {WIDGET_MIME, CLAIM_MIME, RSS_MIME}:
        return output
    for mime in (WIDGET_MIME, CLAIM_MIME, RSS_MIME):
        data.pop(mime, None)
    return output if set(data) - {"text/plain"} else None


def claims_table(runs: Sequence[NotebookRun]) -> str:
    """One line a claim and one a notebook, as text."""
    lines = []
    for run in runs:
        state = "ran" if not run.error else f"FAILED: {run.error}"
        memory = f", peak {run.peak_rss_mib:.0f} MiB" if run.peak_rss_mib else ""
        lines.append(f"{run.notebook}: {state} in {run.duration_s:.1f} s{memory}")
        for verdict in run.verdicts:
            extra = f" [{verdict.reason}]" if verdict.reason else ""
            flag = "  CONTROL HOLDS TOO" if verdict.control else ""
            lines.append(
                f"  {verdict.id:>5}  {verdict.verdict:<17} {html.unescape(verdict.statement)}{extra}{flag}"
            )
    return "\n".join(lines)
