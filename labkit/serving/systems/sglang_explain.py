"""Why a request is refused or waits. Nothing here changes a decision."""

from __future__ import annotations

from labkit.errors import LabError
from labkit.serving.base import WaitingReason
from labkit.serving.systems.sglang_adder import PrefillAdder
from labkit.serving.systems.sglang_state import SglangState
from labkit.workload.base import RequestSpec


def refusal(state: SglangState, spec: RequestSpec, max_new: int) -> str | None:
    """The sentence for a request that can never be served whole. (The real server cuts its outputs instead, to what
    fits: `init_req_max_new_tokens`.)"""
    options = state.options
    prompt, capacity = spec.num_prompt_tokens, options.capacity
    if options.context_length is not None and prompt + max_new > options.context_length:
        return (
            f"request {spec.request_id!r} can never fit: {prompt} prompt and {max_new} output tokens are more than "
            f"context_length {options.context_length}"
        )
    needed = _ceil(prompt, options.page_size) + max_new + options.page_size + 1
    if needed > capacity:
        return (
            f"request {spec.request_id!r} can never fit: {prompt} prompt and {max_new} output tokens need {needed} slots "
            f"with a page in reserve, and the pool has {capacity}"
        )
    if (
        options.chunk_tokens is None
        and options.disable_radix_cache
        and options.ignore_eos
        and needed >= capacity
    ):
        return (
            f"request {spec.request_id!r} can never fit: it leaves no slot in reserve in a pool of {capacity}"
        )
    limit = options.max_queued_requests
    if limit is not None and len(state.waiting) >= limit:
        return f"request {spec.request_id!r} is refused: {limit} requests are queued already (max_queued_requests)"
    return None


def why(state: SglangState, request_id: str) -> WaitingReason:
    """What binds now, by the rules of the next prefill pass. Blocks are pages."""
    req = state.requests.get(request_id)
    if req is None or req not in state.waiting:
        raise LabError(f"request {request_id!r} does not wait here")
    options, page_size = state.options, state.options.page_size
    clock = state.clock
    running = [r for r in state.running if not r.finished]
    adder = PrefillAdder(
        options,
        state.tree,
        state.pool,
        running,
        state.ratio.current,
        clock,
        release=lambda req, left: None,
    )
    length = req.seqlen(clock)
    hit = 0 if options.disable_radix_cache else state.tree.lookup(req.tokens(clock), length - 1)
    needed = length - hit + req.new_tokens_left(clock) + page_size
    position = state.waiting.index(req)
    limit, because = _binding(state, adder, needed, position, len(running))
    sentence = (
        f"request {request_id!r} is number {position + 1} in the queue and needs {needed} tokens "
        f"({length - hit} to compute, {req.new_tokens_left(clock)} it may generate, a page of {page_size}); {because}"
    )
    return WaitingReason(
        request_id=request_id,
        num_needed_blocks=-(-needed // page_size),
        num_free_blocks=state.pool.num_free_pages,
        num_evictable_blocks=state.tree.num_evictable // page_size,
        limit=limit,
        can_ever_fit=_ceil(req.num_prompt, page_size) + req.max_new_tokens + page_size < options.capacity,
        sentence=sentence,
    )


def _binding(
    state: SglangState, adder: PrefillAdder, needed: int, position: int, num_running: int
) -> tuple[str, str]:
    options = state.options
    if (
        num_running + len(state.extend_rows) >= options.max_running_requests
        and not options.preempts_by_priority
    ):
        return "max_running_requests", f"{num_running} requests run already (max_running_requests)"
    if needed >= adder.rem_total:
        free = int(adder.rem_total)
        return "kv_tokens", (
            f"free and evictable tokens minus what running requests are expected to add (ratio "
            f"{state.ratio.current:.3f}) leave {free}"
        )
    if state.batch_is_full:
        return "batch_is_full", "the batch was found full and nobody has left it since"
    if position > 0:
        return "head_of_line", f"{position} requests stand before it and nobody overtakes"
    if state.chunked is not None:
        return (
            "chunked_prefill_size",
            f"the cut request {state.chunked.request_id!r} takes the chunk budget first",
        )
    return "next_pass", "it has not been looked at yet; nothing stands against it"


def _ceil(num_tokens: int, page_size: int) -> int:
    return -(-num_tokens // page_size) * page_size
