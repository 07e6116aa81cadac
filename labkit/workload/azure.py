"""Azure LLM inference traces of 2023 (conversation and code): one row a request, lengths in tokens.

The files have CRLF line ends, no newline after the last row, timestamps with seven fractional digits, and naive local
time. Source: Azure/AzurePublicDataset, `data/AzureLLMInferenceTrace_{conv,code}.csv`, CC-BY-4.0.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from labkit.errors import InputError
from labkit.workload.base import RequestSpec
from labkit.workload.reading import parse_count, read_rows

TICKS_PER_S = 10_000_000
HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def load_azure(path: str | Path, limit: int | None = None) -> list[RequestSpec]:
    """The first `limit` requests (None: all) in file order; the first one arrives at 0 s. Raises `InputError` with row and field."""
    path = Path(path)
    rows = read_rows(path)
    _, header = next(rows, (0, ""))
    if tuple(header.split(",")) != HEADER:
        raise InputError(path, f"the header is {header[:80]!r}; expected {','.join(HEADER)!r}", row=1)
    requests: list[RequestSpec] = []
    start = previous = 0
    for row, line in rows:
        if limit is not None and len(requests) >= limit:
            break
        fields = line.split(",")
        if len(fields) != len(HEADER):
            raise InputError(path, f"has {len(fields)} fields; expected {len(HEADER)}", row=row)
        ticks = _ticks(fields[0], path, row)
        if not requests:
            start = previous = ticks
        if ticks < previous:
            raise InputError(
                path, f"goes back in time ({fields[0]}); rows are in time order", row=row, field="TIMESTAMP"
            )
        previous = ticks
        requests.append(
            RequestSpec(
                request_id=f"r{len(requests)}",
                arrival_s=(ticks - start) / TICKS_PER_S,
                num_prompt_tokens=parse_count(fields[1], path, row, "ContextTokens", minimum=1),
                num_output_tokens=parse_count(fields[2], path, row, "GeneratedTokens", minimum=1),
            )
        )
    if not requests:
        raise InputError(path, "has a header and no requests; expected at least one row")
    return requests


def _ticks(text: str, path: Path, row: int) -> int:
    """`2023-11-16 18:15:46.6805900` in units of 100 ns. `datetime` knows six fractional digits, so the fraction is
    added here; as an integer, since seconds since year 1 in a float are only good to 8 microseconds."""
    whole, _, fraction = text.partition(".")
    try:
        if fraction and not (fraction.isascii() and fraction.isdecimal() and len(fraction) <= 7):
            raise ValueError
        moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        raise InputError(
            path, f"is {text!r}; expected YYYY-MM-DD HH:MM:SS.fffffff", row=row, field="TIMESTAMP"
        ) from None
    seconds = moment.toordinal() * 86400 + moment.hour * 3600 + moment.minute * 60 + moment.second
    return seconds * TICKS_PER_S + int(fraction.ljust(7, "0"))
