"""`labkit doctor`: evidence in, diagnosis out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    no_args_is_help=True, help="Diagnose from evidence: metrics, logs, allocator statistics, recorded runs."
)
incidents_app = typer.Typer(
    no_args_is_help=True, help="Make incidents with a known cause, and score the doctor on them."
)
app.add_typer(incidents_app, name="incidents")


@app.callback()
def _doctor() -> None:
    """Diagnose from evidence."""


@app.command()
def diagnose(
    paths: Annotated[
        list[str], typer.Argument(help="Files, folders, or a server's /metrics address, in any mix.")
    ],
    no_effects: Annotated[
        bool, typer.Option("--no-effects", help="Do not compute what the fix would do.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what is wrong, by what evidence, what it is not, what to measure next and what to try."""
    from labkit.doctor.diagnose import diagnose_paths
    from labkit.doctor.report import as_text

    diagnosis = diagnose_paths(paths, effects=not no_effects)
    print(json.dumps(diagnosis.as_dict()) if as_json else as_text(diagnosis))


@app.command()
def scrape(
    sources: Annotated[
        list[str], typer.Argument(help="A /metrics address, or saved pages in order of time.")
    ],
    num: Annotated[int, typer.Option(help="Readings of an address.")] = 1,
    every: Annotated[float, typer.Option(help="Seconds between them.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read a real server's metrics under the lab's own names."""
    import time

    from labkit.errors import LabError
    from labkit.observe.scrape import read_pages, series_frame

    if num < 1 or every < 0:
        raise LabError(f"--num {num} --every {every:g}: read at least once, and not backwards")
    pages = []
    for i in range(num):
        if i:
            time.sleep(every)
        pages += read_pages(sources)
    frame = series_frame(pages)
    if as_json:
        print(frame.to_json(orient="records"))
        return
    last, first = frame.iloc[-1], frame.iloc[0]
    print(
        f"{pages[0].system}: {len(frame)} readings over {last['time_s']:g} s, {int(last['restarts'])} restarts"
    )
    for name in frame.columns:
        if name not in ("time_s", "system", "restarts"):
            print(f"  {name:24} {first[name]:>14,.6g} -> {last[name]:>14,.6g}")


@incidents_app.command()
def make(
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same incidents.")] = 0,
    num: Annotated[int, typer.Option(help="How many.")] = 13,
    kinds: Annotated[str, typer.Option(help="Comma-separated; default: all thirteen, evenly.")] = "",
    severity: Annotated[str, typer.Option(help="mild, moderate, severe or mixed.")] = "mixed",
    trace: Annotated[
        str, typer.Option(help="Lengths: azure-conv, azure-code, mooncake-conversation or mixed.")
    ] = "mixed",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write evidence (OUT/<id>/evidence/) and, apart from it, the truth (OUT/truth.json)."""
    from labkit.experiments.incidents.make import make_incidents

    names = [name.strip() for name in kinds.split(",") if name.strip()] or None
    with _bar(num, "incidents") as step:
        found = make_incidents(seed, num, out, kinds=names, severity=severity, trace=trace, on_progress=step)
    print(json.dumps({"out": str(out), "num": len(found)}) if as_json else f"{len(found)} incidents in {out}")


@incidents_app.command()
def score(
    folder: Annotated[Path, typer.Argument(help="A folder that `make` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Diagnose every incident of a folder and compare with the truth."""
    from labkit.experiments.incidents.score import score_folder

    _print(score_folder(folder), as_json)


@incidents_app.command()
def evaluate(
    seed: Annotated[
        int, typer.Option(help="Not one that rules were written with (1 to 4, 11, 2026).")
    ] = 2027,
    out: Annotated[Path, typer.Option(help="Where answers are kept; a stopped run goes on.")] = Path(
        "build/doctor"
    ),
    num_each: Annotated[int, typer.Option(help="Incidents of each sick kind.")] = 40,
    num_healthy: Annotated[int, typer.Option(help="Healthy ones.")] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The doctor on 780 incidents: macro-F1, recalls, confusion matrix."""
    from labkit.experiments.incidents import evaluate as evaluation

    with _bar(12 * num_each + num_healthy, "incidents") as step:
        result = evaluation.evaluate(seed, out, num_each=num_each, num_healthy=num_healthy, on_progress=step)
    _print(result, as_json)


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


def _print(result: dict[str, Any], as_json: bool) -> None:
    from labkit.experiments.incidents.evaluate import confusion_table

    if as_json:
        print(json.dumps(result))
        return
    print(confusion_table(result))
    print(
        f"\n{result['num_incidents']} incidents ({result['num_doubles']} doubles): macro-F1 {result['macro_f1']:.3f}, "
        f"healthy called sick {100 * result['healthy_called_sick']:.1f} %"
    )


@contextmanager
def _bar(total: int, label: str) -> Iterator[Callable[[int], object] | None]:
    """A bar on a terminal; nothing in CI or into a file."""
    if not sys.stderr.isatty() or os.environ.get("CI"):
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=label, unit=" incidents", leave=False) as bar:
        yield bar.update
