"""`labkit verify RECORDING…`: replay recordings of the real systems and compare every recorded field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from labkit.errors import LabError


def run(
    recordings: Annotated[
        list[Path],
        typer.Argument(help="Recordings (.json, .json.gz), or folders of them.", show_default=False),
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
    for path in in_folders(recordings):
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


def in_folders(paths: list[Path]) -> list[Path]:
    """Folders are replaced by the recordings below them, in order. Raises `LabError` for a folder that has none."""
    found: list[Path] = []
    for path in paths:
        inside = (
            sorted(p for p in path.rglob("*") if p.name.endswith((".json", ".json.gz")))
            if path.is_dir()
            else [path]
        )
        if not inside:
            raise LabError(f"{path}: no recording below this folder; they end in .json or .json.gz")
        found += inside
    return found
