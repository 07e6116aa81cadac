"""A recorded run of the lab as evidence: Parquet tables and, beside them, `settings.json` with which it can be replayed.

save_run(recorder, "build/run", RunSettings(capacity_tokens=48_000, bytes_per_token=131_072))
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit.atomic_file import write_atomic
from labkit.doctor.evidence import Evidence, HeadWait
from labkit.errors import InputError
from labkit.observe.export import load_parquet, save_parquet
from labkit.observe.recorder import RunRecorder


@dataclass(frozen=True)
class RunSettings:
    """What `serve` was called with: enough to serve the same requests again."""

    capacity_tokens: int
    bytes_per_token: int
    kv: str = "paged"
    kv_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    base_ms: float = 10.0
    per_token_ms: float = 0.05


@dataclass(frozen=True)
class RecordedRun:
    """`requests` and `series` as pandas DataFrames (`labkit.observe.recorder`); `settings` None when they were not saved."""

    requests: Any
    series: Any
    settings: RunSettings | None


def save_run(recorder: RunRecorder, folder: str | Path, settings: RunSettings) -> Path:
    """`requests.parquet`, `series.parquet`, `settings.json`."""
    folder = Path(folder)
    save_parquet(recorder, folder)
    write_atomic(folder / "settings.json", json.dumps(asdict(settings), indent=1))
    return folder


def load_run(path: Path, evidence: Evidence) -> None:
    """Add the run in `path` (a folder, or one of its tables). Raises `InputError` for half a Parquet file and the like."""
    folder = path if path.is_dir() else path.parent
    requests = load_parquet(folder / "requests.parquet") if (folder / "requests.parquet").exists() else None
    if requests is None:
        raise InputError(
            folder, "has no requests.parquet; a recorded run is requests.parquet and series.parquet"
        )
    series = load_parquet(folder / "series.parquet") if (folder / "series.parquet").exists() else None
    for name, table, columns in (
        ("requests.parquet", requests, ("arrival_s", "admission_s", "first_token_s", "finish_s", "num_prompt_tokens")),
        ("series.parquet", series, ("end_s", "num_running", "num_waiting", "kv_live_bytes", "kv_free_bytes")),
    ):  # fmt: skip
        for column in columns:
            if table is not None and column not in table.columns:
                raise InputError(
                    folder / name, "is not there; the table is not a run of the lab", field=column
                )
    evidence.run = RecordedRun(requests, series, _settings(folder / "settings.json"))
    evidence.series = _as_pages(evidence.run)
    evidence.origin_s = 0.0
    if evidence.run.settings is not None:
        evidence.settings.setdefault("kv_tokens", evidence.run.settings.capacity_tokens)
        evidence.waits += _head_waits(evidence.run)


def _head_waits(run: RecordedRun) -> list[HeadWait]:
    """What a log would say, once a second: the longest-waiting request's prompt against the memory there is. A step as full
    as its token budget is a wait for compute."""
    if run.settings is None or run.series is None:
        return []
    requests = run.requests[run.requests["refused"].isna()].sort_values("arrival_s")
    arrival, prompt = requests["arrival_s"].to_numpy(), requests["num_prompt_tokens"].to_numpy()
    admission = requests["admission_s"].fillna(np.inf).to_numpy()
    names, token = requests["request_id"].astype(str).to_numpy(), run.settings.bytes_per_token
    budget = int(run.settings.options.get("max_num_batched_tokens", 2048))
    waits, last_s = [], -1.0
    for row in run.series.itertuples():
        if row.num_waiting < 1 or row.end_s < last_s + 1.0:
            continue
        waiting = np.flatnonzero((arrival <= row.end_s - 0.5) & (admission > row.end_s))
        if not len(waiting):
            continue
        head, last_s = int(waiting[0]), float(row.end_s)
        limit = "token_budget" if row.num_scheduled_tokens >= budget else "unknown"
        waits.append(
            HeadWait(last_s, names[head], limit, int(prompt[head]), row.kv_free_bytes // token,
                     row.kv_cached_bytes // token, row.kv_largest_free_bytes // token)
        )  # fmt: skip
    return waits


def _settings(path: Path) -> RunSettings | None:
    if not path.is_file():
        return None
    try:
        return RunSettings(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(path, f"is not the settings of a run ({error})") from None


def _as_pages(run: RecordedRun, num_rows: int = 240) -> Any:
    """The run as a series of scrapes: the same columns as `labkit.observe.scrape.series_frame`."""
    import pandas as pd

    requests, series = run.requests, run.series
    end = float(np.nanmax([requests["finish_s"].max(), requests["arrival_s"].max()]))
    times = np.linspace(0.0, end, num_rows)

    def count(column: str, weights: str | None = None) -> np.ndarray:
        known = requests[requests[column].notna()].sort_values(column)
        total = np.ones(len(known)) if weights is None else known[weights].to_numpy(dtype=float)
        return np.concatenate([[0.0], np.cumsum(total)])[
            np.searchsorted(known[column].to_numpy(), times, side="right")
        ]

    frame = pd.DataFrame({"time_s": times, "system": "labkit", "restarts": 0})
    frame["num_prompt_tokens"] = count("admission_s", "num_prompt_tokens")
    frame["num_output_tokens"] = count("finish_s", "num_output_tokens")
    frame["num_finished"], frame["ttft_count"] = count("finish_s"), count("first_token_s")
    refused = requests["refused"].notna() | requests["dropped"].notna()
    gone = np.sort(requests.loc[refused, "arrival_s"].to_numpy())
    frame["num_rejected"] = np.searchsorted(gone, times, side="right")
    frame["num_prefix_hits"] = count("admission_s", "num_hit_tokens")
    frame["num_prefix_queries"] = frame["num_prompt_tokens"]
    waited = requests[requests["admission_s"].notna()].sort_values("admission_s")
    queue = (waited["admission_s"] - waited["arrival_s"]).to_numpy()
    at = np.searchsorted(waited["admission_s"].to_numpy(), times, side="right")
    frame["queue_count"] = at
    frame["queue_le_1_count"] = np.concatenate([[0], np.cumsum(queue <= 1.0)])[at]
    frame["num_preemptions"] = count("finish_s", "num_preemptions")
    if series is None or not len(series):
        return frame
    last = np.clip(np.searchsorted(series["end_s"].to_numpy(), times, side="right") - 1, 0, None)
    capacity = float(series[["kv_live_bytes", "kv_cached_bytes", "kv_free_bytes"]].iloc[0].sum())
    for name in ("num_running", "num_waiting"):
        frame[name] = series[name].to_numpy()[last]
    for name in ("live", "cached", "free"):
        frame[f"kv_{name}_tokens"] = series[f"kv_{name}_bytes"].to_numpy()[last]
    frame["kv_largest_free"] = series["kv_largest_free_bytes"].to_numpy()[last]
    frame["kv_total_tokens"] = capacity
    frame["kv_usage"] = frame["kv_live_tokens"] / capacity
    lasted = (series["end_s"] - series["start_s"]) * series["num_decode_requests"]
    every = max(1.0, float(np.median(np.diff(series["step"]))) if len(series) > 1 else 1.0)
    frame["itl_sum"] = np.concatenate([[0.0], np.cumsum(lasted.to_numpy() * every)])[last + 1]
    return frame
