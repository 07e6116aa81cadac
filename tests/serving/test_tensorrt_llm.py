"""The TensorRT-LLM model behind the lab's scheduler contract, and the rules that no recording shows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from labkit.errors import IntegrityError, LabError
from labkit.serving.base import StepResult
from labkit.serving.engine import simulate
from labkit.serving.fast_loop import LinearStepTime, SummaryRecorder, summarize_load
from labkit.serving.systems import make_system
from labkit.serving.systems.tensorrt_llm import TensorRtLlmScheduler
from labkit.serving.systems.tensorrt_llm_microbatch import compose
from labkit.serving.systems.tensorrt_llm_options import TensorRtLlmOptions
from labkit.serving.systems.tensorrt_llm_request import CONTEXT, GENERATION, TensorRtLlmRequest
from labkit.workload.base import RequestSpec


def scheduler(**options: Any) -> TensorRtLlmScheduler:
    base = {
        "num_blocks": 10,
        "tokens_per_block": 4,
        "max_batch_size": 4,
        "max_num_tokens": 16,
        "enable_chunked_prefill": True,
    }
    return TensorRtLlmScheduler({**base, **options}, record_chunks=True)


def request(name: str, prompt: int, outputs: int = 4, **more: Any) -> RequestSpec:
    return RequestSpec(name, 0.0, prompt, outputs, **more)


def step(s: TensorRtLlmScheduler) -> Any:
    plan = s.schedule()
    s.update(plan, StepResult(0.0))
    s.check_integrity()
    return plan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_batchsize": 4},
            "TensorRT-LLM option 'max_batchsize' is not known; choose from: capacity_scheduler_policy",
        ),
        (
            {"capacity_scheduler_policy": "FIFO"},
            "it must be one of GUARANTEED_NO_EVICT, MAX_UTILIZATION, STATIC_BATCH",
        ),
        (
            {"context_chunking_policy": "FORCE_CHUNK"},
            "it must be one of FIRST_COME_FIRST_SERVED, EQUAL_PROGRESS",
        ),
        (
            {"free_gpu_memory_fraction": 0},
            "free_gpu_memory_fraction=0 is not usable; it must be a number above 0",
        ),
        ({"max_num_tokens": 0}, "max_num_tokens=0 is not usable; it must be a whole number, at least 1"),
        ({"enable_block_reuse": 1}, "enable_block_reuse=1 is not usable; it must be True or False"),
        ({"max_num_tokens": 3}, "max_num_tokens=3 is smaller than one chunk unit of 4 tokens"),
        ({"num_blocks": None}, "the KV pool has no size"),
        ({"max_tokens": 3}, "the KV pool has no whole block"),
        ({"free_gpu_memory_bytes": 1000}, "free_gpu_memory_bytes needs kv_bytes_per_token"),
    ],
)
def test_bad_options_are_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError, match=message):
        scheduler(**options)


def test_the_pool_follows_from_the_memory_fraction() -> None:
    options = {"free_gpu_memory_bytes": 10_000, "kv_bytes_per_token": 10, "tokens_per_block": 8}
    assert TensorRtLlmOptions.parse(options).pool_blocks == 112  # 0.9 * 10,000 / 80
    assert TensorRtLlmOptions.parse({**options, "free_gpu_memory_fraction": 0.5}).pool_blocks == 62
    assert TensorRtLlmOptions.parse({**options, "max_tokens": 80}).pool_blocks == 10


def test_what_can_never_fit_is_refused_on_arrival() -> None:
    s = scheduler(max_seq_len=60)
    assert "max_seq_len=60 must also hold an output" in (s.add(request("long", 60)) or "")
    assert "may need 11 blocks of 4 tokens and the pool has 10" in (s.add(request("grows", 30, 11)) or "")
    assert s.add(request("just", 30, 10)) is None
    s = scheduler(enable_chunked_prefill=False)
    assert "enable_chunked_prefill is off" in (s.add(request("uncut", 17)) or "")
    with pytest.raises(LabError, match="'a' is already in the system"):
        s.add(request("a", 3)) or s.add(request("a", 3))


def test_no_evict_reserves_to_completion_and_never_pauses() -> None:
    s = scheduler()
    s.add(request("a", 8, 16))  # 6 blocks to its end
    s.add(request("b", 8, 16))
    plan = step(s)
    assert [a.request_id for a in plan.admitted] == ["a"]
    assert s.why_waiting("b").limit == "blocks"
    assert s.why_waiting("b").num_needed_blocks == 6
    while s.has_work():
        assert not step(s).preempted


def test_max_utilization_pauses_the_last_started_and_lets_it_start_over() -> None:
    s = scheduler(capacity_scheduler_policy="MAX_UTILIZATION")
    s.add(request("a", 8, 16))
    s.add(request("b", 8, 16))
    paused, resumed = [], []
    while s.has_work():
        plan = step(s)
        paused += [p.request_id for p in plan.preempted]
        resumed += [a.request_id for a in plan.admitted if a.resumed]
    assert paused
    assert set(paused) == {"b"}
    assert resumed == paused


def test_a_static_batch_takes_nobody_while_one_generates() -> None:
    s = scheduler(capacity_scheduler_policy="STATIC_BATCH")
    s.add(request("a", 4, 4))
    step(s)
    s.add(request("b", 4, 4))
    step(s)
    assert s.why_waiting("b").limit == "static_batch"
    for _ in range(3):
        plan = step(s)
    assert [a.request_id for a in plan.admitted] == ["b"]


def test_the_second_of_two_equal_prompts_waits_to_reuse_the_first() -> None:
    s = scheduler(num_blocks=40)
    tokens = list(range(10))
    for name in "ab":
        s.add(request(name, 10, prompt_token_ids=tokens))
    assert [a.request_id for a in step(s).admitted] == ["a"]
    plan = step(s)
    assert [(a.request_id, a.num_hit_tokens) for a in plan.admitted] == [("b", 8)]


def test_a_request_deferred_says_so() -> None:
    s = scheduler(num_blocks=40, max_num_tokens=8)
    tokens = list(range(24))
    for name in "ab":
        s.add(request(name, 24, prompt_token_ids=tokens))
    step(s)  # the first is mid-prompt: it stores its blocks when it is through
    assert s.why_waiting("b").limit == "deferred"


def test_generating_requests_that_the_batch_has_no_place_for_are_passed_over() -> None:
    """Places for two. `b` is deferred behind `a`, so `c` starts; then `b`, earlier in the list, takes the place of `c`."""
    s = scheduler(
        capacity_scheduler_policy="MAX_UTILIZATION",
        max_batch_size=2,
        max_num_requests=4,
        num_blocks=40,
        max_num_tokens=32,
    )
    for name, first in (("a", 0), ("b", 0), ("c", 50)):
        s.add(request(name, 6, 3, prompt_token_ids=list(range(first, first + 6))))
    ran = [[c.request_id for c in step(s).chunks] for _ in range(5)]
    assert ran == [["a", "c"], ["b", "a"], ["a", "b"], ["b", "c"], ["c"]]
    assert not s.has_work()


@pytest.mark.parametrize(("chunked", "contexts", "decodes"), [(False, [64], []), (True, [32], ["b", "c"])])
def test_without_chunking_list_order_rules_and_with_it_decodes_come_first(
    chunked: bool, contexts: list[int], decodes: list[str]
) -> None:
    """The list is a context of 64 tokens and two that generate; 64 tokens a step."""
    options = TensorRtLlmOptions.parse(
        {"num_blocks": 99, "max_num_tokens": 64, "enable_chunked_prefill": chunked}
    )
    context, *generating = [TensorRtLlmRequest(request(name, 64), i, None) for i, name in enumerate("abc")]
    context.state = CONTEXT
    for r in generating:
        r.state = GENERATION
    run_contexts, run_generating = compose(options, [context, *generating], 0, 0)
    assert [r.chunk for r in run_contexts] == contexts
    assert [r.id for r in run_generating] == decodes


def test_equal_progress_shares_and_first_come_does_not() -> None:
    def first_chunks(policy: str) -> list[tuple[str, int]]:
        s = scheduler(context_chunking_policy=policy, num_blocks=40)
        for name in "ab":
            s.add(request(name, 20))
        return [(c.request_id, c.num_tokens) for c in s.schedule().chunks]

    assert first_chunks("EQUAL_PROGRESS") == [("a", 8), ("b", 8)]
    assert first_chunks("FIRST_COME_FIRST_SERVED") == [("a", 16)]


def test_an_evicted_block_takes_what_continues_it_out_of_the_tree() -> None:
    s = scheduler(num_blocks=10)
    s.add(request("a", 12, 1, prompt_token_ids=list(range(12))))
    step(s)
    assert len(s.pool.block_of) == 3
    root = next(block for block, key in enumerate(s.pool.key) if key == s.pool.children[0][0])
    s.pool.free.move_to_end(root, last=False)
    s.pool.take(1)
    assert not s.pool.block_of
    assert s.pool.num_evicted == 3


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"])
def test_random_loads_keep_the_conservation_laws(policy: str) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        size = rng.choice([1, 2, 4, 8])
        s = scheduler(
            num_blocks=rng.randint(60 // size + 1, 100), tokens_per_block=size, capacity_scheduler_policy=policy,
            max_batch_size=rng.randint(1, 6), max_num_requests=rng.randint(1, 6), max_num_tokens=size * rng.randint(1, 9),
            enable_block_reuse=rng.random() < 0.6, two_step_lookahead=rng.random() < 0.3,
            context_chunking_policy=rng.choice(["EQUAL_PROGRESS", "FIRST_COME_FIRST_SERVED"]),
            enable_prefix_aware_scheduling=rng.random() < 0.7,
            max_num_active_requests=rng.choice([None, None, 3]),
        )  # fmt: skip
        wanted = {}
        for i in range(12):
            prompt, outputs = rng.randint(1, 35), rng.randint(1, 24)
            tokens = [rng.randrange(2) for _ in range(prompt)] if rng.random() < 0.7 else None
            if s.add(request(f"r{i}", prompt, outputs, prompt_token_ids=tokens)) is None:
                wanted[f"r{i}"] = outputs
        sampled: dict[str, int] = dict.fromkeys(wanted, 0)
        for _ in range(3000):
            if not s.has_work():
                break
            plan = s.schedule()
            assert plan.num_scheduled_tokens == sum(c.num_tokens for c in plan.chunks)
            assert plan.num_decode_requests + len(s.chunks) <= s.options.max_batch_size
            assert all(len(c.block_table) * size >= c.start + c.num_tokens for c in plan.chunks)
            if policy != "MAX_UTILIZATION":
                assert not plan.preempted
            tokens = {c.request_id: 1000 + sampled[c.request_id] for c in plan.chunks if c.samples}
            for name in tokens:
                sampled[name] += 1
            s.update(plan, StepResult(0.0, tokens))
            s.check_integrity()
        else:  # a budget of one unit starves prefill while others decode, but all of those end
            raise AssertionError(f"seed {seed}: did not end; waiting {list(s.requests.values())}")
        assert sampled == wanted


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def test_the_loop_without_plans_gives_the_same_summary(policy: str) -> None:
    rng = random.Random(5)
    requests = [RequestSpec(f"r{i}", i * 0.05, rng.randint(1, 300), rng.randint(1, 150)) for i in range(100)]
    options = {
        "num_blocks": 60,
        "max_num_tokens": 256,
        "enable_chunked_prefill": True,
        "capacity_scheduler_policy": policy,
    }
    fast = summarize_load(make_system("tensorrt_llm", options), requests)
    recorder = SummaryRecorder()
    simulate(make_system("tensorrt_llm", options), LinearStepTime(), requests, recorder)
    assert (fast.ttft, fast.e2e, fast.num_steps) == (
        recorder.summary.ttft,
        recorder.summary.e2e,
        recorder.summary.num_steps,
    )
    assert (fast.num_preempted > 0) == (policy == "MAX_UTILIZATION")
    assert int(fast.gaps.counts.sum()) == sum(r.num_output_tokens - 1 for r in requests)


@pytest.mark.parametrize("damage", ["lost block", "reference", "reserved", "contexts"])
def test_check_integrity_finds_damage(damage: str) -> None:
    s = scheduler(num_blocks=40)
    for name in "abc":
        s.add(request(name, 6, 8))
    step(s)
    step(s)
    match damage:
        case "lost block":
            s.pool.free.popitem()
        case "reference":
            s.pool.ref[s.active[0].table[0]] += 1
        case "reserved":
            s.reserved_blocks += 1
        case "contexts":
            s.contexts.append(s.active[0])
    with pytest.raises(IntegrityError):
        s.check_integrity()
