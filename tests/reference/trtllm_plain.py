"""TensorRT-LLM's step as plainly as it can be said: both stages walk the whole list, blocks are only counted.

The readable statement of the rules of `labkit.serving.systems.tensorrt_llm` (docs/systems/tensorrt_llm.md), without block reuse;
a property test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class PlainRequest:
    id: str
    prompt: int
    total: int  # prompt and all it may generate
    end: int  # where it really stops
    known: int  # prompt and generated tokens
    kv: int = 0
    blocks: int = 0
    chunk: int = 0

    @property
    def in_context(self) -> bool:
        return self.kv < self.prompt

    @property
    def is_started(self) -> bool:
        return self.kv > 0


class PlainTrtllm:
    def __init__(self, options: dict[str, Any]):
        self.o = options
        self.size = options["tokens_per_block"]
        self.free = options["num_blocks"]
        self.active: list[PlainRequest] = []

    def add(self, id: str, prompt: int, outputs: int, max_outputs: int) -> None:
        self.active.append(PlainRequest(id, prompt, prompt + max_outputs, prompt + outputs, prompt))

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def step(self) -> dict[str, Any]:
        fitting, paused = self.capacity()
        contexts, decodes = self.micro_batch(fitting)
        for r in paused:
            self.free += r.blocks
            r.blocks = r.kv = 0
            r.prompt = r.known
        ran = []
        for r in contexts:
            need = self.blocks(r.prompt) - r.blocks if r.kv == 0 else 0
            self.take(r, need)
            ran.append([r.id, r.kv, r.chunk])
        for r in decodes:
            self.take(r, self.blocks(r.kv + 1) - r.blocks)
        free = self.free
        for r in contexts:
            r.kv += r.chunk
        for r in decodes:
            r.kv += 1
        finished = []
        for r in list(self.active):
            if (r in contexts and not r.in_context) or r in decodes:
                r.known += 1
                if r.known == r.end:
                    self.active.remove(r)
                    self.free += r.blocks
                    finished.append(r.id)
        return {
            "fitting": [r.id for r in fitting], "paused": [r.id for r in paused], "context": ran,
            "generation": [r.id for r in decodes], "free_after_prepare": free, "finished": finished, "free_end": self.free,
        }  # fmt: skip

    def take(self, r: PlainRequest, need: int) -> None:
        assert need <= self.free, f"{r} takes {need} blocks of {self.free}"
        r.blocks += need
        self.free -= need

    def capacity(self) -> tuple[list[PlainRequest], list[PlainRequest]]:
        limit, policy = self.o["max_num_requests"], self.o["capacity_scheduler_policy"]
        if policy == "MAX_UTILIZATION":
            return self.max_utilization(limit)
        fitting = [r for r in self.active if not r.in_context][:limit]
        left = self.free - sum(self.blocks(r.total) - r.blocks for r in fitting)
        if policy == "STATIC_BATCH" and fitting:
            return fitting, []
        for r in self.active:
            if r.in_context:
                need = self.blocks(r.total) - r.blocks
                if len(fitting) >= limit or need > left:
                    break
                fitting.append(r)
                left -= need
        return fitting, []

    def max_utilization(self, limit: int) -> tuple[list[PlainRequest], list[PlainRequest]]:
        rest, fitting, paused = list(self.active), [], []
        free, taken = self.free, 0
        while rest:
            need = self.one_step(rest[0])
            if len(fitting) < limit and taken + need <= free:
                taken += need
                fitting.append(rest.pop(0))
                continue
            started = [r for r in rest if r.is_started]
            if not started:
                break
            paused.append(started[-1])
            free += started[-1].blocks
            rest = rest[: rest.index(started[-1])]
        return fitting, paused

    def one_step(self, r: PlainRequest) -> int:
        if r.in_context:
            return 0 if r.is_started else self.blocks(r.prompt)
        ahead = min(2 if self.o["two_step_lookahead"] else 1, r.total - r.kv)
        return self.blocks(r.kv + ahead) - self.blocks(r.kv)

    def micro_batch(self, fitting: list[PlainRequest]) -> tuple[list[PlainRequest], list[PlainRequest]]:
        contexts, decodes, tokens = [], [], 0
        for r in fitting:
            cost = r.prompt - r.kv if r.in_context else 1
            if not (r.in_context and self.o["enable_chunked_prefill"]):
                if tokens + cost > self.o["max_num_tokens"]:
                    break
                tokens += cost
            r.chunk = cost
            (contexts if r.in_context else decodes).append(r)
            if len(contexts) + len(decodes) >= self.o["max_batch_size"]:
                break
        left = self.o["max_num_tokens"] - tokens
        if not self.o["enable_chunked_prefill"] or sum(r.chunk for r in contexts) <= left:
            return contexts, decodes
        unit = self.o["chunk_unit_size"]
        if self.o["context_chunking_policy"] == "FIRST_COME_FIRST_SERVED":
            for r in contexts:
                if r.chunk > left:
                    r.chunk = left // unit * unit
                left -= r.chunk
        else:
            for r in contexts:
                r.chunk = 0
            grown = True
            while left and grown:
                grown = False
                for r in contexts:
                    more = min(unit, r.prompt - r.kv - r.chunk)
                    if 0 < more <= left:
                        r.chunk += more
                        left -= more
                        grown = True
        contexts = [r for r in contexts if r.chunk]
        return sorted(contexts, key=lambda r: r.kv + r.chunk == r.prompt), decodes
