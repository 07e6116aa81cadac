"""`labkit verify RECORDING…`: replay recordings of the real systems and compare every recorded field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from labkit.errors import LabError


def run(
    recordings: Annotated[
        list[Path], typer.Argument(help="Recordings, .json or .json.gz.", show_default=False)
    ],
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Replay allocator recordings on this machine's own PyTorch and CUDA device."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """Replay recordings of the real systems and compare every recorded field; exit code 1 when anything differs."""
    from labkit.experiments.verify import verify_file, verify_live

    verdicts, failures = [], []
    for path in recordings:
        try:
            verdicts.append(verify_live(path) if live else verify_file(path))
        except LabError as error:
            failures.append(error)
            continue
        if not as_json:
            typer.echo(str(verdicts[-1]))
    if as_json:
        typer.echo(json.dumps([verdict.as_json() for verdict in verdicts], indent=2))
    if failures:
        for failure in failures[:-1]:
            typer.echo(f"labkit: {failure}", err=True)
        raise failures[-1]
    if any(verdict.comparison.num_differences for verdict in verdicts):
        raise typer.Exit(1)
