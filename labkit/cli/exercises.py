"""`labkit exercises`: generate them from the solutions, check a file, show the progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Exercises: generate, check, progress.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def generate(
    solutions: Annotated[Path, typer.Option(help="Where the solutions are.")] = Path("solutions"),
    exercises: Annotated[Path, typer.Option(help="Where the exercises go.")] = Path("exercises"),
    as_json: JsonOption = False,
) -> None:
    """Write exercises/ from solutions/ (bodies replaced by one line). Regenerating changes nothing."""
    from labkit.teach.exercises.generate import generate as write

    done = write(solutions, exercises)
    if as_json:
        print(json.dumps(done))
        return
    for name, what in done.items():
        print(f"{what:10} {exercises / name}")


@app.command()
def status(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Progress files or folders of them: a table of the room. Default: one's own."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Which exercises are passed, tried and open, on this machine or in a room."""
    if files:
        _room(files, as_json)
        return
    from labkit.errors import InputError
    from labkit.teach.exercises.progress import load, progress_file, status_rows

    problem = ""
    try:
        load(progress_file())
    except FileNotFoundError:
        pass  # nothing was checked yet
    except OSError as error:
        problem = f"{progress_file()}: cannot be read ({error.strerror or error})"
    except InputError as error:
        problem = str(error)
    rows = status_rows()
    if as_json:
        print(json.dumps({"file": str(progress_file()), "problem": problem, "exercises": rows}))
        return
    mark = {"passed": "✓", "tried": "…", "open": " "}
    width = max(len(row["title"]) for row in rows)
    for row in rows:
        counts = f"{row['num_checks']} checks, {row['num_hints']} hints"
        counts = counts if row["num_checks"] or row["num_hints"] else ""
        print(f"{mark[row['state']]} {row['id']}  {row['title']:{width}}  {row['state']:7} {counts}".rstrip())
    if problem:
        print(f"nothing is known: {problem}")
    else:
        print(f"{sum(row['state'] == 'passed' for row in rows)} of {len(rows)} passed ({progress_file()})")


def _room(files: list[Path], as_json: bool) -> None:
    import shutil

    from labkit.teach.exercises.room import room, room_text

    rows = room(files)
    print(
        json.dumps({"learners": rows}) if as_json else room_text(rows, shutil.get_terminal_size((160, 24))[0])
    )


@app.command()
def check(
    exercise: Annotated[str, typer.Argument(help="Its number, e.g. 07.")],
    file: Annotated[
        Path | None, typer.Argument(help="A notebook or .py file; default: the notebook in exercises/.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the (first) picture of a failure to this PNG.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a solution from the terminal. Exit code 1 when it does not pass."""
    from labkit.teach.exercises import find_exercise, progress
    from labkit.teach.exercises.submission import report_on_file

    found = find_exercise(exercise)
    path = file if file is not None else Path("exercises") / f"{found.notebook}.ipynb"
    report = report_on_file(path, found.id)
    progress.note_check(found.id, report.passed, report.message)
    if figure is not None and report.pictures:
        from labkit.atomic_file import write_atomic
        from labkit.viz.figure import png_bytes

        write_atomic(figure, png_bytes(report.figures()[0]))
    if as_json:
        print(json.dumps({"id": found.id, "passed": report.passed, "message": report.message}))
    else:
        print(report.text())
    raise typer.Exit(0 if report.passed else 1)
