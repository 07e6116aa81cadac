"""Section 10: its predicates and their controls, the situations, and the page made of them."""

from pathlib import Path

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.experiments.prefix_reuse import conversations
from labkit.experiments.scheduling import with_client_limit
from labkit.experiments.three_systems import (
    at_rate,
    empty_slots,
    side_by_side,
    system,
    table,
    three_ways,
    until_waiting,
)
from labkit.experiments.three_systems_mechanisms import (
    built_for,
    capacity_policies,
    costs_kv,
    fastest_is_not_steadiest,
    num_pieces,
    one_at_a_time,
    step_fill,
    vllm_blocks,
)
from labkit.experiments.three_systems_programs import (
    program_load,
    reuse_against_lifetime,
    sglang_programs,
    single_calls,
)
from labkit.experiments.three_systems_recordings import (
    RECORDINGS,
    exact,
    replay_recordings,
    replay_with_another_pool,
)
from labkit.experiments.three_systems_situations import page, situation, situations
from labkit.workload.base import RequestSpec

POOL = 24_000


@pytest.fixture(params=[0, 1, 2], scope="module")
def seed(request):
    return request.param


@pytest.fixture(scope="module")
def load(seed):
    return at_rate(with_client_limit(conversations(200, np.random.default_rng(seed))), 870.0)


def test_vllm_serves_from_scattered_blocks_and_sharing_changes_reclaim(load):
    shared = vllm_blocks(load, POOL)
    assert shared.anywhere()
    assert shared.shared_reclaim()
    assert not vllm_blocks(load, POOL, enable_prefix_caching=False).shared_reclaim()
    assert not vllm_blocks(one_at_a_time(load[:30]), 400_000).anywhere()


def test_num_pieces():
    assert [num_pieces(blocks) for blocks in ([], [4], [4, 5, 6], [4, 6, 5])] == [0, 1, 1, 3]


def test_a_larger_step_leaves_less_kv():
    assert costs_kv(built_for(131_072), built_for(2048))
    assert not costs_kv(built_for(8192), built_for(2048))


def test_the_fast_capacity_policy_pauses_and_the_steady_one_lets_wait(load):
    tight = capacity_policies(load, POOL)
    assert fastest_is_not_steadiest(tight)
    assert tight["GUARANTEED_NO_EVICT"].num_preempted == 0
    assert not fastest_is_not_steadiest(capacity_policies(load, 200_000))
    assert 0 <= step_fill(tight["MAX_UTILIZATION"], 2048)["padding of decode graphs"] < 0.5


def test_programs_reuse_what_outlived_its_call_and_single_calls_do_not(seed):
    calls, answers = program_load(np.random.default_rng(seed), num_programs=30)
    ample, tight = (sglang_programs(calls, answers, size) for size in (40_000, 10_000))
    assert reuse_against_lifetime(ample, tight)
    alone = single_calls(calls, answers)
    lone = [sglang_programs(*alone, size) for size in (40_000, 10_000)]
    assert not reuse_against_lifetime(*lone)
    assert lone[0].outlived_share > 0.5  # lifetime without reuse
    assert lone[0].hit_share == 0.0


def test_three_ways_to_be_manageable(load):
    runs = side_by_side(load, POOL)
    contiguous = runs.pop("contiguous, reserved")
    assert three_ways(list(runs.values()))
    assert not contiguous.manageable()
    assert not three_ways([runs["vLLM"], runs["vLLM"]])
    assert list(table([*runs.values()])["name"]) == ["vLLM", "SGLang", "TensorRT-LLM"]


@pytest.mark.parametrize(("name", "block"), [("vllm", 16), ("tensorrt_llm", 32), ("sglang", 1)])
def test_empty_slots_are_those_of_the_last_block(name, block):
    from labkit.experiments.three_systems_small import step

    server = system(name, 3200)
    server.add(RequestSpec("a", 0.0, 100, 50, 50))
    for _ in range(3):
        step(server)
    num_computed = 102  # the last sampled token has no KV yet
    assert empty_slots(server) == -num_computed % block


def test_recordings_replay_exactly_and_not_with_another_pool():
    assert len({name.split("/")[0] for name in RECORDINGS}) == 3
    assert exact([verdict.comparison for verdict in replay_recordings()])
    for name in ("vllm/pressure", "sglang/pressure_retract", "trtllm/pressure_max_util"):
        assert not exact([replay_with_another_pool(name)])


def test_a_full_pool_leaves_somebody_waiting(load):
    scheduler = until_waiting("vllm", load, 12_000, num_waiting=3)
    assert len(scheduler.waiting) >= 3


def test_unknown_names_are_said():
    with pytest.raises(LabError, match="unknown system 'tgi'"):
        system("tgi", 1000)
    with pytest.raises(LabError, match="unknown situation"):
        situation("rain")


def test_identical_prompts_in_one_step_have_three_answers():
    figures = situation("identical prompts").figures
    assert figures == {"vllm": (0, 240, 272), "sglang": (0, 0, 512), "tensorrt_llm": (1, 224, 288)}


def test_an_exhausted_pool_is_paid_for_by_different_people():
    plain, bold = situation("pool exhausted").figures, situation("pool exhausted, tuned for speed").figures
    assert plain["vllm"][1][0] == "r5"  # the last admitted
    assert plain["sglang"][1] == plain["tensorrt_llm"][1] == []
    assert bold["sglang"][1]
    assert bold["tensorrt_llm"][1]
    assert plain["vllm"][0] > plain["sglang"][0] > plain["tensorrt_llm"][0]  # how many run at once


def test_only_sglang_stops_decoding_for_a_long_prompt():
    figures = situation("a prompt longer than the budget").figures
    assert {name: beside for name, (_, beside) in figures.items()} == {
        "vllm": 3,
        "sglang": 0,
        "tensorrt_llm": 3,
    }
    assert all(sum(sizes) == 1200 for sizes, _ in figures.values())


def test_a_request_that_can_never_fit_is_refused_by_all():
    assert all(situation("a request that can never fit").figures.values())


def test_nothing_of_a_shared_prefix_comes_free_with_the_first_that_ends():
    for rows in situation("a shared prefix is freed").figures.values():
        (first, live, _), (second, rest, cached) = rows
        assert (first, second, rest) == ("a", "b", 0)
        assert live >= 320
        assert cached > 320


def test_the_page_says_what_the_models_do():
    written = Path(__file__).parents[2] / "docs" / "systems.md"
    assert written.read_text(encoding="utf-8") == page(), "run the command that stands in docs/systems.md"
    assert len(situations()) >= 10
