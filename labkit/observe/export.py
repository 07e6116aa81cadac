"""A recorded run as files: Parquet tables for analysis, and a trace that ui.perfetto.dev and chrome://tracing open.

Files are written under a temporary name and renamed, so a reader never meets half of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.atomic_file import atomic_path
from labkit.errors import InputError
from labkit.observe.recorder import RunRecorder

TABLES = ("requests", "series")


def save_parquet(recorder: RunRecorder, folder: str | Path) -> list[Path]:
    """`requests.parquet`, and `series.parquet` where the run was recorded at level full."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    frames = {"requests": recorder.requests_frame()}
    if recorder.series is not None:
        frames["series"] = recorder.series_frame()
    written = []
    for name, frame in frames.items():
        path = folder / f"{name}.parquet"
        with atomic_path(path) as temporary:
            frame.to_parquet(temporary, index=False)
        written.append(path)
    return written


def load_parquet(path: str | Path) -> Any:
    """One table as a pandas DataFrame. Raises `InputError` for a file that is missing, cut off or something else."""
    import pandas as pd
    import pyarrow

    path = Path(path)
    if not path.is_file():
        raise InputError(path, "no such file; expected a Parquet table of a run")
    try:
        return pd.read_parquet(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:100]
        raise InputError(path, f"is not a whole Parquet file ({reason}); write the run again") from None


def save_perfetto(recorder: RunRecorder, path: str | Path) -> Path:
    """Chrome trace events: one row a request (waiting, prefill, decode), counters of the series on top."""
    with atomic_path(path, parents=True) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for i, event in enumerate(_events(recorder)):
            file.write((",\n" if i else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")
    return Path(path)


def _events(recorder: RunRecorder) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "requests"}}
    yield {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "memory and batch"}}
    for lane, record in enumerate(recorder.requests.values(), start=1):
        phases = (
            ("waiting", record.arrival_s, record.admission_s),
            ("prefill", record.admission_s, record.first_token_s),
            ("decode", record.first_token_s, record.finish_s),
        )
        args = {
            "request": record.request_id,
            "prompt_tokens": record.num_prompt_tokens,
            "output_tokens": record.num_output_tokens,
            "preemptions": record.num_preemptions,
        }
        for name, start, end in phases:
            if start is not None and end is not None:
                yield {
                    "ph": "X",
                    "pid": 1,
                    "tid": lane,
                    "name": name,
                    "ts": round(start * 1e6, 3),
                    "dur": round((end - start) * 1e6, 3),
                    "args": args,
                }
    if recorder.series is None:
        return
    columns = {name: recorder.series.column(name) for name in ("start_s", "num_running", "num_waiting")}
    kv = {n: recorder.series.column(f"kv_{n}_bytes") for n in ("live", "cached", "free")}
    for i, start in enumerate(columns["start_s"]):
        at = {"ph": "C", "pid": 2, "ts": round(start * 1e6, 3)}
        yield {**at, "name": "requests", "args": {n: columns[f"num_{n}"][i] for n in ("running", "waiting")}}
        if kv["live"][i] is not None:
            yield {**at, "name": "KV bytes", "args": {n: kv[n][i] for n in kv}}
