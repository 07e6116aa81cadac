"""`labkit doctor`: evidence in, diagnosis out."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Diagnose from evidence: an out-of-memory message.")


@app.callback()
def _doctor() -> None:
    """Diagnose from evidence."""


@app.command()
def oom(
    message: Annotated[str, typer.Argument(help='The message, or "-" to read a log from standard input.')],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say which kind of out of memory PyTorch reported: full, fragmented, another process, more than the card, private pools."""
    from labkit.doctor.oom import explain_oom
    from labkit.units import format_bytes

    verdict = explain_oom(sys.stdin.read() if message == "-" else message)
    if as_json:
        print(json.dumps(verdict.as_dict()))
        return
    print(f"{verdict.kind.replace('_', ' ')}: {verdict.sentence}")
    for line in verdict.advice:
        print(f"  do: {line}")
    for line in verdict.notes:
        print(f"  note: {line}")
    if verdict.borderline:
        print("  note: the printed numbers are rounded; the other verdict is within their last digit")
    print(
        "  numbers: "
        + ", ".join(
            f"{name.replace('_', ' ')} {format_bytes(round(value))}"
            for name, value in verdict.numbers.items()
        )
    )
