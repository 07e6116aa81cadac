"""A request inside the TensorRT-LLM model (`batch_manager/llmRequest.h`)."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

from labkit.serving.systems.vllm_decoding import DECODE
from labkit.workload.base import RequestSpec

QUEUED, CONTEXT, GENERATION, DONE = 0, 1, DECODE, 4
STATE_NAMES = {QUEUED: "queued", CONTEXT: "context", GENERATION: "generation", DONE: "done"}


class TensorRtLlmRequest:
    """`prompt` grows when it is paused: the tokens generated so far join it, and the context starts over. `total` is the
    prompt and all it may generate, `end` where it will really stop. `computed` tokens have KV; in the GENERATION state it
    and `num_tokens` stand still and `offset` tells them (`vllm_decoding`). `seq` is its place in the active list.

    `reusable` is the capacity stage's estimate of tokens that need no computing, valid for its first context chunk.
    """

    __slots__ = (
        "arrival_s", "chunk", "computed", "end", "first_s", "gap_from_s", "id", "keys", "last_step", "num_pauses", "num_prompt",
        "num_tokens", "offset", "private", "prompt", "reusable", "seq", "spec", "state", "table", "tokens", "total",
    )  # fmt: skip

    def __init__(self, spec: RequestSpec, seq: int, max_seq_len: int | None):
        allowed = spec.max_output_tokens if spec.max_output_tokens is not None else spec.num_output_tokens
        self.spec, self.id, self.seq, self.arrival_s = spec, spec.request_id, seq, spec.arrival_s
        self.num_prompt = self.prompt = self.num_tokens = spec.num_prompt_tokens
        self.total = self.prompt + allowed
        if max_seq_len is not None:
            self.total = min(self.total, max_seq_len)
        self.end = min(self.total, self.prompt + spec.num_output_tokens)
        self.state = QUEUED
        self.computed = self.offset = self.last_step = self.num_pauses = self.reusable = self.chunk = 0
        self.table: list[int] = []
        self.tokens: list[int] | None = None
        self.keys: Sequence[int] | MutableSequence[int] = ()
        self.private = False
        self.first_s = self.gap_from_s = -1.0  # written by a loop that keeps times

    @property
    def is_first_chunk(self) -> bool:
        """Nothing of it is computed, and it holds no blocks."""
        return not self.table and self.computed == 0

    def __repr__(self) -> str:
        return f"{self.id}({STATE_NAMES[self.state]}, {self.computed}/{self.num_tokens} of {self.end})"
