"""The vLLM model behind the lab's scheduler contract."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.errors import IntegrityError, LabError
from labkit.serving.base import StepResult
from labkit.serving.systems import make_system, system_class
from labkit.serving.systems.vllm import VllmScheduler
from labkit.serving.systems.vllm_options import VllmOptions
from labkit.workload.base import RequestSpec
from tests.property.test_vllm_equals_plain import run_both, spec_of
from tests.property.vllm_loads import Row
from tests.reference.vllm_plain import PlainVllm


def scheduler(**options: Any) -> VllmScheduler:
    return VllmScheduler(
        **{"num_gpu_blocks": 11, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 16, **options}
    )


def request(name: str, prompt: int, outputs: int = 4, **more: Any) -> RequestSpec:
    return RequestSpec(name, 0.0, prompt, outputs, **more)


def run(s: VllmScheduler, max_steps: int = 500) -> list[Any]:
    plans = []
    while s.has_work():
        plan = s.schedule()
        s.update(plan, StepResult(0.0))
        s.check_integrity()
        plans.append(plan)
        assert len(plans) < max_steps
    return plans


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_num_seq": 4},
            "vLLM option 'max_num_seq' is not known; choose from: async_scheduling, block_size",
        ),
        ({"policy": "sjf"}, "policy='sjf' is not usable; it must be fcfs or priority"),
        (
            {"watermark": 1.0},
            "watermark=1.0 is not usable; it must be a number from 0 up to, not including, 1",
        ),
        ({"block_size": 0}, "block_size=0 is not usable; it must be a whole number, at least 1"),
        ({"num_gpu_blocks": 1}, "num_gpu_blocks=1 is not usable; it must be a whole number, at least 2"),
        ({"max_num_seqs": True}, "max_num_seqs=True is not usable"),
        ({"async_scheduling": "yes"}, "async_scheduling='yes' is not usable; it must be True or False"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens=3 must be at least max_num_seqs=4"),
        ({"max_num_active_seqs": 5}, "max_num_active_seqs=5 must be at most max_num_seqs=4"),
        ({"max_model_len": 20, "long_prefill_token_threshold": 21}, "must be at most max_model_len=20"),
        ({"enable_chunked_prefill": False, "max_model_len": 17}, "no step could hold the longest prompt"),
        ({"max_num_scheduled_tokens": 3}, r"a step of 3 tokens is smaller than one block \(block_size=4\)"),
    ],
)
def test_bad_options_are_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError, match=message) as error:
        scheduler(**options)
    assert "\n" not in str(error.value)


def test_the_pool_size_is_required_and_the_longest_sequence_follows_from_it() -> None:
    with pytest.raises(LabError, match="num_gpu_blocks is missing"):
        VllmScheduler(max_num_seqs=4)
    assert VllmOptions.parse({"num_gpu_blocks": 11, "block_size": 4, "max_num_seqs": 1}).model_len == 40


def test_systems_are_found_by_name() -> None:
    assert system_class("vllm") is VllmScheduler
    assert make_system("vllm", {"num_gpu_blocks": 9}, block_size=8).name == "vllm"
    with pytest.raises(LabError, match="unknown system 'tgi'; choose one of: sglang, tensorrt_llm, vllm"):
        make_system("tgi")


def test_what_can_never_fit_is_refused_on_arrival() -> None:
    s = scheduler(max_model_len=60)
    assert "has 60 tokens and max_model_len=60 must also hold an output" in (s.add(request("long", 60)) or "")
    assert "grows to 11 blocks of 4 tokens and the pool has 10" in (s.add(request("grows", 30, 12)) or "")
    assert s.add(request("just", 30, 11)) is None
    assert len(run(s)) == 12  # 30 prompt tokens in two chunks of at most 16, then ten more tokens


def test_a_duplicate_id_is_named() -> None:
    s = scheduler()
    s.add(request("a", 3))
    with pytest.raises(LabError, match="'a' is already in the system"):
        s.add(request("a", 3))


def test_outputs_stop_at_the_clients_and_at_the_models_maximum() -> None:
    s = scheduler(max_model_len=20)
    s.add(request("client", 4, 9, max_output_tokens=3))
    s.add(request("model", 15, 9))
    truncated: dict[str, int] = {}
    while s.has_work():
        truncated |= s.update(s.schedule(), StepResult(0.0)).truncated or {}
    assert truncated == {"client": 3, "model": 5}


@pytest.mark.parametrize(
    ("setting", "prompts", "limit", "words"),
    [
        ({"max_num_seqs": 1}, [4, 4], "max_num_seqs", "1 requests run, and no more may"),
        ({}, [16, 4], "token_budget", "the step has 0 of 16 tokens left"),
        ({"watermark": 0.2}, [15, 25], "blocks", "its 25 known tokens need 9 blocks with the watermark"),
        ({"max_num_seqs": 1}, [4, 4, 4], "max_num_seqs", "1 requests run"),
        ({}, [15, 33, 4], "head_of_line", "r1 waits before it, and nobody overtakes"),
    ],
)
def test_why_a_request_waits(setting: dict[str, Any], prompts: list[int], limit: str, words: str) -> None:
    s = scheduler(**setting)
    for i, prompt in enumerate(prompts):
        s.add(request(f"r{i}", prompt))
    s.schedule()
    reason = s.why_waiting(f"r{len(prompts) - 1}")
    assert (reason.limit, reason.can_ever_fit) == (limit, True)
    assert words in reason.sentence
    assert reason.num_free_blocks + reason.num_evictable_blocks == s.pool.num_free
    with pytest.raises(LabError, match="'r0' does not wait; it is running"):
        s.why_waiting("r0")
    with pytest.raises(LabError, match="'r9' does not wait; it is not in the system"):
        s.why_waiting("r9")


def test_a_step_that_preempts_admits_nobody() -> None:
    s = scheduler(max_num_batched_tokens=64)
    for name in "ab":
        s.add(request(name, 20, 8))
    s.add(request("c", 1))
    while not s.preempted:
        s.update(s.schedule(), StepResult(0.0))
        plan = s.schedule()
        if not plan.preempted:
            s.update(plan, StepResult(0.0))
    assert [p.request_id for p in plan.preempted] == ["b"]
    assert s.why_waiting("c").limit == "preemption"


def test_what_could_never_fit_says_so_when_it_was_not_refused() -> None:
    s = scheduler(refuse=False, max_model_len=200)
    s.add(request("huge", 50))
    s.schedule()
    assert not s.why_waiting("huge").can_ever_fit


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_chunks_cover_every_position_once_and_sample_every_output(async_scheduling: bool) -> None:
    s = scheduler(record_chunks=True, async_scheduling=async_scheduling, num_gpu_blocks=40)
    specs = [request("a", 21, 5), request("b", 7, 9), request("c", 1, 1)]
    for spec in specs:
        s.add(spec)
    position, sampled = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    for plan in run(s):
        assert sum(c.num_tokens for c in plan.chunks) == plan.num_scheduled_tokens
        assert sum(c.start for c in plan.chunks) == plan.num_kv_tokens_read
        assert plan.num_prefill_tokens + plan.num_decode_requests == plan.num_scheduled_tokens
        for c in plan.chunks:
            assert c.start == position[c.request_id]
            assert len(c.block_table) * 4 >= c.start + c.num_tokens
            position[c.request_id] += c.num_tokens
            sampled[c.request_id] += c.samples
    assert sampled == {"a": 5, "b": 9, "c": 1}
    assert position == {"a": 25, "b": 15, "c": 1}  # the last token is never computed


def test_prompts_that_share_a_prefix_share_blocks_in_the_step_that_admits_both() -> None:
    s = scheduler(record_chunks=True, max_num_batched_tokens=64)
    tokens = list(range(12))
    s.add(request("a", 12, prompt_token_ids=tokens))
    s.add(request("b", 12, prompt_token_ids=tokens))
    plan = s.schedule()
    assert [a.num_hit_tokens for a in plan.admitted] == [0, 8]  # at least one token is computed
    a, b = plan.chunks
    assert a.block_table[:2] == b.block_table[:2]
    assert a.block_table[2] != b.block_table[2]


@pytest.mark.parametrize(("theirs", "hit"), [(8, 8), (4, 8), (2, 8), (16, 8)])
def test_a_trace_of_block_hashes_shares_what_its_hashes_share(theirs: int, hit: int) -> None:
    """Two prompts of 12 tokens whose first 8 are equal, told in blocks of `theirs` tokens."""
    s = scheduler(max_num_batched_tokens=64, num_gpu_blocks=40)
    common = list(range(max(1, 8 // theirs)))
    rest = max(0, (12 - 8) // theirs)
    for name, private in (("a", 100), ("b", 200)):
        hashes = [*common, *range(private, private + rest)]
        s.add(request(name, 12, prefix_hashes=hashes, prefix_block_size=theirs))
    assert [a.num_hit_tokens for a in s.schedule().admitted] == [0, hit]


def test_publishing_private_content_changes_no_decision() -> None:
    def decisions(publish_all: bool) -> list[Any]:
        s = scheduler(record_chunks=True, publish_all=publish_all)
        for i in range(8):
            s.add(request(f"r{i}", 3 + 2 * i, 9))
        return [(p.chunks, p.admitted, p.preempted) for p in run(s)]

    assert decisions(False) == decisions(True)


@pytest.mark.parametrize("prompt", [8, 11])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_prompt_of_the_models_maximum_ends_after_one_token_or_hangs(
    prompt: int, async_scheduling: bool
) -> None:
    """The real scheduler would do so if the server let such a prompt in: 8 tokens fit in one step, 11 do not."""
    options = {
        "num_gpu_blocks": 12, "block_size": 4, "max_num_seqs": 2, "max_num_batched_tokens": 8, "max_model_len": prompt,
        "enable_prefix_caching": True, "long_prefill_token_threshold": 0, "policy": "fcfs", "watermark": 0.0,
        "scheduler_reserve_full_isl": True, "enable_chunked_prefill": True, "async_scheduling": async_scheduling,
    }  # fmt: skip
    row = Row("a", 0, list(range(prompt)), [9, 9, 9], 3, 0)
    if prompt == 8:
        assert run_both(options, [row]) == 1 + async_scheduling
        return
    plain, shipped = PlainVllm(options), VllmScheduler(record_chunks=True, refuse=False, **options)
    plain.add(row.id, row.prompt, row.outputs, row.max_outputs, 0)
    shipped.add(spec_of(row, "tokens"))
    for _ in range(9):
        scheduled = plain.step()["scheduled"]
        plan = shipped.schedule()
        assert [[c.request_id, c.num_tokens] for c in plan.chunks] == scheduled
        shipped.update(plan, StepResult(0.0))
    assert shipped.has_work()
    assert not scheduled


@pytest.mark.parametrize("damage", ["lost block", "double block", "reference", "due row", "counter", "map"])
def test_check_integrity_finds_damage(damage: str) -> None:
    s = scheduler(publish_all=True)
    for name in "abc":
        s.add(request(name, 6, 8))
    for _ in range(3):
        s.update(s.schedule(), StepResult(0.0))
    s.check_integrity()
    r = next(iter(s.running))
    match damage:
        case "lost block":
            s.pool.blank.pop()
            s.pool.num_free -= 1
        case "double block":
            s.pool.blank.append(r.table[-1])
            s.pool.num_free += 1
        case "reference":
            s.pool.ref[r.table[0]] += 1
        case "due row":
            next(row for row in s.decoding.due if row).pop()
        case "counter":
            s.decoding.num_kv_tokens += 1
        case "map":
            s.pool.block_of.popitem()
    with pytest.raises(IntegrityError):
        s.check_integrity()
