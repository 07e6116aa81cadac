"""A request inside the SGLang model, and the clock that lets decoding requests be left alone.

`clock` counts decode steps. While a request decodes, `outputs - clock` does not change, so its counts are derived:

    outputs    = clock + base                      (stored in `num_outputs` while it does not decode)
    committed  = prompt + outputs - 1              tokens whose keys and values are computed; the newest is not

and both of its events have a known clock value: the step that needs a page, and the step that samples its last token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from labkit.serving.systems.sglang_node import Node
from labkit.serving.systems.sglang_pool import TokenPool
from labkit.serving.systems.sglang_tokens import Tokens
from labkit.workload.base import RequestSpec

#: what the server believes a request may still generate is never more than this (`schedule_policy.py`)
CLIP_MAX_NEW_TOKENS = 4096


@dataclass(slots=True, eq=False)
class Req:
    """Names follow `managers/schedule_batch.py` `Req`: `prefix_len` tokens are in place before a prefill,
    `[prefix_len, extend_end)` is what it computes; `[0, protected_len)` belongs to the tree and is locked at `lock`;
    `inserted_len` was inserted by this request before."""

    spec: RequestSpec
    prompt: Tokens
    max_new_tokens: int
    target_outputs: int
    first_output_token: int
    priority: int = 0
    num_outputs: int = 0
    base: int | None = None
    prefix_len: int = 0
    extend_end: int = 0
    protected_len: int = 0
    inserted_len: int = 0
    num_matched: int = 0
    last_node: Node | None = None
    lock: Node | None = None
    #: length of the token array it was last prepared with (0 until it was looked at once)
    fill_len: int = 0
    queue_entry: int = 0
    processed_at_entry: int = 0
    num_retractions: int = 0
    #: pages it held when it was last sent back
    num_blocks_given: int = 0
    finished: bool = False
    #: clock value of the step that samples its last token, while it decodes
    last_at: int = -1
    #: grows along the running list
    rank: int = 0
    #: ids an executor sampled; without one, outputs are private stand-in ids
    sampled: list[int] | None = None
    #: page ids of positions `[0, ...)`; empty when only counting
    pages: list[int] = field(default_factory=list)
    _known: Tokens | None = None

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    @property
    def num_prompt(self) -> int:
        return self.spec.num_prompt_tokens

    def outputs(self, clock: int) -> int:
        """Tokens sampled so far."""
        return self.num_outputs if self.base is None else clock + self.base

    def seqlen(self, clock: int) -> int:
        """Prompt and outputs, in tokens."""
        return self.spec.num_prompt_tokens + self.outputs(clock)

    def committed(self, clock: int) -> int:
        """Computed tokens: a chunk's end, or all but the newest token."""
        return self.extend_end if self.base is None else self.spec.num_prompt_tokens + clock + self.base - 1

    def num_blocks_held(self, clock: int, pool: TokenPool) -> int:
        """Pages under its computed tokens, those of the tree included; 0 while it waits."""
        return pool.pages_for(self.committed(clock))

    def new_tokens_left(self, clock: int) -> int:
        """The server's estimate of what it may still generate."""
        return min(self.max_new_tokens - self.outputs(clock), CLIP_MAX_NEW_TOKENS)

    def tokens(self, clock: int) -> Tokens:
        """Prompt and outputs."""
        n = self.outputs(clock)
        if n == 0:
            return self.prompt
        if self._known is None or len(self._known) != self.num_prompt + n:
            if self.sampled is not None:
                outputs = np.asarray(self.sampled[:n], dtype=np.int64)
            else:
                outputs = np.arange(self.first_output_token, self.first_output_token + n, dtype=np.int64)
            self._known = np.concatenate((self.prompt, outputs))
        return self._known

    def start_decoding(self, clock: int) -> None:
        """From now on the shared clock counts its outputs."""
        self.base = self.num_outputs - clock
        self.last_at = clock + self.target_outputs - self.num_outputs

    def stop_decoding(self, clock: int) -> None:
        """Its counts stand still again."""
        self.extend_end = self.committed(clock)
        self.num_outputs = self.outputs(clock)
        self.base = None
        self.last_at = -1

    def reset_for_retract(self) -> None:
        """Outputs are kept; everything that was computed is gone."""
        self.num_retractions += 1
        self.prefix_len = self.extend_end = self.protected_len = self.inserted_len = self.num_matched = 0
        self.last_node = self.lock = None
        self.pages = []
