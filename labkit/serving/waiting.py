"""Why does this request wait? One answer, from the limits in the order in which the scheduler meets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.serving.base import WaitingReason
from labkit.serving.request import Request

if TYPE_CHECKING:
    from labkit.serving.lab import LabScheduler

_SENTENCES = {
    "max_num_seqs": "as many requests run as may run",
    "batch_running": "a static batch admits nobody until it is done",
    "decodes_first": "decoding requests go first",
    "throttle": "admissions are paused until usage falls",
    "stalled_requests": "running requests are stalled for room, so nobody joins",
    "max_long": "as many long prompts run as may run",
    "token_budget": "the token budget of the step is spent",
    "head_of_line": "the head of the queue is blocked, and nobody overtakes",
    "contiguous_room": "enough is free in total, and no single span is long enough",
    "capacity": "it may grow beyond the whole cache",
    "none": "nothing: it joins in the next step",
}

#: limits that go away when somebody gives memory back
_MEMORY = ("blocks", "bytes", "contiguous_room")


def limit_of(scheduler: LabScheduler, request: Request) -> str | None:
    """The limit outside memory that binds now, or None."""
    if len(scheduler.running) >= scheduler.max_num_seqs:
        return "max_num_seqs"
    limit = scheduler.pressure.limit(scheduler, request) or scheduler.batching.limit(scheduler, request)
    if limit is None and scheduler.batching.left < 1:
        return "token_budget"
    return limit


def explain(scheduler: LabScheduler, request: Request) -> WaitingReason:
    """Reads the state between two steps and changes nothing."""
    space, admission = scheduler.space, scheduler.admission
    scheduler.batching.start(scheduler)
    known, hit, first = scheduler.first_chunk(request)
    num_idle_hits = space.num_idle_hits(known)
    needed = space.blocks_asked(request, hit)
    fits_ever = space.blocks_for(request.max_tokens) <= space.num_blocks
    limit = limit_of(scheduler, request)
    numbers = f"needs {needed} blocks, {space.num_free_blocks} of {space.num_blocks} are free"
    if limit is None and first == hit:
        limit = "token_budget"
    if limit is None:
        refusal = admission.refusal(
            request, first - hit, hit, space, len(scheduler.running), scheduler.num_tokens_after_step
        )
        if refusal is not None:
            limit = refusal.limit
            if refusal.limit != "blocks":
                numbers += f"; {refusal.limit.replace('_', ' ')}: needs {refusal.needed:,.0f}, free {refusal.free:,.0f}"
            elif refusal.free < space.num_free_blocks:
                numbers += f", {space.num_free_blocks - refusal.free:,.0f} of them kept as headroom"
        elif next(iter(scheduler.waiting)) is not request and scheduler.order.blocked == "stop":
            limit = "head_of_line"
        else:
            limit, more = _room(scheduler, request, num_idle_hits, hit, first)
            numbers += more
    if not fits_ever:
        numbers += "; no state of this cache holds it to its end"
    elif limit in _MEMORY and not scheduler.running and (pinned := space.num_blocks - space.num_free_blocks):
        numbers += (
            f"; nobody runs here, so whoever holds the other {pinned} is none of this scheduler's requests"
        )
    why = _SENTENCES.get(limit, f"{limit.replace('_', ' ')} are short")
    return WaitingReason(
        request_id=request.request_id,
        num_needed_blocks=needed,
        num_free_blocks=space.kv.num_free_blocks,
        num_evictable_blocks=space.kv.num_evictable_blocks - num_idle_hits,
        limit=limit,
        can_ever_fit=fits_ever,
        sentence=f"{request.request_id} waits: {why} ({numbers})",
    )


def _room(
    scheduler: LabScheduler, request: Request, num_idle_hits: int, hit: int, first: int
) -> tuple[str, str]:
    """What the cache would answer to an `admit` of the first tokens: its limit, and what to add to the numbers."""
    space, limited = scheduler.space, scheduler.admission.can_ever_fit
    asked = space.blocks_placed(request, hit, first, request.max_tokens if limited else first)
    if asked > space.num_free_blocks - num_idle_hits:
        own = f", {num_idle_hits} of them its own cached prefix" if num_idle_hits else ""
        return "blocks", own
    if limited and space.kv.most_blocks(first, request.max_tokens) > space.num_blocks:
        return "capacity", ""
    stats = space.kv.stats()
    if stats.largest_free_bytes + stats.cached_bytes < asked * space.block_bytes:
        return "contiguous_room", ""
    return (
        "none",
        f"; its first {first - hit} tokens take {asked}" if first < request.num_known_tokens else "",
    )
