"""Reading `/metrics` text of real servers: one page or a series over time, into one table with the lab's own column names.

Counters that go backwards are a restart: values before it are kept as an offset, so totals keep growing and the column
`restarts` counts. Nothing is guessed: a column that no page has is not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.observe.server_names import columns_by_name, kinds


@dataclass(frozen=True)
class Page:
    """One scrape: `values` by the lab's column; histograms as `ttft_sum`, `ttft_count` and buckets `{le: count}`."""

    where: str
    time_s: float | None
    system: str
    values: dict[str, float]
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)


def read_pages(sources: Iterable[str | Path]) -> list[Page]:
    """Files or `http(s)://` addresses, in the order given. Raises `InputError`, one sentence, for what is not a page."""
    pages = []
    for source in sources:
        text, time_s = (
            _fetch(str(source)) if str(source).startswith(("http://", "https://")) else _read(Path(source))
        )
        pages.extend(parse_pages(text, str(source), time_s))
    return pages


def parse_pages(text: str, where: str, time_s: float | None = None) -> list[Page]:
    """A file may hold several pages, each after a line `# scraped_at SECONDS`."""
    parts: list[tuple[float | None, list[str]]] = [(time_s, [])]
    for row, line in enumerate(text.splitlines(), start=1):
        if line.startswith("# scraped_at"):
            try:
                at = float(line.split()[2])
                if not math.isfinite(at):
                    raise ValueError
            except (IndexError, ValueError):
                raise InputError(where, "is not a time in seconds", row=row, field="scraped_at") from None
            parts.append((at, []))
        else:
            parts[-1][1].append(line)
    chunks = [(at, "\n".join(lines) + "\n") for at, lines in parts if any(line.strip() for line in lines)]
    if not chunks:
        raise InputError(where, "is empty; expected the text of a server's /metrics page")
    return [_parse(chunk, where, at) for at, chunk in chunks]


def _parse(text: str, where: str, time_s: float | None) -> Page:
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    names, systems, num_samples = columns_by_name(), set(), 0
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                num_samples += 1
                if ":" in sample.name:
                    systems.add(sample.name.split(":", 1)[0])
                _keep(sample, names, values, buckets)
    except (ValueError, IndexError, KeyError) as error:
        reason = str(error).splitlines()[0][:80] if str(error) else "a line has no value"
        raise InputError(
            where, f"is not Prometheus text ({reason}); expected a server's /metrics page"
        ) from None
    if not num_samples:
        raise InputError(where, "has no samples; expected the text of a server's /metrics page")
    known = systems & {"vllm", "sglang"}
    if not known:
        raise InputError(
            where, "has no metric of vLLM or SGLang; expected names such as vllm:num_requests_running"
        )
    page = Page(where, time_s, sorted(known)[0], values, buckets)
    _check_ratios(page)
    return page


def _keep(
    sample: Any, names: dict[str, str], values: dict[str, float], buckets: dict[str, dict[float, float]]
) -> None:
    """Sum over labels (engines, finish reasons); gauges that are shares take the largest."""
    for suffix in ("_bucket", "_sum", "_count", ""):
        base = sample.name.removesuffix(suffix) if suffix else sample.name
        column = names.get(base) or names.get(base.removesuffix("_total"))
        if column is not None and (not suffix or sample.name.endswith(suffix)):
            break
    else:
        return
    if suffix == "_bucket":
        edge = float(sample.labels.get("le", "inf"))
        into = buckets.setdefault(column, {})
        into[edge] = into.get(edge, 0.0) + sample.value
    elif column in ("kv_usage", "prefix_hit_ratio"):
        values[column] = max(values.get(column, 0.0), sample.value)
    else:
        key = f"{column}{suffix}"
        values[key] = values.get(key, 0.0) + sample.value


def _check_ratios(page: Page) -> None:
    """Usage and hit ratios lie in [0, 1]; a page that breaks this is refused, since every conclusion would be wrong."""
    values = page.values
    for name in ("kv_usage", "prefix_hit_ratio"):
        if name in values and not 0.0 <= values[name] <= 1.0:
            raise InputError(page.where, f"is {values[name]:g}; a share lies in [0, 1]", field=name)
    hits, queries = values.get("num_prefix_hits"), values.get("num_prefix_queries")
    if hits is not None and queries is not None and hits > queries:
        raise InputError(
            page.where,
            f"is {hits:g} of {queries:g} queries; a hit ratio lies in [0, 1]",
            field="num_prefix_hits",
        )


def series_frame(pages: Sequence[Page]) -> Any:
    """One row a page as a pandas DataFrame, times from 0 on. Counters are cumulative over restarts; `restarts` counts
    them. Raises `InputError` when the clocks of the pages are out of order."""
    import pandas as pd

    if not pages:
        raise InputError("scrape", "no pages; give at least one file or address")
    times = [page.time_s if page.time_s is not None else float(i) for i, page in enumerate(pages)]
    for before, after, page in zip(times, times[1:], pages[1:]):
        if after < before:
            raise InputError(
                page.where,
                f"was scraped at {after:g} s, before the page ahead of it ({before:g} s)",
                field="scraped_at",
            )
    counters = counter_columns()
    offsets: dict[str, float] = {}
    last: dict[str, float] = {}
    rows, restarts = [], 0
    for time_s, page in zip(times, pages):
        cumulative = [key for key in page.values if key in counters or key.endswith(("_sum", "_count"))]
        if any(key in last and page.values[key] < last[key] for key in cumulative):
            restarts += 1
            for key, value in last.items():
                offsets[key] = offsets.get(key, 0.0) + value
            last = {}
        row: dict[str, Any] = {"time_s": time_s - times[0], "system": page.system, "restarts": restarts}
        for key, value in page.values.items():
            row[key] = value + offsets.get(key, 0.0) if key in cumulative else value
        last |= {key: page.values[key] for key in cumulative}
        rows.append(row)
    frame = pd.DataFrame(rows)
    if {"num_prefix_hits", "num_prefix_queries"} <= set(frame.columns):
        frame["prefix_hit_ratio"] = frame["num_prefix_hits"] / frame["num_prefix_queries"].where(
            frame["num_prefix_queries"] > 0
        )
    return frame


def counter_columns() -> set[str]:
    """Columns that only grow while a server lives."""
    every = {**kinds("vllm"), **kinds("sglang")}
    return {column for name, column in columns_by_name().items() if every.get(name) == "counter"}


def _read(path: Path) -> tuple[str, float | None]:
    try:
        return path.read_text(encoding="utf-8"), None
    except FileNotFoundError:
        raise InputError(path, "no such file; give the text of a server's /metrics page") from None
    except (UnicodeDecodeError, OSError):
        raise InputError(path, "cannot be read as text; give the text of a server's /metrics page") from None


def _fetch(url: str) -> tuple[str, float]:
    import time
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode("utf-8", errors="replace"), time.time()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise InputError(
            url, f"cannot be reached ({getattr(error, 'reason', error)}); give a server's /metrics address"
        ) from None
