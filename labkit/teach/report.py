"""The claims table and the HTML of executed notebooks."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.teach.claims import CLAIM_MIME, RSS_MIME, Verdict, verdict_html
from labkit.teach.runner import NotebookRun, _nbformat

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


def write_atomic(path: Path, text: str) -> None:
    """Write to a temporary name, then rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def write_claims(verdicts: Sequence[Verdict], build: Path) -> None:
    """`claims.json` (all fields) and `claims.html` (the table) under `build`."""
    ordered = sorted(verdicts, key=lambda v: [int(part) for part in v.id.split(".")])
    write_atomic(
        build / "claims.json", json.dumps([asdict(v) for v in ordered], indent=1, ensure_ascii=False) + "\n"
    )
    boxes = "\n".join(verdict_html(v) for v in ordered)
    count = sum(v.held for v in ordered)
    write_atomic(
        build / "claims.html",
        f"<!doctype html><meta charset=utf-8><title>Claims</title><body style='font-family:sans-serif;max-width:60em;margin:2em auto'>"
        f"<h1>{count} of {len(ordered)} claims held on this run</h1>\n{boxes}\n",
    )


def write_html(run: NotebookRun, target: Path) -> None:
    """The executed notebook as one HTML file that needs no kernel and no network.

    Widget views need scripts from a network, so they are dropped from the copy: what a widget shows is always beside
    it as a figure or as self-contained HTML.
    """
    nbformat = _nbformat()
    from nbconvert import HTMLExporter

    notebook = nbformat.read(run.output, as_version=4)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [kept for kept in map(_without_widget, cell.outputs) if kept is not None]
    body, _ = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True).from_notebook_node(
        notebook, {"metadata": {"name": run.notebook}}
    )
    write_atomic(target, body)


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
