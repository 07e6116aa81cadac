"""Lengths of agent sessions derived from the LMCache agent trace: every number is in **characters**, not tokens.

Source: lengths computed from LMCache/lmcache-agent-trace, Apache-2.0. A step of a session repeats most of the text of
the step before (`prefix_reused_chars`). `chars_per_token` turns characters into tokens; 4 is the usual rule of thumb
for English text and code, and a load made with it is an estimate.
"""

from __future__ import annotations

from pathlib import Path

from labkit.errors import InputError, LabError
from labkit.workload.base import RequestSpec
from labkit.workload.reading import parse_count, read_rows

HEADER = ("agent", "session", "step", "t_us", "input_chars", "prefix_reused_chars", "output_chars")
BLOCK_TOKENS = 16


def load_lmcache_lengths(
    path: str | Path, limit: int | None = None, *, chars_per_token: float = 4.0
) -> list[RequestSpec]:
    """The first `limit` agent steps (None: all) in order of time; sessions start together, as the file gives times from
    each session's start.

    `prefix_hashes` has an id for each full 16-token block of the prompt; the blocks inside `prefix_reused_chars` are
    those of the session's previous step. Raises `InputError` with row and field.
    """
    path = Path(path)
    if not chars_per_token > 0:
        raise LabError(f"chars_per_token is {chars_per_token}; it must be above 0")
    rows = read_rows(path)
    _, header = next(rows, (0, ""))
    if tuple(header.split(",")) != HEADER:
        raise InputError(path, f"the header is {header[:80]!r}; expected {','.join(HEADER)!r}", row=1)
    requests: list[RequestSpec] = []
    previous_blocks: dict[str, list[int]] = {}
    next_hash = 0
    for row, line in rows:
        fields = line.split(",")
        if len(fields) != len(HEADER):
            raise InputError(path, f"has {len(fields)} fields; expected {len(HEADER)}", row=row)
        agent, session = fields[0], fields[1]
        step, t_us, input_chars, reused_chars, output_chars = (
            parse_count(value, path, row, name) for name, value in zip(HEADER[2:], fields[2:])
        )
        if reused_chars > input_chars:
            raise InputError(
                path,
                f"is {reused_chars}, more than input_chars {input_chars}",
                row=row,
                field="prefix_reused_chars",
            )
        num_prompt = max(1, round(input_chars / chars_per_token))
        num_shared = int(reused_chars / chars_per_token) // BLOCK_TOKENS
        blocks = previous_blocks.get(session, [])[:num_shared]
        num_new = num_prompt // BLOCK_TOKENS - len(blocks)
        blocks = blocks + list(range(next_hash, next_hash + max(0, num_new)))
        next_hash += max(0, num_new)
        previous_blocks[session] = blocks
        requests.append(
            RequestSpec(
                request_id=f"{session}-{step}",
                arrival_s=t_us / 1e6,
                num_prompt_tokens=num_prompt,
                num_output_tokens=max(1, round(output_chars / chars_per_token)),
                prefix_hashes=blocks,
                prefix_block_size=BLOCK_TOKENS,
                session_id=session,
                kind=agent,
            )
        )
    if not requests:
        raise InputError(path, "has a header and no requests; expected at least one row")
    requests.sort(key=lambda r: r.arrival_s)
    return requests if limit is None else requests[:limit]
