"""ServeGen client descriptions: not requests, but the rates and length distributions to draw them from.

`…-trace.csv` has no header; a row is a window of 600 s: start_s, rate (requests/s), cv, pattern of the gaps, shape,
scale. `…-dataset.json` maps the start of a six-hour period to two strings, each of which holds a Python dict
`{length: probability}`. Source: alibaba/ServeGen, `data/language/m-large`, Apache-2.0.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.errors import InputError, LabError
from labkit.json_text import read_json
from labkit.workload.base import RequestSpec
from labkit.workload.reading import parse_number, read_rows

WINDOW_S = 600.0
FIELDS = ("start_s", "rate", "cv", "pattern", "shape", "scale")


@dataclass(frozen=True, slots=True)
class Window:
    """Arrivals from `start_s` on for 600 s. `pattern` is "Gamma", "Weibull" or "" (nobody calls)."""

    start_s: float
    rate: float
    cv: float
    pattern: str
    shape: float
    scale: float


@dataclass(frozen=True)
class ServeGenClient:
    """Windows, and for each period `(start_s, lengths, probabilities)` of prompts and of outputs."""

    windows: list[Window]
    prompts: list[tuple[float, np.ndarray, np.ndarray]]
    outputs: list[tuple[float, np.ndarray, np.ndarray]]


def load_servegen(
    trace_path: str | Path,
    limit: int,
    rng: np.random.Generator,
    *,
    dataset_path: str | Path | None = None,
    start_s: float = 0.0,
) -> list[RequestSpec]:
    """Draw up to `limit` requests from `start_s` on. Without `dataset_path` the file beside the trace is taken."""
    client = read_client(trace_path, dataset_path)
    requests: list[RequestSpec] = []
    for window in client.windows:
        if window.start_s + WINDOW_S <= start_s or window.rate == 0:
            continue
        prompt_values = _period(client.prompts, window.start_s)
        output_values = _period(client.outputs, window.start_s)
        for time_s in _arrivals(window, rng):
            requests.append(
                RequestSpec(
                    request_id=f"r{len(requests)}",
                    arrival_s=float(time_s - start_s),
                    num_prompt_tokens=int(rng.choice(prompt_values[1], p=prompt_values[2])),
                    num_output_tokens=int(rng.choice(output_values[1], p=output_values[2])),
                    kind="servegen",
                )
            )
            if len(requests) == limit:
                return requests
    if not requests:
        raise LabError(f"{trace_path}: nobody calls after {start_s:g} s; give an earlier start")
    return requests


def read_client(trace_path: str | Path, dataset_path: str | Path | None = None) -> ServeGenClient:
    """Read both files of one client. Raises `InputError` with row and field."""
    trace_path = Path(trace_path)
    if dataset_path is None:
        dataset_path = trace_path.with_name(trace_path.name.replace("-trace.csv", "-dataset.json"))
    prompts, outputs = _read_dataset(Path(dataset_path))
    return ServeGenClient(_read_windows(trace_path), prompts, outputs)


def _read_windows(path: Path) -> list[Window]:
    windows = []
    for row, line in read_rows(path):
        fields = line.split(",")
        if len(fields) != len(FIELDS):
            raise InputError(path, f"has {len(fields)} fields; expected {', '.join(FIELDS)}", row=row)
        numbers = {
            name: parse_number(value, path, row, name, minimum=0.0)
            for name, value in zip(FIELDS, fields)
            if name != "pattern"
        }
        if fields[3] not in ("Gamma", "Weibull", ""):
            raise InputError(
                path, f"is {fields[3]!r}; expected Gamma, Weibull or nothing", row=row, field="pattern"
            )
        if fields[3] == "" and numbers["rate"] > 0:
            raise InputError(path, "is empty although rate is not 0", row=row, field="pattern")
        windows.append(Window(pattern=fields[3], **numbers))
    if not windows:
        raise InputError(path, "has no windows; expected at least one row")
    return windows


def _read_dataset(path: Path) -> tuple[list[tuple[float, np.ndarray, np.ndarray]], ...]:
    data = read_json(
        path,
        "the dataset of a ServeGen client",
        missing="no such file; a ServeGen trace needs its dataset beside it",
    )
    if not isinstance(data, dict) or not data:
        raise InputError(path, "is not an object of periods; expected the dataset of a ServeGen client")
    tables = []
    for field in ("input_tokens", "output_tokens"):
        periods = []
        for start in data:
            try:
                table = ast.literal_eval(data[start][field])
                lengths = np.array([int(k) for k in table], dtype=np.int64)
                weights = np.array([float(v) for v in table.values()])
                if len(lengths) == 0 or lengths.min() < 1 or weights.min() < 0 or not weights.sum() > 0:
                    raise ValueError
                periods.append((float(start), lengths, weights / weights.sum()))
            except (KeyError, TypeError, ValueError, SyntaxError, AttributeError):
                raise InputError(
                    path, f"period {start!r} does not hold a dict of length: probability", field=field
                ) from None
        tables.append(sorted(periods, key=lambda period: period[0]))
    return tuple(tables)


def _period(
    periods: list[tuple[float, np.ndarray, np.ndarray]], start_s: float
) -> tuple[float, np.ndarray, np.ndarray]:
    return max((p for p in periods if p[0] <= start_s), key=lambda p: p[0], default=periods[0])


def _arrivals(window: Window, rng: np.random.Generator) -> np.ndarray:
    """Times of one window: gaps of the window's own distribution."""
    draw = rng.gamma if window.pattern == "Gamma" else lambda k, s, n: s * rng.weibull(k, n)
    times = np.zeros(0)
    num = int(window.rate * WINDOW_S) + 16
    while not len(times) or times[-1] < WINDOW_S:
        gaps = draw(window.shape, window.scale, num)
        times = np.concatenate([times, (times[-1] if len(times) else 0.0) + np.cumsum(gaps)])
    return window.start_s + times[times < WINDOW_S]
