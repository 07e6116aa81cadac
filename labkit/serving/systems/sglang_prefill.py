"""The prefill half of a step (`managers/scheduler.py` `_get_new_batch_prefill_raw`)."""

from __future__ import annotations

from labkit.serving.base import Admitted, StepPlan
from labkit.serving.systems.sglang_adder import PrefillAdder, Verdict
from labkit.serving.systems.sglang_decode import take_decode_slots
from labkit.serving.systems.sglang_request import Req
from labkit.serving.systems.sglang_state import SglangState


def prefill_must_wait(state: SglangState) -> bool:
    """`prefill_decode_interval`: so many decode steps between two prefills, once enough requests run."""
    if state.num_decodes_left == 0:
        return False
    if len(state.running) < state.options.prefill_decode_interval_min_bs:
        state.num_decodes_left = 0
        return False
    state.num_decodes_left -= 1
    return True


def run_prefill(state: SglangState, plan: StepPlan) -> None:
    """Form a prefill batch; `state.mode` stays None when nothing was admitted."""
    options, running, preempts = state.options, state.running, state.options.preempts_by_priority
    if preempts or not running:
        state.batch_is_full = False
    if (state.batch_is_full or not state.waiting) and state.chunked is None:
        return
    if len(running) >= options.max_running_requests and state.chunked is None and not preempts:
        state.batch_is_full = True
        return
    state.order.sort(state.waiting, state.processed_tokens)
    adder = PrefillAdder(
        options, state.tree, state.pool, running, state.ratio.current, state.clock, release=state.retract
    )
    if (chunked := state.chunked) is not None:
        limit = state.order.chunk_limit(chunked, state.waiting, adder.rem_chunk or 0, options.page_size)
        state.chunked = adder.add_chunked(chunked, limit)
    num_continued = len(adder.admitted)
    _admit(state, adder)
    del state.waiting[: len(adder.admitted) - num_continued]
    state.requeue(adder.preempted, plan)
    if not adder.admitted:
        return
    if adder.new_chunked is not None:
        assert state.chunked is None
        state.chunked = adder.new_chunked
    state.memory.allocate_extend(adder.admitted)
    state.mode, state.extend_rows = "extend", adder.admitted
    state.num_decodes_left = options.prefill_decode_interval
    _fill(plan, adder.admitted, num_continued)
    state.processed_tokens += plan.num_prefill_tokens
    if options.enable_mixed_chunk and options.chunk_tokens and running:
        _mix(state)


def _admit(state: SglangState, adder: PrefillAdder) -> None:
    """Walk the queue from its head until somebody does not fit: nobody overtakes."""
    options, preempts = state.options, state.options.preempts_by_priority
    for req in state.waiting:
        if adder.budget_state() is Verdict.OTHER:
            return
        if len(adder.admitted) >= options.max_running_requests - len(state.running):
            state.batch_is_full = True
        if state.batch_is_full and not (preempts and adder.preempt_for(req)):
            return
        state.memory.match(req)
        verdict = adder.add_one(req, state.chunked is not None)
        if verdict is Verdict.NO_TOKEN:
            state.batch_is_full = bool(adder.admitted or state.running)
        if verdict is not Verdict.CONTINUE:
            return


def _fill(plan: StepPlan, admitted: list[Req], num_continued: int) -> None:
    pairs = 0.0
    for req in admitted:
        length = req.extend_end - req.prefix_len
        plan.num_prefill_tokens += length
        plan.num_kv_tokens_read += req.prefix_len
        pairs += length * (req.prefix_len + (length + 1) / 2)
    plan.num_prefill_pairs = int(pairs)
    plan.num_scheduled_tokens = plan.num_prefill_tokens
    plan.admitted = [
        Admitted(r.request_id, r.prefix_len, r.num_retractions > 0) for r in admitted[num_continued:]
    ]


def _mix(state: SglangState) -> None:
    """`enable_mixed_chunk`: decode rows join the prefill if they find room; nobody is retracted for it, they sit out."""
    if not state.memory.make_room(state.decoding.num_pages_due * state.options.page_size):
        return
    take_decode_slots(state)
    for req in state.running:
        req.fill_len = req.seqlen(state.clock)
    state.decode_rows, state.running = state.running, []
    state.processed_tokens += len(state.decode_rows)
    state.mode = "mixed"
