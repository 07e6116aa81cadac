"""`labkit traces`: which public traces the lab knows, and getting them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Public traces: list them, fetch them with a checksum.")


@app.command("list")
def list_traces(as_json: Annotated[bool, typer.Option("--json", help="one JSON list")] = False) -> None:
    """Names, sizes, licences, and where a copy lies on this machine."""
    from labkit.workload.traces import TRACES, find_trace

    rows = []
    for trace in TRACES.values():
        found = find_trace(trace.name)
        rows.append(
            {
                "name": trace.name,
                "file": trace.file_name,
                "bytes": trace.num_bytes,
                "licence": trace.licence,
                "what": trace.what,
                "url": trace.url,
                "path": None if found is None else str(found),
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        where = row["path"] or (
            "not here; labkit traces fetch " + str(row["name"]) if row["url"] else "not here"
        )
        typer.echo(
            f"{row['name']:<30}{row['bytes']:>11,} B  {row['licence']:<12}{row['what']}\n{'':<4}{where}"
        )


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="a name from labkit traces list")],
    to: Annotated[Path | None, typer.Option(help="folder; default: the cache where notebooks look")] = None,
    url: Annotated[str | None, typer.Option(help="another address of the same file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Download a trace from its public address, check it, and put it where the lab finds it."""
    from labkit.workload import fetch as fetching

    trace = fetching.known_trace(name)
    path = fetching.fetch(trace, to, url=url)
    data = {
        "name": name,
        "path": str(path),
        "bytes": path.stat().st_size,
        "sha256": trace.sha256,
        "licence": trace.licence,
    }
    typer.echo(
        json.dumps(data) if as_json else f"{path}  ({data['bytes']:,} bytes, checksum good, {trace.licence})"
    )
