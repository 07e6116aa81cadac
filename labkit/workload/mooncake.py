"""Mooncake conversation trace (FAST'25 release): lengths, and which 512-token blocks of the prompts are equal.

`timestamp` is in milliseconds, on ticks of 3 s. `hash_ids` are chained: equal ids mean equal text from the start of
the prompt to the end of that block; the partly filled last block has an id too. Source: kvcache-ai/Mooncake,
`FAST25-release/traces/conversation_trace.jsonl`, Apache-2.0.
"""

from __future__ import annotations

from pathlib import Path

from labkit.errors import InputError
from labkit.json_text import parse_json
from labkit.workload.base import RequestSpec
from labkit.workload.reading import parse_count, parse_number, read_rows

BLOCK_SIZE = 512
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


def load_mooncake(
    path: str | Path, limit: int | None = None, *, partial_blocks: bool = False
) -> list[RequestSpec]:
    """The first `limit` requests (None: all) in file order. `prefix_hashes` has one id a full 512-token block, as the contract of `RequestSpec` has
    it; with `partial_blocks` also the id of the partly filled last block. Raises `InputError`."""
    path = Path(path)
    requests: list[RequestSpec] = []
    previous_s = 0.0
    for row, line in read_rows(path):
        if limit is not None and len(requests) >= limit:
            break
        request = _request(line, path, row, len(requests), partial_blocks)
        if request.arrival_s < previous_s:
            raise InputError(path, "goes back in time; rows are in time order", row=row, field="timestamp")
        previous_s = request.arrival_s
        requests.append(request)
    if not requests:
        raise InputError(path, "has no requests; expected at least one row")
    return requests


def _request(line: str, path: Path, row: int, index: int, partial_blocks: bool) -> RequestSpec:
    record = parse_json(line, path, "one object a line", row=row)
    if not isinstance(record, dict):
        raise InputError(path, "is not an object; expected one object a line", row=row)
    for name in FIELDS:
        if name not in record:
            raise InputError(path, f"is missing; required are {', '.join(FIELDS)}", row=row, field=name)
    num_prompt = parse_count(record["input_length"], path, row, "input_length", minimum=1)
    hashes = record["hash_ids"]
    if not isinstance(hashes, list) or not all(type(h) is int for h in hashes):
        raise InputError(path, "is not a list of whole numbers", row=row, field="hash_ids")
    num_blocks = -(-num_prompt // BLOCK_SIZE)
    if len(hashes) != num_blocks:
        raise InputError(
            path,
            f"has {len(hashes)} ids; {num_prompt} tokens are {num_blocks} blocks of {BLOCK_SIZE}",
            row=row,
            field="hash_ids",
        )
    return RequestSpec(
        request_id=f"r{index}",
        arrival_s=parse_number(record["timestamp"], path, row, "timestamp", minimum=0.0) / 1000.0,
        num_prompt_tokens=num_prompt,
        num_output_tokens=parse_count(record["output_length"], path, row, "output_length", minimum=1),
        prefix_hashes=hashes if partial_blocks else hashes[: num_prompt // BLOCK_SIZE],
        prefix_block_size=BLOCK_SIZE,
    )
