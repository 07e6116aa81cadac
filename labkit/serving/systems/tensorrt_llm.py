"""TensorRT-LLM's Python schedulers (`_torch/pyexecutor/scheduler/scheduler.py` @002f3cc3), decision for decision.

| part | where from | recordings confirm it |
| --- | --- | --- |
| capacity policies, micro-batch scheduler, deferral | the Python source, executed for the recordings | yes |
| block counts, pause, reuse of full blocks | C++ sources, read; the recordings were made with a stub of these rules | the counts, given the stub |
| block ids, eviction order, what is evicted together | C++ sources, read only | no |
| overlapped executor loop, partial-block reuse, priorities, host pool, beams, drafts, LoRA | not modelled | |

`TensorRtLlmScheduler(num_blocks=..., max_batch_size=..., ...)` takes its own option names (`tensorrt_llm_options`).
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
from labkit.serving.systems.tensorrt_llm_options import TensorRtLlmOptions
from labkit.serving.systems.tensorrt_llm_request import CONTEXT, GENERATION, QUEUED, TensorRtLlmRequest
from labkit.serving.systems.tensorrt_llm_steps import Steps
from labkit.workload.base import RequestSpec


class TensorRtLlmScheduler(Steps, Scheduler):
    """`record_chunks` fills `StepPlan.chunks`, block tables included. `refuse=False` takes requests that can never fit."""

    name = "tensorrt_llm"

    def __init__(
        self,
        options: TensorRtLlmOptions | Mapping[str, Any] | None = None,
        *,
        record_chunks: bool = False,
        refuse: bool = True,
        **named: Any,
    ):
        if isinstance(options, TensorRtLlmOptions):
            options = asdict(options)
        super().__init__(TensorRtLlmOptions.parse({**(options or {}), **named}))
        self.record_chunks, self.refuse = record_chunks, refuse

    def add(self, spec: RequestSpec) -> str | None:
        if spec.request_id in self.requests:
            raise LabError(f"request id {spec.request_id!r} is already in the system; ids must differ")
        r = TensorRtLlmRequest(spec, self.num_arrived, self.options.max_seq_len)
        reason = self.refusal(r) if self.refuse else None
        if reason:
            return reason
        self.num_arrived += 1
        self.contents.open(r, keep_private=True)
        self.requests[r.id] = r
        self.queued.append(r)
        return None

    def refusal(self, r: TensorRtLlmRequest) -> str | None:
        """Why `r` can never run to its end, or None."""
        longest = self.options.max_seq_len
        if longest is not None and r.num_prompt >= longest:
            return f"the prompt of {r.id} has {r.num_prompt} tokens and max_seq_len={longest} must also hold an output"
        if not self.options.enable_chunked_prefill and r.num_prompt > self.options.max_num_tokens:
            return (
                f"the prompt of {r.id} has {r.num_prompt} tokens, max_num_tokens={self.options.max_num_tokens}, "
                "and enable_chunked_prefill is off"
            )
        # a paused request may have to restart with all but its last token
        need = self.blocks_for(r.end if self.max_utilization else r.total)
        if self.has_kv and need > self.pool.num_blocks:
            return f"{r.id} may need {need} blocks of {self.block_size} tokens and the pool has {self.pool.num_blocks}"
        return None

    def has_work(self) -> bool:
        return bool(self.requests)

    def schedule(self) -> StepPlan:
        self.decide()
        plan = StepPlan(
            step=self.decoding.step,
            num_scheduled_tokens=self.num_decodes + self.num_chunk_tokens,
            num_prefill_tokens=self.num_chunk_tokens,
            num_decode_requests=self.num_decodes,
            num_running=self.num_decodes + len(self.chunks),
            num_kv_tokens_read=self.num_kv_tokens,
        )
        if self.chunks:
            plan.num_prefill_pairs = sum(n * (2 * r.computed + n + 1) for r, n in self.chunks.items()) // 2
        if self.admitted:
            plan.admitted = [Admitted(r.id, r.computed, r.num_pauses > 0) for r in self.admitted]
        if self.preempted:
            plan.preempted = [Preempted(p.request.id, p.num_blocks, p.num_computed) for p in self.preempted]
        if self.record_chunks:
            plan.chunks = [
                Chunk(r.id, r.computed, n, r.computed + n == r.prompt, tuple(r.table))
                for r, n in self.chunks.items()
            ] + [Chunk(r.id, self.computed(r), 1, True, tuple(r.table)) for r in self.generating()]
        return plan

    def generating(self) -> list[TensorRtLlmRequest]:
        """Those that generate in the step being decided, in list order."""
        skipped = set(self.passed_over)
        return [r for r in self.active if r.state == GENERATION and r not in skipped]

    def update(self, plan: StepPlan, result: StepResult) -> StepOutcome:
        if result.tokens:
            keep_sampled(self.requests, result.tokens)
        self.advance()
        return outcome_of(self.started, self.finished)

    def why_waiting(self, request_id: str) -> WaitingReason:
        """For a request that holds no blocks yet (or any more)."""
        r = self.requests.get(request_id)
        if r is None or not (r.state == QUEUED or (r.state == CONTEXT and r.is_first_chunk)):
            raise LabError(
                f"request {request_id!r} does not wait; it is {'running' if r else 'not in the system'}"
            )
        available = self.pool.num_free - (0 if self.max_utilization else self.reserved_blocks)
        need = self.blocks_for(r.prompt) if self.max_utilization else self.blocks_to_completion(r)
        need = need if self.has_kv else 0
        num_running = self.num_decodes + len([c for c in self.contexts if not c.is_first_chunk])
        ahead = next((c for c in self.contexts if c is not r and c.is_first_chunk and c.seq < r.seq), None)
        if r.state == QUEUED and self.options.max_num_active_requests is not None:
            limit, why = "max_num_active_requests", f"{len(self.active)} requests are active, and no more may"
        elif num_running >= self.options.request_limit:
            limit, why = "max_num_requests", f"{num_running} requests run, and no more may"
        elif self.has_kv and need > available:
            to_end = "for one step" if self.max_utilization else "to run to its end"
            limit, why = (
                "blocks",
                f"it needs {need} blocks {to_end} and {max(available, 0)} are not promised to others",
            )
        elif (
            self.has_kv
            and not self.max_utilization
            and self.options.capacity_scheduler_policy == "STATIC_BATCH"
            and num_running
        ):
            limit, why = "static_batch", "a static batch takes nobody while one of it generates"
        elif self.has_kv and self._deferred(r, self._contributed()):
            limit, why = "deferred", "a running request is about to store a block that it can reuse"
        elif ahead is not None:
            limit, why = "head_of_line", f"{ahead.id} waits before it"
        elif self.options.max_num_tokens <= self.num_decodes + self.num_chunk_tokens:
            limit, why = "max_num_tokens", f"the step has no token of {self.options.max_num_tokens} left"
        else:
            limit, why = "none", "nothing holds it back, the next step may take it"
        evictable = self.pool.num_evictable
        fits = self.refusal(r) is None
        return WaitingReason(
            request_id=request_id,
            num_needed_blocks=need,
            num_free_blocks=self.pool.num_free - evictable,
            num_evictable_blocks=evictable,
            limit=limit,
            can_ever_fit=fits,
            sentence=f"{request_id} waits: {why} ({self.pool.num_free - evictable} blocks free, {evictable} evictable)"
            + ("." if fits else "; it can never fit."),
        )
