"""A grid of configurations, one run each, to a tidy table.

    frame = sweep(run, {"headroom": [0, 0.05, 0.1], "seed": range(3)}, folder="build/sweeps/headroom")

`run(**configuration)` is a module-level function that returns a flat dict of figures. Runs go to local processes, or to
any `concurrent.futures.Executor`, so a cluster takes over where one machine is too small (docs/sweeps.md):

    from distributed import Client
    frame = sweep(run, grid, executor=Client("tcp://...").get_executor())

Every result is written as soon as it is there, to a temporary name that is then renamed. A sweep that was killed goes on
where it stopped: what lies in `folder` is not run again. A configuration is known by its values, so a grid may grow.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.atomic_file import write_atomic
from labkit.errors import InputError, LabError

if TYPE_CHECKING:
    import pandas as pd

Configuration = dict[str, Any]
RunFunction = Callable[..., Mapping[str, Any]]


def sweep(
    run: RunFunction,
    grid: Mapping[str, Iterable[Any]] | Iterable[Configuration],
    *,
    folder: str | Path | None = None,
    executor: Executor | None = None,
    num_processes: int | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> pd.DataFrame:
    """One row a configuration, in grid order: its values, then its figures.

    grid            values by name (their product), or a list of configurations
    folder          where results are kept; None keeps nothing
    executor        any `concurrent.futures.Executor`; None starts `num_processes` local processes (default: one a core)
    on_progress     is told how many runs are done since it was last called

    Raises `LabError` for a value that JSON cannot hold or a result that is no dict of plain values, `InputError` for a
    result file that cannot be read. A run that raises ends the sweep with its exception; finished ones are kept.
    """
    configurations = expand(grid)
    store = _Store(Path(folder), run) if folder is not None else None
    results: dict[int, Mapping[str, Any]] = {}
    todo = []
    for index, configuration in enumerate(configurations):
        known = store.get(configuration) if store else None
        if known is None:
            todo.append(index)
        else:
            results[index] = known
    if on_progress is not None and results:
        on_progress(len(results))
    if todo:
        pool = nullcontext(executor) if executor is not None else _processes(num_processes, len(todo))
        with pool as workers:
            for index, result in _run_all(workers, run, configurations, todo):
                results[index] = _plain(result, configurations[index])
                if store:
                    store.put(configurations[index], results[index])
                if on_progress is not None:
                    on_progress(1)
    return _frame(configurations, [results[i] for i in range(len(configurations))])


def expand(grid: Mapping[str, Iterable[Any]] | Iterable[Configuration]) -> list[Configuration]:
    """The product of a grid's values, the last name running fastest; a list of configurations is taken as it is."""
    if isinstance(grid, Mapping):
        names = list(grid)
        rows = [dict(zip(names, values)) for values in itertools.product(*(list(grid[n]) for n in names))]
    else:
        rows = [dict(row) for row in grid]
    if not rows:
        raise LabError("the grid is empty; give at least one value for every name")
    seen = set()
    for row in rows:
        key = _key(row)
        if key in seen:
            raise LabError(f"the configuration {_show(row)} is there twice; configurations of a sweep differ")
        seen.add(key)
    return rows


def _processes(num_processes: int | None, num_runs: int) -> ProcessPoolExecutor:
    """Fresh interpreters: a forked one would inherit the locks of the parent's threads."""
    count = min(num_processes or os.cpu_count() or 1, num_runs)
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"))


def _run_all(
    workers: Executor | None, run: RunFunction, configurations: list[Configuration], todo: list[int]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Results as they come. When a run fails, those that are done are handed out first, and the rest is not started."""
    assert workers is not None
    futures = {workers.submit(_call, run, configurations[i]): i for i in todo}
    failure: BaseException | None = None
    try:
        for future in _completed(futures):
            if future.cancelled():
                continue
            error = future.exception()
            if error is None:
                yield futures[future], future.result()
            elif failure is None:
                failure = error
                for other in futures:
                    other.cancel()
    finally:
        for future in futures:
            future.cancel()
    if failure is not None:
        raise failure


def _completed(futures: Mapping[Any, int]) -> Iterator[Any]:
    """`as_completed` of the standard library needs futures of the standard library; Dask's executor hands those out."""
    return as_completed(futures)


def _call(run: RunFunction, configuration: Configuration) -> Mapping[str, Any]:
    return run(**configuration)


class _Store:
    """One JSON file a run, named by a digest of function and configuration."""

    def __init__(self, folder: Path, run: RunFunction):
        self.folder, self.run_name = folder, f"{run.__module__}.{run.__qualname__}"
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, configuration: Configuration) -> Path:
        text = self.run_name + _key(configuration)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"

    def get(self, configuration: Configuration) -> Mapping[str, Any] | None:
        path = self.path(configuration)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return dict(record["figures"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise InputError(path, "is not a result of a sweep; remove it, and its run is repeated") from None

    def put(self, configuration: Configuration, figures: Mapping[str, Any]) -> None:
        record = {"run": self.run_name, "configuration": configuration, "figures": figures}
        write_atomic(self.path(configuration), json.dumps(record, indent=1))


def _key(configuration: Configuration) -> str:
    try:
        return json.dumps(configuration, sort_keys=True)
    except (TypeError, ValueError):
        raise LabError(
            f"the configuration {_show(configuration)} has a value that JSON cannot hold; use numbers, text, lists"
        ) from None


def _plain(result: Any, configuration: Configuration) -> dict[str, Any]:
    if not isinstance(result, Mapping):
        raise LabError(
            f"the run {_show(configuration)} returned {type(result).__name__}; return a dict of figures"
        )
    figures = {str(k): getattr(v, "item", lambda v=v: v)() for k, v in result.items()}  # NumPy scalars
    clash = sorted(set(figures) & set(configuration))
    if clash:
        raise LabError(
            f"the run {_show(configuration)} returns {clash[0]!r}, which names an input; rename the figure"
        )
    _key(figures)
    return figures


def _show(configuration: Configuration) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in configuration.items())


def _frame(configurations: list[Configuration], results: list[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([{**c, **r} for c, r in zip(configurations, results, strict=True)])
