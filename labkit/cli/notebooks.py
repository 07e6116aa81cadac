"""`labkit notebooks`: execute the notebooks through papermill and print the claims table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Run the notebooks through papermill and collect their claims.", no_args_is_help=True)

Names = Annotated[
    list[str] | None, typer.Argument(help="Notebooks by number or name; all of them by default.")
]
Parameter = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="NAME VALUE", help="Set a parameter, as in papermill; repeatable."),
]


def rewrite_args(args: list[str]) -> list[str]:
    """`-p NAME VALUE` becomes `-p NAME=VALUE`: typer has no repeatable option of two words."""
    rest = iter(args)
    rewritten = []
    for arg in rest:
        rewritten.append(arg)
        if arg == "-p":
            name = next(rest, "")
            rewritten.append(name if "=" in name else f"{name}={next(rest, '')}")
    return rewritten


@app.command()
def run(
    names: Names = None,
    parameter: Parameter = None,
    folder: Annotated[Path, typer.Option(help="Where the notebooks are.")] = Path("notebooks"),
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("build"),
    timeout: Annotated[int, typer.Option(help="Seconds a cell may take.")] = 300,
    kernels: Annotated[int, typer.Option(help="Notebooks at the same time.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print build/claims.json instead of the table.")
    ] = False,
) -> None:
    """Execute notebooks, write build/notebooks/ (ipynb and HTML), build/claims.json and build/claims.html.

    Exit code 1 when a notebook fails, a claim is missing or not held, or a control holds too.
    """
    from tqdm import tqdm

    from labkit.teach.claims import problems_of
    from labkit.teach.report import claims_table, write_claims, write_html
    from labkit.teach.runner import NotebookRun, find_notebooks, run_notebooks

    chosen = find_notebooks(folder, names or [])
    parameters = {
        name: parse_value(value) for name, _, value in (text.partition("=") for text in parameter or [])
    }
    with tqdm(total=len(chosen), unit="notebook", disable=as_json or not sys.stderr.isatty()) as bar:

        def done(finished: NotebookRun) -> None:
            write_html(finished, finished.output.with_suffix(".html"))
            bar.set_postfix_str(finished.notebook)
            bar.update()

        runs = run_notebooks(
            chosen,
            out / "notebooks",
            parameters=parameters,
            timeout_s=timeout,
            num_kernels=kernels,
            on_done=done,
        )
    verdicts = [v for r in runs for v in r.verdicts]
    write_claims(verdicts, out)
    print((out / "claims.json").read_text(encoding="utf-8") if as_json else claims_table(runs))
    problems = [f"{r.notebook} failed: {r.error}" for r in runs if r.error]
    problems += problems_of(verdicts, notebooks=[r.notebook.split("_")[0] for r in runs])
    for problem in problems:
        print(f"labkit: {problem}", file=sys.stderr)
    if problems:
        raise SystemExit(1)
    if not as_json:
        held = sum(v.held for v in verdicts)
        print(f"{len(runs)} notebooks, {held} of {len(verdicts)} claims held; results under {out}/")


def parse_value(text: str) -> Any:
    """A parameter value as papermill reads it: a JSON literal, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
