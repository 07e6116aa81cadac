"""`labkit leaderboard`: an allocator, a scheduling policy or an eviction policy of your own against what is built in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def run(
    board: Annotated[str, typer.Argument(help="allocator, scheduler or eviction")],
    entry: Annotated[str | None, typer.Argument(help="FILE.py:Class, run in a limited child")] = None,
    num_requests: Annotated[int | None, typer.Option("--num-requests", "-n", help="of each load")] = None,
    seed: Annotated[int, typer.Option(help="for the synthetic parts of the loads")] = 0,
    figure: Annotated[Path | None, typer.Option(help="write the picture to this .png")] = None,
    loads: Annotated[bool, typer.Option("--loads", help="a table for each load too, not only means")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Scores on three traces. Exit 1 when the entry breaks or cheats (which is named)."""
    from labkit.teach.leaderboard import run_board

    result = run_board(board, entry, num_requests=num_requests, seed=seed)
    typer.echo(json.dumps(result.as_dict(), indent=1) if as_json else result.text(loads))
    if figure is not None:
        from labkit.atomic_file import atomic_path

        with atomic_path(figure) as temporary:
            result.figure().savefig(temporary, dpi=130, format="png")
    if result.entry is not None and result.entry.problem:
        raise typer.Exit(1)
