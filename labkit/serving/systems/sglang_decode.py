"""The decode half of a step: make room, or retract (`managers/scheduler.py` `update_running_batch`,
`managers/schedule_batch.py` `retract_decode`)."""

from __future__ import annotations

from collections.abc import Callable

from labkit.serving.base import StepPlan
from labkit.serving.systems.sglang_request import Req
from labkit.serving.systems.sglang_state import SglangState


def run_decode(state: SglangState, plan: StepPlan) -> None:
    """One token for every running request. The ratio sinks only in a step that retracts nobody."""
    if state.memory.make_room(state.decoding.num_pages_due * state.options.page_size):
        state.ratio.decay_step()
    else:
        _retract_decode(state, plan)
        state.batch_is_full = False
        if not state.running:
            return
    take_decode_slots(state)
    state.mode = "decode"
    state.decode_rows = state.running


def take_decode_slots(state: SglangState) -> None:
    """With pages the server asks for one a request, whoever needs one, so it evicts without a real need."""
    page_size = state.options.page_size
    if page_size > 1:
        state.memory.make_room(len(state.running) * page_size)
    state.num_pages_taken = state.decoding.num_pages_due
    if pages := state.pool.take(state.num_pages_taken):
        at = iter(pages)
        for req in state.running:
            if req.committed(state.clock) % page_size == 0:
                req.pages.append(next(at))


def _retract_decode(state: SglangState, plan: StepPlan) -> None:
    """Drop those with the fewest outputs, of these the longest prompts first, until the step fits; one always stays.
    The running list stays in the sorted order."""
    clock, page_size = state.clock, state.options.page_size
    kept = sorted(state.running, key=_worth_keeping(state), reverse=True)

    def fits() -> bool:
        return state.memory.make_room(sum(r.committed(clock) % page_size == 0 for r in kept) * page_size)

    dropped: list[Req] = []
    while not dropped or not fits():
        if len(kept) == 1:
            break
        victim = kept.pop()
        state.retract(victim, len(kept))
        dropped.append(victim)
    if len(kept) <= 1 and not fits():
        state.abort(kept.pop(), plan)
    state.running = kept
    state.rank(kept)
    state.ratio.after_retraction(
        sum(r.outputs(clock) for r in kept), sum(r.max_new_tokens for r in kept), len(kept)
    )
    state.requeue(dropped, plan)


def _worth_keeping(state: SglangState) -> Callable[[Req], tuple[int, ...]]:
    """`_get_decode_retraction_order`; equal ones stay in batch order."""
    clock = state.clock
    if state.options.retraction_policy != "priority":
        return lambda r: (r.outputs(clock), -r.num_prompt)
    sign = -1 if state.options.schedule_low_priority_values_first else 1
    return lambda r: (r.priority * sign, r.outputs(clock), -r.num_prompt)
