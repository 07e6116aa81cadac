"""Stage 2 of a step: which of the fitting requests run, with how many tokens (`scheduler.py`, `PyMicroBatchScheduler`).

Without chunked prefill, list order rules: what does not fit the rest of `max_num_tokens` ends the batch. With it, generating
requests are counted first and contexts share what is left: FIRST_COME_FIRST_SERVED gives each as much as it can take, rounded
down to `chunk_unit_size` when it is cut; EQUAL_PROGRESS gives one unit to each, round after round.
A context whose chunk comes out as 0 does not run, but has used one of the `max_batch_size` places.
"""

from __future__ import annotations

from collections.abc import Iterable

from labkit.errors import LabError
from labkit.serving.systems.tensorrt_llm_options import TensorRtLlmOptions
from labkit.serving.systems.tensorrt_llm_request import CONTEXT, TensorRtLlmRequest

Requests = list[TensorRtLlmRequest]


def compose(
    options: TensorRtLlmOptions, fitting: Iterable[TensorRtLlmRequest], num_places: int, num_tokens: int
) -> tuple[Requests, Requests]:
    """(contexts, in the order in which they run and with their `chunk` decided; generating requests that run).

    `num_places` and `num_tokens` are taken already, by generating requests that come before all of `fitting`.
    """
    contexts: Requests = []
    generating: Requests = []
    wanted = 0
    for r in fitting if num_places < options.max_batch_size else ():
        if r.state == CONTEXT:
            r.chunk = r.prompt - r.computed
            cost = chunk_cost(r, r.chunk)
            if options.enable_chunked_prefill:
                wanted += cost
            else:
                cost = max(1, cost)
                if cost > options.max_num_tokens:
                    raise LabError(
                        f"the context of {r.id} has {cost} tokens and max_num_tokens={options.max_num_tokens}; "
                        "switch enable_chunked_prefill on"
                    )
                if num_tokens + cost > options.max_num_tokens:
                    break
                num_tokens += cost
            contexts.append(r)
        else:
            if num_tokens + 1 > options.max_num_tokens:
                break
            num_tokens += 1
            generating.append(r)
        num_places += 1
        if num_places >= options.max_batch_size:
            break
    left = options.max_num_tokens - num_tokens
    if not options.enable_chunked_prefill or wanted <= left:
        return contexts, generating
    share = share_equally if options.context_chunking_policy == "EQUAL_PROGRESS" else share_first_come
    share(options, contexts, left)
    running = [r for r in contexts if r.chunk > 0]
    # judged where the chunk starts before reuse moves it
    ends = [r.computed + r.chunk == r.prompt for r in running]
    return [r for r, last in zip(running, ends) if not last] + [
        r for r, last in zip(running, ends) if last
    ], generating


def chunk_cost(r: TensorRtLlmRequest, chunk: int) -> int:
    """Tokens that a chunk really computes (`_reuse_adjusted_compute`). Reuse moves the chunk to the right instead of making
    it smaller, so it only saves something when the chunk then reaches the end of the prompt."""
    reusable = r.reusable if r.is_first_chunk else 0
    remaining = r.prompt - r.computed
    if reusable <= 0 or reusable + chunk < remaining:
        return chunk
    return max(0, remaining - reusable)


def share_first_come(options: TensorRtLlmOptions, contexts: Requests, left: int) -> None:
    """`_chunk_fcfs`"""
    for r in contexts:
        remaining = r.chunk = r.prompt - r.computed
        if left < chunk_cost(r, r.chunk):
            r.chunk = left
        if chunk_cost(r, r.chunk) > options.max_num_tokens:
            r.chunk = min(options.max_num_tokens, remaining)
        if r.chunk < remaining:
            r.chunk -= r.chunk % options.unit
        left -= chunk_cost(r, r.chunk)


def share_equally(options: TensorRtLlmOptions, contexts: Requests, left: int) -> None:
    """`_chunk_equal_progress`. A context whose next unit (or shorter rest) is too large for what is left is passed over, and
    the round goes on. It limits the raw size too, reused tokens included."""
    for r in contexts:
        r.chunk = 0
    charged, grown = 0, 1
    while charged < left and grown:
        grown = 0
        for r in contexts:
            size = min(r.chunk + options.unit, r.prompt - r.computed)
            more = chunk_cost(r, size) - chunk_cost(r, r.chunk)
            if charged + more <= left and size <= options.max_num_tokens:
                charged += more
                grown += size - r.chunk
                r.chunk = size
