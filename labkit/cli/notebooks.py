"""`labkit notebooks`: execute the notebooks through papermill and print the claims table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from labkit.teach.runner import NotebookRun

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


Folder = Annotated[Path, typer.Option(help="Where the notebooks are.")]
Out = Annotated[Path, typer.Option(help="Where results go.")]
Timeout = Annotated[int, typer.Option(help="Seconds a cell may take.")]
Kernels = Annotated[int, typer.Option(help="Notebooks at the same time.")]


@app.command()
def run(
    names: Names = None,
    parameter: Parameter = None,
    folder: Folder = Path("notebooks"),
    out: Out = Path("build"),
    timeout: Timeout = 300,
    kernels: Kernels = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print build/claims.json instead of the table.")
    ] = False,
) -> None:
    """Execute notebooks, write build/notebooks/ (ipynb and HTML), build/claims.json and build/claims.html.

    Exit code 1 when a notebook fails, a claim is missing or not held, or a control holds too.
    """
    from labkit.teach.report import claims_table

    runs = _execute(names or [], parameter or [], folder, out, timeout, kernels, quiet=as_json)
    print((out / "claims.json").read_text(encoding="utf-8") if as_json else claims_table(runs))
    _judge(runs, quiet=as_json, where=out)


@app.command()
def book(
    folder: Folder = Path("notebooks"),
    out: Out = Path("build"),
    docs: Annotated[Path, typer.Option(help="Markdown pages that become reference pages.")] = Path("docs"),
    timeout: Timeout = 300,
    kernels: Kernels = 2,
) -> None:
    """Execute every notebook, two at a time, and write the static site build/book/ (links checked).

    Exit codes as for `run`.
    """
    import shutil

    from labkit.teach.book import write_book
    from labkit.teach.report import claims_table

    runs = _execute([], [], folder, out, timeout, kernels, quiet=False)
    shutil.rmtree(out / "book", ignore_errors=True)
    pages = write_book(runs, out / "book", docs=docs)
    print(claims_table(runs))
    print(f"{len(pages)} pages; open {out / 'book' / 'index.html'}")
    _judge(runs, quiet=False, where=out)


@app.command()
def seeds(
    names: Names = None,
    seeds: Annotated[str, typer.Option(help="Which ones: 1,2,5-8.")] = "1,2,3",
    parameter: Parameter = None,
    folder: Folder = Path("notebooks"),
    out: Out = Path("build/seeds"),
    timeout: Timeout = 300,
    kernels: Kernels = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Execute notebooks under several seeds and print a table, claim by seed: the verdicts must not depend on luck.

    A run that was stopped goes on where it was. Exit code 1 when a verdict is not the same under all seeds, or is one that
    `run` would not accept.
    """
    from tqdm import tqdm

    from labkit.teach.runner import find_notebooks
    from labkit.teach.seeds import parse_seeds, run_seeds, seeds_json, seeds_table

    chosen, numbers = find_notebooks(folder, names or []), parse_seeds(seeds)
    hidden = as_json or not sys.stderr.isatty()
    with tqdm(total=len(chosen) * len(numbers), unit="notebook", disable=hidden) as bar:

        def done(notebook: str, seed: int) -> None:
            bar.set_postfix_str(f"{notebook}, seed {seed}")
            bar.update()

        rows = run_seeds(
            chosen,
            numbers,
            out,
            parameters=_parameters(parameter or []),
            timeout_s=timeout,
            num_kernels=kernels,
            on_done=done,
        )
    print(json.dumps(seeds_json(rows, numbers), indent=1) if as_json else seeds_table(rows, numbers))
    if not all(row.good for row in rows):
        print(f"labkit: see the executed notebooks under {out}/", file=sys.stderr)
        raise SystemExit(1)


def _execute(
    names: list[str],
    parameter: list[str],
    folder: Path,
    out: Path,
    timeout: int,
    kernels: int,
    *,
    quiet: bool,
) -> list[NotebookRun]:
    """Run, with a progress bar on a terminal; write each notebook's HTML as it ends, and the claims."""
    from tqdm import tqdm

    from labkit.teach.report import write_claims, write_html
    from labkit.teach.runner import find_notebooks, run_notebooks

    chosen = find_notebooks(folder, names)
    parameters = _parameters(parameter)
    with tqdm(total=len(chosen), unit="notebook", disable=quiet or not sys.stderr.isatty()) as bar:

        def done(finished: NotebookRun) -> None:
            if finished.output.exists():
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
    write_claims([v for r in runs for v in r.verdicts], out)
    return runs


def _judge(runs: list[NotebookRun], *, quiet: bool, where: Path) -> None:
    """Say what went wrong on stderr and exit with 1, or sum up."""
    from labkit.teach.claims import problems_of

    verdicts = [v for r in runs for v in r.verdicts]
    problems = [f"{r.notebook} failed: {r.error}" for r in runs if r.error]
    problems += problems_of(verdicts, notebooks=[r.notebook.split("_")[0] for r in runs])
    for problem in problems:
        print(f"labkit: {problem}", file=sys.stderr)
    if problems:
        raise SystemExit(1)
    if not quiet:
        held = sum(v.held for v in verdicts)
        claims = f"{held} of {len(verdicts)} claims held" if verdicts else "no claims in it"
        print(f"{len(runs)} notebook{'s' * (len(runs) != 1)}, {claims}; results under {where}/")


def _parameters(texts: list[str]) -> dict[str, Any]:
    """What `-p` gave, by name."""
    return {name: parse_value(value) for name, _, value in (text.partition("=") for text in texts)}


def parse_value(text: str) -> Any:
    """A parameter value as papermill reads it: a JSON literal, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
