"""A request inside the lab's scheduler: what the load asked for, and how far it has come.

Three counts tell where it stands (tokens):

    known     prompt + outputs so far
    computed  their keys and values are in the cache: [0, computed)
    placed    slots the cache manager has handed out: [0, placed), placed >= computed while it prefills

A decoding request has `computed == known - 1`: the next step computes its newest token and samples one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from labkit.workload.base import RequestSpec

Status = Literal["waiting", "prefilling", "decoding", "stalled", "swapped", "finished"]


@dataclass(slots=True, eq=False)
class Request:
    """`max_output_tokens` is what a scheduler may look at; `target_output_tokens` is where the load will really stop
    (never more than the maximum). `arrival` numbers arrivals, `seq` admissions (the order of the running set)."""

    spec: RequestSpec
    arrival: int
    arrival_step: int
    max_output_tokens: int
    target_output_tokens: int
    status: Status = "waiting"
    seq: int = -1
    num_computed_tokens: int = 0
    num_placed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_skips: int = 0
    #: sampled tokens, kept only when an executor returns them
    output_token_ids: list[int] = field(default_factory=list)
    #: how many of them the cache manager knows; -1 when it does not know the prompt either
    num_told_ids: int = -1
    #: bookkeeping of `DecodeTable`: computed - clock while decoding, and the clock values of its two events
    offset: int = 0
    due_at: int = -1
    last_at: int = -1
    #: tokens that the admission part has promised it (reservation)
    committed_tokens: int = 0

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    @property
    def num_prompt_tokens(self) -> int:
        return self.spec.num_prompt_tokens

    @property
    def num_known_tokens(self) -> int:
        """Valid while it does not decode (a decoding request is known to `DecodeTable` only)."""
        return self.spec.num_prompt_tokens + self.num_output_tokens

    @property
    def max_tokens(self) -> int:
        """Prompt and allowed output together."""
        return self.spec.num_prompt_tokens + self.max_output_tokens

    def token_ids(self) -> Sequence[int] | None:
        """Known tokens for a prefix lookup; None when the load does not say them."""
        prompt = self.spec.prompt_token_ids
        if prompt is None or not self.output_token_ids:
            return prompt
        return [*prompt, *self.output_token_ids]

    def untold_token_ids(self) -> Sequence[int]:
        """Sampled tokens that continue what the cache manager knows, so that it can find them later."""
        if self.num_told_ids < 0 or self.num_told_ids >= len(self.output_token_ids):
            return ()
        new = self.output_token_ids[self.num_told_ids :]
        self.num_told_ids = len(self.output_token_ids)
        return new
