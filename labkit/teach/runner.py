"""Run notebooks through papermill without anything that can hang, and collect their claims.

All notebooks run from one Python process: importing nbformat costs about 2.4 CPU seconds (35 grammars that
`rfc3987_syntax` compiles for a check that nobody here needs), so it is paid once, or not at all: jsonschema works
without that package, and `_without_slow_import` says that it is absent.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import InputError, LabError
from labkit.teach.claims import CLAIM_MIME, RSS_MIME, Verdict, verdict_from

KERNEL_START_TIMEOUT_S = 120
#: clients of the notebooks that run now, one a thread
_RUNNING: list[Any] = []


@dataclass(frozen=True)
class NotebookRun:
    """What came of one notebook. `error` is empty for a run to the end; the executed file exists in both cases."""

    notebook: str
    output: Path
    duration_s: float
    error: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    peak_rss_mib: float | None = None


def find_notebooks(folder: Path, names: Sequence[str]) -> list[Path]:
    """The notebooks that `names` mean ("06", "06_paged_attention" or a path); all of `folder` for none."""
    present = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not names:
        return present
    chosen = []
    for name in names:
        stem = Path(name).stem
        found = [p for p in present if p.stem == stem or p.stem.split("_")[0] == stem]
        if not found:
            known = ", ".join(p.stem for p in present) or "none"
            raise LabError(f"no notebook {name!r} in {folder.name}/; there are: {known}")
        chosen += found
    return chosen


def run_notebooks(
    notebooks: Sequence[Path],
    output_dir: Path,
    *,
    parameters: dict[str, Any] | None = None,
    timeout_s: int = 300,
    num_kernels: int = 1,
    on_done: Callable[[NotebookRun], None] | None = None,
) -> list[NotebookRun]:
    """Execute each notebook into `output_dir` and return the runs in the order of `notebooks`.

    Kernels start in the current directory: papermill's own `cwd` changes that of the whole process, for all threads.

    `timeout_s` bounds every cell. `num_kernels` notebooks run at the same time. An undeclared parameter raises
    `LabError` before anything runs. A failing notebook does not stop the others. Ctrl-C stops all of them; what they had
    printed stays in their outputs.
    """
    notebooks = [path.resolve() for path in notebooks]
    for path in notebooks:
        check_parameters(path, parameters or {})
    output_dir = output_dir.resolve()
    output_dir.mkdir(parents=True, exist_ok=True)
    for path in notebooks:
        (output_dir / path.name).unlink(missing_ok=True)
    runs: dict[Path, NotebookRun] = {}
    with ThreadPoolExecutor(max_workers=num_kernels) as pool:
        futures = {
            pool.submit(_run_one, path, output_dir / path.name, parameters or {}, timeout_s): path
            for path in notebooks
        }
        try:
            for future in as_completed(futures):
                runs[futures[future]] = future.result()
                if on_done is not None:
                    on_done(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in futures):
                _kill_kernels()  # a kernel that is just starting comes a little later
                time.sleep(0.1)
            raise
    return [runs[path] for path in notebooks]


def collect(path: Path) -> tuple[list[Verdict], float | None]:
    """Verdicts and the kernel's peak memory (MiB) from an executed notebook."""
    nbformat = _nbformat()
    verdicts, peak = [], None
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if CLAIM_MIME in data:
                verdicts.append(verdict_from(data[CLAIM_MIME]))
            if RSS_MIME in data:
                peak = data[RSS_MIME]["peak_rss_mib"]
    return verdicts, peak


def _run_one(path: Path, output: Path, parameters: dict[str, Any], timeout_s: int) -> NotebookRun:
    _without_slow_import()
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    _register_engine()
    started, error = time.monotonic(), ""
    try:
        papermill.execute_notebook(
            str(path),
            str(output),
            parameters=parameters,
            engine_name="labkit",
            kernel_name="python3",
            language="python",
            progress_bar=False,
            execution_timeout=timeout_s,
            start_timeout=KERNEL_START_TIMEOUT_S,
            log_output=False,
        )
    except PapermillExecutionError as failure:
        error = f"cell {failure.exec_count}: {failure.ename}: {failure.evalue}"
    except CellTimeoutError:
        error = f"a cell ran longer than {timeout_s} s and was stopped"
    except DeadKernelError:
        error = "the kernel died"
    except RuntimeError as failure:  # jupyter_client: no answer within KERNEL_START_TIMEOUT_S
        error = f"the kernel did not start: {failure}"
    verdicts, peak = collect(output) if output.exists() else ([], None)
    return NotebookRun(path.stem, output, time.monotonic() - started, error, verdicts, peak)


def _kill_kernels() -> None:
    """Kernels are in sessions of their own, so Ctrl-C does not reach them; without one, a run ends with what it has."""
    for client in list(_RUNNING):
        provisioner = getattr(getattr(client, "km", None), "provisioner", None)
        pid = getattr(provisioner, "pid", None)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def check_parameters(path: Path, parameters: Mapping[str, Any]) -> None:
    """Raises `InputError` for a name that the notebook's cell of parameters does not assign."""
    declared = declared_parameters(path)
    for name in parameters:
        if name not in declared:
            raise InputError(path.name, f"has no parameter {name!r}; it declares {', '.join(declared)}")


def declared_parameters(path: Path) -> list[str]:
    """Names assigned in the cell tagged `parameters`."""
    import ast

    nbformat = _nbformat()
    cells = [c for c in nbformat.read(path, as_version=4).cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise InputError(path.name, f"has {len(cells)} cells tagged 'parameters'; exactly one is needed")
    return [
        target.id
        for node in ast.parse(cells[0].source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


def _nbformat() -> Any:
    _without_slow_import()
    import nbformat

    return nbformat


def _without_slow_import() -> None:
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


def _register_engine() -> None:
    """A papermill engine whose client polls for replies.

    nbclient waits for a cell's reply on the shell channel without a timeout, and its mimic of the `Output` widget
    sends on the same channel meanwhile; the reply can be missed, and the run then waits for ever (nbclient issue
    312). Asking again every quarter of a second cannot miss it.
    """
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines
    from papermill.utils import remove_args

    if "labkit" in papermill_engines._engines:
        return

    class PollingClient(PapermillNotebookClient):
        async def _async_poll_for_reply(self, *args: Any, **kwargs: Any) -> Any:
            channel = self.kc.shell_channel
            original = channel.get_msg

            async def get_msg(timeout: float | None = None) -> Any:
                end = None if timeout is None else time.monotonic() + timeout
                while True:
                    left = 0.25 if end is None else min(0.25, max(0.0, end - time.monotonic()))
                    try:
                        return await original(timeout=left)
                    except queue.Empty:
                        if end is not None and time.monotonic() >= end:
                            raise

            channel.get_msg = get_msg
            try:
                return await super()._async_poll_for_reply(*args, **kwargs)
            finally:
                del channel.get_msg

    class PollingEngine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(  # type: ignore[override]
            cls,
            nb_man: Any,
            kernel_name: str,
            log_output: bool = False,
            start_timeout: int = KERNEL_START_TIMEOUT_S,
            execution_timeout: int | None = None,
            **kwargs: Any,
        ) -> Any:
            client_args = {
                **remove_args(["timeout", "startup_timeout", "input_path"], **kwargs),
                "timeout": execution_timeout,
                "startup_timeout": start_timeout,
                "kernel_name": kernel_name,
                "log_output": log_output,
                # else lines on stderr: that loopback is not encrypted, and that an idle kernel was interrupted before it is shut down
                "extra_arguments": ["--IPKernelApp.log_level=50"],
                "stdout_file": None,
                "stderr_file": None,
            }
            client = PollingClient(nb_man, **client_args)
            _RUNNING.append(client)
            try:
                return client.execute()
            finally:
                _RUNNING.remove(client)

    papermill_engines.register("labkit", PollingEngine)
