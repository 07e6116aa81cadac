"""SGLang's options, refusals and reasons, and single rules that are easy to state and easy to get wrong."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.errors import InputError, LabError
from labkit.serving.base import StepOutcome, StepPlan, StepResult
from labkit.serving.systems import make_system
from labkit.serving.systems.sglang import SglangScheduler
from labkit.serving.systems.sglang_options import MemoryFacts, SglangOptions
from labkit.serving.systems.sglang_policy import MAX_MATCHED
from labkit.serving.systems.sglang_tokens import TokenSource, common_prefix
from labkit.units import GIB
from labkit.workload.base import RequestSpec


def spec(
    name: str, num_prompt: int, num_output: int = 8, tokens: list[int] | None = None, **more: object
) -> RequestSpec:
    return RequestSpec(name, 0.0, num_prompt, num_output, prompt_token_ids=tokens, **more)  # type: ignore[arg-type]


def step(scheduler: SglangScheduler) -> tuple[StepPlan, StepOutcome]:
    plan = scheduler.schedule()
    scheduler.check_integrity()
    outcome = scheduler.update(plan, StepResult(0.01))
    scheduler.check_integrity()
    return plan, outcome


def serve(scheduler: SglangScheduler, limit: int = 2000) -> list[str]:
    finished: list[str] = []
    while scheduler.has_work():
        finished += step(scheduler)[1].finished
        limit -= 1
        assert limit
    return finished


# -- options


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_total_tokens": 100, "max_num_seqs": 4}, "unknown SGLang option 'max_num_seqs'; options are: chunked_"),
        ({"max_total_tokens": 0}, "max_total_tokens is 0; it is a whole number of at least 1"),
        ({"max_total_tokens": 100, "page_size": 1.5}, "page_size is 1.5; it is a whole number of at least 1"),
        ({"max_total_tokens": 8, "page_size": 16}, "pool of 0 tokens is smaller than one page of 16"),
        ({"max_total_tokens": 100, "schedule_policy": "sjf"}, "schedule_policy is 'sjf'; choose one of: fcfs, lpm"),
        ({"max_total_tokens": 100, "radix_eviction_policy": "arc"}, "radix_eviction_policy is 'arc'; choose one of: lru"),
        ({"max_total_tokens": 100, "retraction_policy": "age"}, "retraction_policy is 'age'; choose one of: length"),
        ({"max_total_tokens": 100, "enable_mixed_chunk": 1}, "enable_mixed_chunk is 1; it is true or false"),
        ({"max_total_tokens": 100, "schedule_conservativeness": 0}, "is 0; it is a number above 0"),
        ({"mem_fraction_static": 0.8}, "needs a pool size: give max_total_tokens, or mem_fraction_static together"),
        ({"mem_fraction_static": 80, "max_total_tokens": 9}, "mem_fraction_static is 80; it is a number above 0 and at most 1"),
        (
            {"max_total_tokens": 100, "page_size": 16, "chunked_prefill_size": 100},
            "chunked_prefill_size is 100; it must be a multiple of page_size",
        ),
        (
            {"max_total_tokens": 100, "enable_priority_scheduling": True, "schedule_policy": "lpm"},
            "with enable_priority_scheduling it is fcfs or lof",
        ),
        ({"max_total_tokens": 100, "retraction_policy": "priority"}, "needs enable_priority_scheduling"),
        (
            {"max_total_tokens": 100, "schedule_policy": "shortest-prefill-first", "disable_radix_cache": True},
            "needs the radix cache",
        ),
        ({"max_total_tokens": 100, "radix_eviction_policy": "tlru"}, "a threshold greater than next_prompt_estimate"),
        (
            {"max_total_tokens": 100, "radix_eviction_policy_config": {"size": 2}},
            "radix_eviction_policy_config has size=2; lru takes nothing",
        ),
    ],
)  # fmt: skip
def test_a_bad_option_is_one_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(LabError) as refused:
        SglangScheduler(options)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_options_by_name_by_mapping_or_as_one_object() -> None:
    options = SglangOptions(max_total_tokens=100, schedule_policy="lof")
    for scheduler in (
        SglangScheduler(max_total_tokens=100, schedule_policy="lof"),
        SglangScheduler({"max_total_tokens": 100}, schedule_policy="lof"),
        SglangScheduler(options),
        make_system("sglang", {"max_total_tokens": 100}, schedule_policy="lof"),
    ):
        assert isinstance(scheduler, SglangScheduler)
        assert scheduler.options == options
    with pytest.raises(LabError, match="not both"):
        SglangScheduler(options, page_size=2)


def test_mem_fraction_static_leaves_a_slack_of_what_was_free_before_loading() -> None:
    facts = MemoryFacts(
        free_bytes_before_load=80 * GIB, free_bytes_after_load=64 * GIB, bytes_per_token=131072
    )
    options = SglangOptions(mem_fraction_static=0.9, memory=facts)
    assert options.capacity == int((64 - 8) * GIB // 131072) == 458752
    assert (
        SglangOptions(mem_fraction_static=0.9, memory=facts, max_total_tokens=1000, page_size=16).capacity
        == 992
    )


# -- arrival


def test_what_can_never_fit_is_refused_on_arrival() -> None:
    scheduler = SglangScheduler(max_total_tokens=100, context_length=90, max_queued_requests=1)
    assert "can never fit: 95 prompt and 8 output tokens are more than context_length 90" in (
        scheduler.add(spec("long", 95)) or ""
    )
    small = SglangScheduler(max_total_tokens=100)
    assert "need 101 slots with a page in reserve, and the pool has 100" in (
        small.add(spec("big", 91, 8)) or ""
    )
    assert small.add(spec("just", 90, 8)) is None
    assert serve(small) == ["just"]
    assert scheduler.add(spec("a", 4)) is None
    assert "max_queued_requests" in (scheduler.add(spec("b", 4)) or "")


def test_bad_requests_are_one_sentence() -> None:
    scheduler = SglangScheduler(max_total_tokens=100)
    scheduler.add(spec("a", 4))
    with pytest.raises(LabError, match="'a' is already queued or running; ids must be unique"):
        scheduler.add(spec("a", 4))
    with pytest.raises(LabError, match="'b' has 0 prompt tokens; at least 1 is needed"):
        scheduler.add(spec("b", 0))
    with pytest.raises(InputError, match="has 2 prompt token ids, but states 3 prompt tokens"):
        scheduler.add(spec("c", 3, tokens=[1, 2]))
    assert [r.request_id for r in scheduler.waiting] == ["a"]


def test_output_ends_at_the_maximum_the_client_allows() -> None:
    scheduler = SglangScheduler(max_total_tokens=100)
    scheduler.add(RequestSpec("a", 0.0, 4, 9, max_output_tokens=3))
    outcomes = []
    while scheduler.has_work():
        outcomes.append(step(scheduler)[1])
    assert len(outcomes) == 3
    assert outcomes[-1].truncated == {"a": 3}


# -- rules


def test_a_prefill_runs_alone_and_decoding_waits() -> None:
    scheduler = SglangScheduler(max_total_tokens=1000)
    scheduler.add(spec("a", 10))
    first, outcome = step(scheduler)
    assert (first.num_prefill_tokens, first.num_decode_requests, list(outcome.started)) == (10, 0, ["a"])
    scheduler.add(spec("b", 20))
    second, _ = step(scheduler)
    assert (second.num_prefill_tokens, second.num_decode_requests, second.num_running) == (20, 0, 2)
    third, _ = step(scheduler)
    assert (third.num_prefill_tokens, third.num_decode_requests, third.num_kv_tokens_read) == (0, 2, 30)


def test_mixed_chunk_lets_them_run_together() -> None:
    scheduler = SglangScheduler(max_total_tokens=1000, enable_mixed_chunk=True)
    scheduler.add(spec("a", 10))
    step(scheduler)
    scheduler.add(spec("b", 20))
    plan, _ = step(scheduler)
    assert (plan.num_prefill_tokens, plan.num_decode_requests, plan.num_scheduled_tokens) == (20, 1, 21)


def test_equal_prompts_in_one_step_are_both_computed_and_lpm_puts_the_second_off() -> None:
    tokens = list(range(64))
    hits = {}
    for policy in ("fcfs", "lpm"):
        scheduler = SglangScheduler(max_total_tokens=1000, schedule_policy=policy)
        scheduler.add(spec("a", 64, tokens=tokens))
        scheduler.add(spec("b", 64, tokens=tokens))
        plan, _ = step(scheduler)
        hits[policy] = [(a.request_id, a.num_hit_tokens) for a in plan.admitted]
    assert hits == {"fcfs": [("a", 0), ("b", 0)], "lpm": [("a", 0), ("b", 0)]}
    # in a chunk of 64 the one that was put last comes later, and hits all but its last token
    scheduler = SglangScheduler(max_total_tokens=1000, schedule_policy="lpm", chunked_prefill_size=64)
    for name in ("a", "b"):
        scheduler.add(spec(name, 64, tokens=tokens))
    assert [a.num_hit_tokens for a in step(scheduler)[0].admitted] == [0]
    assert [a.num_hit_tokens for a in step(scheduler)[0].admitted] == [63]


@pytest.mark.parametrize(("page_size", "hit"), [(1, 63), (16, 48), (64, 0)])
def test_at_least_one_token_is_computed_and_hits_are_whole_pages(page_size: int, hit: int) -> None:
    scheduler = SglangScheduler(max_total_tokens=1024, page_size=page_size)
    tokens = list(range(64))
    scheduler.add(spec("a", 64, tokens=tokens))
    serve(scheduler)
    scheduler.add(spec("b", 64, tokens=tokens))
    assert step(scheduler)[0].admitted[0].num_hit_tokens == hit


def test_the_next_turn_hits_prompt_and_answer_but_not_the_last_token() -> None:
    scheduler = SglangScheduler(max_total_tokens=1000)
    scheduler.add(spec("a", 5, 4, tokens=[1, 2, 3, 4, 5]))
    sampled: list[int] = []
    while scheduler.has_work():
        plan = scheduler.schedule()
        sampled.append(100 + len(sampled))
        scheduler.update(plan, StepResult(0.01, {"a": sampled[-1]}))
    turn = [1, 2, 3, 4, 5, *sampled, 9]
    scheduler.add(spec("b", len(turn), tokens=turn))
    assert step(scheduler)[0].admitted[0].num_hit_tokens == 8


def test_a_long_prompt_is_cut_and_goes_on_first() -> None:
    scheduler = SglangScheduler(max_total_tokens=1000, chunked_prefill_size=32)
    scheduler.add(spec("a", 80))
    scheduler.add(spec("b", 10))
    sizes = [step(scheduler)[0].num_prefill_tokens for _ in range(3)]
    assert sizes == [32, 32, 26]  # the rest of "a" and all of "b"


def test_the_fewest_outputs_are_sent_back_to_the_end_of_the_queue() -> None:
    scheduler = SglangScheduler(max_total_tokens=120, schedule_conservativeness=0.01)
    for name, num_prompt in (("a", 20), ("b", 20)):
        scheduler.add(spec(name, num_prompt, 60))
        step(scheduler)
    scheduler.add(spec("c", 30, 10))
    plans = []
    while not plans or not plans[-1].preempted:
        plans.append(step(scheduler)[0])
    before = scheduler.state.ratio.current
    assert [p.request_id for p in plans[-1].preempted] == ["b"]
    assert scheduler.waiting[-1].request_id == "b"
    assert before > 0.1, "the estimate jumps up after a retraction"
    resumed = []
    while scheduler.has_work():
        resumed += [a for a in step(scheduler)[0].admitted if a.resumed]
    assert [a.request_id for a in resumed] == ["b"]


def test_an_urgent_request_takes_the_slot_of_a_less_urgent_one() -> None:
    options = {
        "max_total_tokens": 1000,
        "max_running_requests": 1,
        "enable_priority_scheduling": True,
        "priority_scheduling_preemption_threshold": 0,
    }
    scheduler = SglangScheduler(options)
    scheduler.add(spec("low", 10, 50, priority=1))
    step(scheduler)
    step(scheduler)
    scheduler.add(spec("high", 10, 5, priority=2))
    plan, _ = step(scheduler)
    assert ([p.request_id for p in plan.preempted], [a.request_id for a in plan.admitted]) == (
        ["low"],
        ["high"],
    )
    assert serve(scheduler) == ["high", "low"]


def test_lof_and_priority_order_the_queue() -> None:
    for options, expected in (
        ({"schedule_policy": "lof"}, ["b", "c", "a"]),
        ({"enable_priority_scheduling": True, "disable_priority_preemption": True}, ["c", "b", "a"]),
        (
            {
                "enable_priority_scheduling": True,
                "schedule_low_priority_values_first": True,
                "disable_priority_preemption": True,
            },
            ["a", "b", "c"],
        ),
    ):
        scheduler = SglangScheduler(
            max_total_tokens=1000, chunked_prefill_size=-1, prefill_max_requests=1, **options
        )
        for name, outputs, priority in (("a", 2, 1), ("b", 9, 2), ("c", 5, 3)):
            scheduler.add(spec(name, 5, outputs, priority=priority))
        admitted: list[str] = []
        while len(admitted) < 3:
            admitted += [a.request_id for a in step(scheduler)[0].admitted]
        assert admitted == expected


def test_a_long_queue_is_not_matched() -> None:
    scheduler = SglangScheduler(max_total_tokens=5000, schedule_policy="lpm", prefill_max_requests=1)
    tokens = list(range(40))
    scheduler.add(spec("first", 40, 1, tokens=tokens))
    serve(scheduler)
    for i in range(MAX_MATCHED + 2):
        scheduler.add(spec(f"r{i}", 3, 1))
    scheduler.add(spec("hit", 40, 1, tokens=tokens))
    assert step(scheduler)[0].admitted[0].request_id == "r0"  # 131 wait
    step(scheduler), step(scheduler)
    assert len(scheduler.waiting) == MAX_MATCHED
    assert step(scheduler)[0].admitted[0].request_id == "hit"


def test_the_estimate_sinks_while_decoding_and_is_reset_when_idle() -> None:
    scheduler = SglangScheduler(max_total_tokens=1000)
    ratio = scheduler.state.ratio
    scheduler.add(spec("a", 4, 20))
    serve_ratio = []
    while scheduler.has_work():
        step(scheduler)
        serve_ratio.append(ratio.current)
    assert serve_ratio[0] == 0.7
    assert serve_ratio[-1] == pytest.approx(0.7 - 19 * (0.7 - 0.098) / 600)
    assert ratio.current == 0.7


def test_a_waiting_request_says_what_binds() -> None:
    scheduler = SglangScheduler(max_total_tokens=100, max_running_requests=2)
    scheduler.add(spec("a", 40, 30))
    step(scheduler)
    scheduler.add(spec("b", 40, 30))
    scheduler.add(spec("c", 4, 4))
    step(scheduler)
    reason = scheduler.why_waiting("b")
    assert (reason.limit, reason.num_needed_blocks, reason.num_free_blocks) == ("kv_tokens", 71, 59)
    assert reason.can_ever_fit
    assert (
        "'b' is number 1 in the queue and needs 71 tokens (40 to compute, 30 it may generate"
        in reason.sentence
    )
    assert scheduler.why_waiting("c").limit == "batch_is_full"
    with pytest.raises(LabError, match="'a' does not wait here"):
        scheduler.why_waiting("a")
    slots = SglangScheduler(max_total_tokens=1000, max_running_requests=1)
    slots.add(spec("a", 4))
    step(slots)
    slots.add(spec("b", 4))
    assert slots.why_waiting("b").limit == "max_running_requests"


def test_a_broken_book_is_noticed() -> None:
    scheduler = SglangScheduler(max_total_tokens=100)
    scheduler.add(spec("a", 10))
    step(scheduler)
    scheduler.check_integrity()
    scheduler.state.pool.num_free_pages -= 1
    with pytest.raises(
        AssertionError, match="available \\+ evictable \\+ protected \\+ held = total does not hold"
    ):
        scheduler.check_integrity()


# -- contents


def test_stand_in_tokens_are_equal_where_hashes_are_equal() -> None:
    source = TokenSource()
    left = source.prompt(RequestSpec("a", 0.0, 25, 1, prefix_hashes=[7, 8], prefix_block_size=10))
    right = source.prompt(RequestSpec("b", 0.0, 25, 1, prefix_hashes=[7, 9], prefix_block_size=10))
    cut = source.prompt(RequestSpec("c", 0.0, 15, 1, prefix_hashes=[7, 8], prefix_block_size=10))
    assert (common_prefix(left, right), common_prefix(left, cut)) == (10, 15)
    assert len(np.unique(np.concatenate((left, right)))) == 40
    assert common_prefix(source.private(5), source.private(5)) == 0
