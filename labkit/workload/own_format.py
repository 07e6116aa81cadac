"""The lab's own request format, for people who bring their own load. CSV or JSON lines; docs/traces.md describes it.

CSV has a header; JSON lines have one object a line; the names are the same:

    arrival_s          seconds since the first request, not decreasing             required
    prompt_tokens      length of the prompt, at least 1                            required
    output_tokens      tokens that will be generated, at least 1                   required
    request_id         text, unique                                                default r0, r1, ...
    max_output_tokens  what the client allows, at least output_tokens              default: not given
    priority           whole number, lower is more urgent                          default 0
    session_id, kind   text                                                        default: none
    prefix_hashes      JSON lines only: one id for each full prompt block, equal where prompts are equal
    prefix_block_size  JSON lines only: tokens in such a block
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from labkit.atomic_file import atomic_path
from labkit.errors import InputError
from labkit.json_text import parse_json
from labkit.workload.base import RequestSpec
from labkit.workload.reading import parse_count, parse_number, read_rows

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("request_id", "max_output_tokens", "priority", "session_id", "kind")
JSON_ONLY = ("prefix_hashes", "prefix_block_size")


def load_own(path: str | Path, limit: int | None = None) -> list[RequestSpec]:
    """The first `limit` requests (None: all) of a `.csv` or `.jsonl` file in the lab's format. Raises `InputError` with row and field."""
    path = Path(path)
    records = _json_records(path) if path.suffix in (".jsonl", ".json", ".ndjson") else _csv_records(path)
    requests: list[RequestSpec] = []
    seen: set[str] = set()
    previous_s = 0.0
    for row, record in records:
        if limit is not None and len(requests) >= limit:
            break
        request = _request(record, path, row, len(requests))
        if request.arrival_s < previous_s:
            raise InputError(path, f"goes back in time ({request.arrival_s:g})", row=row, field="arrival_s")
        if request.request_id in seen:
            raise InputError(
                path, f"{request.request_id!r} is there twice; ids are unique", row=row, field="request_id"
            )
        previous_s = request.arrival_s
        seen.add(request.request_id)
        requests.append(request)
    if not requests:
        raise InputError(path, "has no requests; expected at least one row")
    return requests


def save_own(requests: Iterable[RequestSpec], path: str | Path) -> None:
    """Write JSON lines (`.jsonl`) or CSV, under a temporary name first. CSV cannot hold prefix hashes."""
    path = Path(path)
    as_json = path.suffix in (".jsonl", ".ndjson")
    names = (*REQUIRED, *OPTIONAL)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not as_json:
            writer.writerow(names)
        for request in requests:
            record = _record(request)
            if as_json:
                file.write(json.dumps({k: v for k, v in record.items() if v is not None}) + "\n")
            elif request.prefix_hashes is not None:
                raise InputError(
                    path, "CSV cannot hold prefix hashes; write a .jsonl file", field="prefix_hashes"
                )
            else:
                writer.writerow(["" if record[name] is None else record[name] for name in names])


def _record(request: RequestSpec) -> dict[str, object]:
    return {
        "arrival_s": request.arrival_s,
        "prompt_tokens": request.num_prompt_tokens,
        "output_tokens": request.num_output_tokens,
        "request_id": request.request_id,
        "max_output_tokens": request.max_output_tokens,
        "priority": request.priority,
        "session_id": request.session_id,
        "kind": request.kind or None,
        "prefix_hashes": list(request.prefix_hashes) if request.prefix_hashes is not None else None,
        "prefix_block_size": request.prefix_block_size or None,
    }


def _csv_records(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    rows = read_rows(path)
    row, header_line = next(rows, (1, ""))
    header = [name.strip() for name in next(csv.reader([header_line]), [])]
    _check_names(header, path, row, allowed=(*REQUIRED, *OPTIONAL))
    for row, line in rows:
        try:
            fields = next(csv.reader([line]))
        except csv.Error as error:
            raise InputError(path, f"is not CSV ({error})", row=row) from None
        if len(fields) != len(header):
            raise InputError(path, f"has {len(fields)} fields; the header has {len(header)}", row=row)
        yield row, {name: value.strip() for name, value in zip(header, fields) if value.strip()}


def _json_records(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for row, line in read_rows(path):
        record = parse_json(line, path, "one object a line", row=row)
        if not isinstance(record, dict):
            raise InputError(path, "is not an object; write one object a line", row=row)
        _check_names(list(record), path, row, allowed=(*REQUIRED, *OPTIONAL, *JSON_ONLY))
        yield row, {name: value for name, value in record.items() if value is not None}


def _check_names(names: list[str], path: Path, row: int, allowed: tuple[str, ...]) -> None:
    for name in REQUIRED:
        if name not in names:
            raise InputError(path, f"is missing; required are {', '.join(REQUIRED)}", row=row, field=name)
    for name in names:
        if names.count(name) > 1:
            raise InputError(path, "is there twice; each name once", row=row, field=name)
        if name not in allowed:
            raise InputError(
                path, f"is not known; accepted are {', '.join(allowed)}", row=row, field=name or "(empty)"
            )


def _request(record: Mapping[str, object], path: Path, row: int, index: int) -> RequestSpec:
    for name in REQUIRED:
        if name not in record:
            raise InputError(path, "is empty; a value is required", row=row, field=name)
    num_output = parse_count(record["output_tokens"], path, row, "output_tokens", minimum=1)
    num_prompt = parse_count(record["prompt_tokens"], path, row, "prompt_tokens", minimum=1)
    maximum = None
    if "max_output_tokens" in record:
        maximum = parse_count(record["max_output_tokens"], path, row, "max_output_tokens", minimum=1)
        if maximum < num_output:
            raise InputError(
                path,
                f"is {maximum}, less than output_tokens {num_output}",
                row=row,
                field="max_output_tokens",
            )
    hashes, block_size = _prefix(record, path, row, num_prompt)
    return RequestSpec(
        request_id=str(record.get("request_id", f"r{index}")),
        arrival_s=parse_number(record["arrival_s"], path, row, "arrival_s", minimum=0.0),
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        max_output_tokens=maximum,
        prefix_hashes=hashes,
        prefix_block_size=block_size,
        priority=parse_count(record.get("priority", 0), path, row, "priority", minimum=-(1 << 31)),
        session_id=str(record["session_id"]) if "session_id" in record else None,
        kind=str(record.get("kind", "")),
    )


def _prefix(
    record: Mapping[str, object], path: Path, row: int, num_prompt: int
) -> tuple[list[int] | None, int]:
    if "prefix_hashes" not in record:
        return None, 0
    block_size = parse_count(record.get("prefix_block_size"), path, row, "prefix_block_size", minimum=1)
    hashes = record["prefix_hashes"]
    if not isinstance(hashes, list):
        raise InputError(path, "is not a list; write whole numbers in [ ]", row=row, field="prefix_hashes")
    ids = [parse_count(value, path, row, "prefix_hashes", minimum=-(1 << 63)) for value in hashes]
    if len(ids) > -(-num_prompt // block_size):
        raise InputError(
            path,
            f"has {len(ids)} blocks of {block_size} for {num_prompt} tokens",
            row=row,
            field="prefix_hashes",
        )
    return ids, block_size
