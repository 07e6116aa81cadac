"""Servers of a few blocks, stepped by hand: what the side-by-side answers are made with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.serving.base import Scheduler, StepOutcome, StepPlan, StepResult
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec

NAMES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM"}


@dataclass(frozen=True)
class Situation:
    """`question` as an operator would ask; `answers` by system; `figures` are the numbers in them, for tests."""

    name: str
    question: str
    answers: dict[str, str]
    figures: dict[str, Any] = field(default_factory=dict)


def small(name: str, num_tokens: int = 800, budget: int = 512, **own: Any) -> Scheduler:
    """A server with `num_tokens` of KV and `budget` tokens a step; `own` are options under its own names."""
    options: dict[str, dict[str, Any]] = {
        "vllm": {
            "num_gpu_blocks": num_tokens // 16 + 1, "max_num_batched_tokens": budget, "max_num_seqs": 16,
        },
        "sglang": {"max_total_tokens": num_tokens, "chunked_prefill_size": budget, "max_running_requests": 16},
        "tensorrt_llm": {
            "num_blocks": num_tokens // 32, "max_num_tokens": budget, "max_batch_size": 16, "enable_chunked_prefill": True,
        },
    }  # fmt: skip
    return make_scheduler(name, **{**options[name], **own})


def prompt(request_id: str, tokens: Sequence[int], num_outputs: int, most: int | None = None) -> RequestSpec:
    return RequestSpec(
        request_id, 0.0, len(tokens), num_outputs, most or num_outputs, prompt_token_ids=list(tokens)
    )


def private(request_id: str, num_tokens: int, num_outputs: int, most: int | None = None) -> RequestSpec:
    return RequestSpec(request_id, 0.0, num_tokens, num_outputs, most or num_outputs)


def step(server: Scheduler) -> tuple[StepPlan, StepOutcome]:
    plan = server.schedule()
    return plan, server.update(plan, StepResult(0.01))


def steps(server: Scheduler, most: int = 3000) -> list[StepPlan]:
    """Until nothing is left to do."""
    plans: list[StepPlan] = []
    while server.has_work() and len(plans) < most:
        plans.append(step(server)[0])
    return plans


def each(answer: Callable[[str], tuple[str, Any]]) -> tuple[dict[str, str], dict[str, Any]]:
    found = {name: answer(name) for name in NAMES}
    return {name: text for name, (text, _) in found.items()}, {
        name: value for name, (_, value) in found.items()
    }


def sentence(text: str) -> str:
    return text.replace("|", "/").rstrip(".")
