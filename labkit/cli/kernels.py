"""`labkit kernels`: what the compiler made of each kernel, and (on a GPU) how fast it is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from labkit.errors import LabError

app = typer.Typer(
    help="Triton kernels: compile ahead of time, bench on a GPU, check against float64.", no_args_is_help=True
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("compile")
def compile_(
    matrix: Annotated[
        str, typer.Option(help="`default`: every kernel in the shapes in use; `full`: all shapes.")
    ] = "default",
    arch: Annotated[
        list[int] | None, typer.Option(help="Compute capability times 10; repeat. Also 75.")
    ] = None,
    kernel: Annotated[str | None, typer.Option(help="Only kernels whose name contains this.")] = None,
    cache_dir: Annotated[Path, typer.Option(help="Rows of earlier runs are kept here.")] = Path(
        "build/kernels"
    ),
    num_workers: Annotated[int, typer.Option(help="Compiler processes at a time.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Compile every kernel for sm_80, sm_90 and sm_100 (no GPU needed) and print registers, spills and load widths.

    Exits with 1 when a kernel spills registers or loads keys and values in pieces smaller than 16 bytes.
    """
    from labkit.kernels.compile import compile_table, failures
    from labkit.kernels.occupancy import LIMITS_OF_ARCH
    from labkit.kernels.report import compile_report
    from labkit.kernels.specs import ARCHS, all_cases, default_cases

    if matrix not in ("default", "full"):
        raise LabError(f"--matrix: {matrix!r} is not a matrix; choose default or full")
    archs = tuple(arch or ARCHS)
    for number in archs:
        if number not in LIMITS_OF_ARCH:
            raise LabError(
                f"--arch: {number} is not known; choose from {', '.join(map(str, LIMITS_OF_ARCH))}"
            )
    cases = [
        c
        for c in (default_cases() if matrix == "default" else all_cases())
        if not kernel or kernel in c.kernel
    ]
    if not cases:
        raise LabError(f"--kernel: no kernel's name contains {kernel!r}")
    rows = compile_table(cases, archs, cache_dir=cache_dir, num_workers=num_workers)
    found = failures(rows)
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "failures": found}))
    else:
        print(compile_report(rows))
        print("\n".join(found) if found else "no spills; every load on the KV path is 16 bytes wide")
    raise typer.Exit(1 if found else 0)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option(help="Only the main rows, about a minute.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Time every kernel on a CUDA device against its floor and the alternatives. Refuses to run on a CPU."""
    from labkit.kernels.bench import run_bench
    from labkit.kernels.report import bench_report

    result = run_bench(quick=quick)
    if not as_json:
        print(bench_report(result))
    print(json.dumps(result))


@app.command()
def check(as_json: JsonOption = False) -> None:
    """Run every kernel against float64 on this machine's backend."""
    from labkit.kernels import backend
    from labkit.kernels.selfcheck import check_all

    results = check_all("cuda" if backend.describe()["cuda_tensors"] == "triton" else "cpu")
    failed = [r for r in results if not r["held"]]
    if as_json:
        print(json.dumps({"backend": backend.describe(), "results": results}))
    else:
        print(f"backend: {backend.MODE} ({backend.describe()['reason']})")
        for r in results:
            verdict = "ok" if r["held"] else "WRONG"
            print(
                f"{verdict:5}  {r['kernel']:24} {r['shape']:44} error {r['error']:.2e}  (accepted {r['tolerance']:.0e})"
            )
    raise typer.Exit(1 if failed else 0)
