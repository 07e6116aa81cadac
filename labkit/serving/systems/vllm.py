"""vLLM v1 (0.33), decision for decision: one full-attention group, no speculation, LoRA, connector or multimodal input.

`VllmScheduler(num_gpu_blocks=..., max_num_batched_tokens=..., ...)` takes vLLM's own option names (`vllm_options`).

| file | holds |
| --- | --- |
| `vllm_options` | option names, ranges, contradictions |
| `vllm_request` | a request, the waiting queue |
| `vllm_content` | what a block contains, as an integer |
| `vllm_blocks` | free queue and prefix cache |
| `vllm_decoding` | decoding requests without touching them in every step |
| `vllm_state` | everything between steps; preempt, finish |
| `vllm_steps` | the decisions of one step |
| `vllm` | the lab's `Scheduler` contract on top |

Rules and their source: docs/systems/vllm.md. The same rules, walked plainly: tests/reference/vllm_plain.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from labkit.errors import LabError
from labkit.serving.base import (
    Admitted,
    Chunk,
    Preempted,
    Scheduler,
    StepOutcome,
    StepPlan,
    StepResult,
    WaitingReason,
)
from labkit.serving.systems.outcome import keep_sampled, outcome_of
from labkit.serving.systems.vllm_options import VllmOptions
from labkit.serving.systems.vllm_request import DECODE, WAITING, VllmRequest
from labkit.serving.systems.vllm_steps import VllmSteps
from labkit.workload.base import RequestSpec


class VllmScheduler(VllmSteps, Scheduler):
    """`VllmScheduler(num_gpu_blocks=4096, max_num_seqs=64)`, or with a mapping, or with `VllmOptions`.

    `record_chunks` fills `StepPlan.chunks`, block tables included. `refuse=False` takes requests that can never fit and
    then waits for ever, as the real scheduler does. `publish_all=True` also enters content in the prefix cache that nobody
    can ask for (same decisions, slower).

    With `async_scheduling`, `update` of step s reports what step s-1 sampled: `schedule` ran before that was known.
    """

    name = "vllm"

    def __init__(
        self,
        options: VllmOptions | Mapping[str, Any] | None = None,
        *,
        record_chunks: bool = False,
        refuse: bool = True,
        publish_all: bool = False,
        **named: Any,
    ):
        if isinstance(options, VllmOptions):
            options = asdict(options)
        super().__init__(VllmOptions.parse({**(options or {}), **named}, strict=refuse))
        self.record_chunks, self.refuse, self.publish_all = record_chunks, refuse, publish_all

    def add(self, spec: RequestSpec) -> str | None:
        if spec.request_id in self.requests:
            raise LabError(f"request id {spec.request_id!r} is already in the system; ids must differ")
        r = VllmRequest(spec, self.num_arrived, self.max_len)
        reason = self.refusal(r) if self.refuse else None
        if reason:
            return reason
        self.num_arrived += 1
        self.contents.open(r, keep_private=not self.publish_all)
        self.requests[r.id] = r
        self.waiting.append(r)
        return None

    def refusal(self, r: VllmRequest) -> str | None:
        """Why `r` can never run to its end, or None. The real scheduler would spin on it for ever."""
        usable = self.options.num_gpu_blocks - 1
        if r.num_prompt >= self.max_len:
            return f"the prompt of {r.id} has {r.num_prompt} tokens and max_model_len={self.max_len} must also hold an output"
        if not self.options.enable_chunked_prefill and r.num_prompt > self.options.budget:
            return (
                f"the prompt of {r.id} has {r.num_prompt} tokens, a step schedules {self.options.budget}, "
                "and enable_chunked_prefill is off"
            )
        if self.blocks_for(r.end - 1) > usable:
            return (
                f"{r.id} grows to {self.blocks_for(r.end - 1)} blocks of {self.block_size} tokens "
                f"and the pool has {usable}"
            )
        return None

    def has_work(self) -> bool:
        return bool(self.running) or bool(self.waiting)

    def schedule(self) -> StepPlan:
        self.decide()
        plan = StepPlan(
            step=self.decoding.step,
            num_scheduled_tokens=self.num_decodes + self.num_chunk_tokens,
            num_prefill_tokens=self.num_chunk_tokens,
            num_decode_requests=self.num_decodes,
            num_running=len(self.running),
            num_kv_tokens_read=self.num_kv_tokens,
        )
        if self.chunks:
            pairs = sum(n * (2 * r.computed + n + 1) for r, n in self.chunks.items())
            plan.num_prefill_pairs = pairs // 2
        if self.admitted:
            plan.admitted = [Admitted(r.id, r.computed, r.num_preemptions > 0) for r in self.admitted]
        if self.preempted:
            plan.preempted = [
                Preempted(v.request.id, v.num_blocks, v.num_computed_tokens) for v in self.preempted
            ]
        if self.record_chunks:
            plan.chunks = self._chunks_of_step()
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> StepOutcome:
        if result.tokens:
            keep_sampled(self.requests, result.tokens)
        self.advance()
        return outcome_of(self.started, self.finished)

    def why_waiting(self, request_id: str) -> WaitingReason:
        r = self.requests.get(request_id)
        if r is None or r.state != WAITING:
            raise LabError(
                f"request {request_id!r} does not wait; it is {'running' if r else 'not in the system'}"
            )
        hit = self.cached_prefix(r)
        rest = r.num_tokens - len(hit) * self.block_size
        left = self.options.budget - self.num_decodes - self.num_chunk_tokens
        needed = self.blocks_at_admission(r, hit, self.blocks_for(r.num_tokens) - len(hit))
        num_free, num_evictable = len(self.pool.blank), self.pool.num_evictable
        head = self.waiting.peek()
        if len(self.running) >= self.max_running:
            limit, why = "max_num_seqs", f"{len(self.running)} requests run, and no more may"
        elif self.preempted:
            limit, why = "preemption", "a step that preempts admits nobody"
        elif head is not r:
            limit, why = "head_of_line", f"{head.id} waits before it, and nobody overtakes"
        elif needed > num_free + num_evictable:
            limit, why = (
                "blocks",
                f"its {r.num_tokens} known tokens need {needed} blocks"
                + (" with the watermark" if self.options.watermark_blocks and self.running else ""),
            )
        elif left <= 0 or (rest > left and not self.options.enable_chunked_prefill):
            limit, why = "token_budget", f"the step has {max(left, 0)} of {self.options.budget} tokens left"
        else:
            limit, why = "none", "nothing holds it back, the next step admits it"
        fits = self.refusal(r) is None
        return WaitingReason(
            request_id=request_id,
            num_needed_blocks=needed,
            num_free_blocks=num_free,
            num_evictable_blocks=num_evictable,
            limit=limit,
            can_ever_fit=fits,
            sentence=f"{request_id} waits: {why} ({num_free} blocks free, {num_evictable} evictable)"
            + ("." if fits else "; it can never fit."),
        )

    def _chunks_of_step(self) -> list[Chunk]:
        """In schedule order, which is the order of the running list."""
        chunks, skipped = [], set(self.passed_over)
        for r in self.running:
            if r.state == DECODE:
                if r not in skipped:
                    chunks.append(Chunk(r.id, self.computed(r), 1, True, tuple(r.table)))
            elif r in self.chunks:
                n = self.chunks[r]
                chunks.append(Chunk(r.id, r.computed, n, r.computed + n == r.num_tokens, tuple(r.table)))
        return chunks
