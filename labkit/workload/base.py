"""One request as a load describes it, before any scheduler has seen it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class RequestSpec:
    """What arrives. Token counts, seconds.

    `num_output_tokens` is what the request will really generate (known to the load, not to the scheduler);
    `max_output_tokens` is what the client allows (the scheduler may only look at this one).
    `prompt_token_ids` is None where a trace has only lengths; then `prefix_hashes` may say which full prompt blocks
    are shared (`prefix_block_size` tokens each), and otherwise every prompt is private.
    """

    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    max_output_tokens: int | None = None
    prompt_token_ids: Sequence[int] | None = None
    prefix_hashes: Sequence[int] | None = None
    prefix_block_size: int = 0
    priority: int = 0
    session_id: str | None = None
    kind: str = ""
