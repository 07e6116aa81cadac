"""`why_waiting` names the limit that binds, with the numbers; the no-progress guard names the circle."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.kv import make_kv_cache
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.progress import NoProgress, ProgressGuard
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


def spec(request_id: str, prompt: int, output: int = 50, arrival: float = 0.0) -> RequestSpec:
    return RequestSpec(request_id, arrival, prompt, output, output)


def after_steps(scheduler, load, num_steps: int):
    simulate(scheduler, LinearStepCost(), load, clock="step", max_steps=num_steps)
    return scheduler


def paged(num_blocks: int = 20):
    return make_kv_cache("paged", capacity_tokens=num_blocks * 16, bytes_per_token=1)


LIMITS = {
    # limit: (scheduler options, load, who waits)
    "blocks": ({}, [spec("a", 200), spec("b", 200)], "b"),
    "max_num_seqs": ({"max_num_seqs": 1}, [spec("a", 20), spec("b", 20)], "b"),
    "head_of_line": ({}, [spec("a", 200), spec("b", 200), spec("c", 10)], "c"),
    "batch_running": ({"batching": "static"}, [spec("a", 20), spec("b", 20, arrival=1)], "b"),
    "decodes_first": ({"batching": "decode-first"}, [spec("a", 20), spec("b", 20, arrival=1)], "b"),
    "throttle": (
        {"pressure": "throttle", "high": 0.3, "low": 0.2},
        [spec("a", 100), spec("b", 10, arrival=1)],
        "b",
    ),
    "reserved_blocks": ({"reserve": "all"}, [spec("a", 20, 200), spec("b", 20, 200)], "b"),
    "max_long": (
        {"batching": "pools", "long_prompt": 50, "max_long": 1},
        [spec("a", 60), spec("b", 60)],
        "b",
    ),
    "pool_short": ({"pressure": "pools"}, [spec("a", 100), spec("b", 100)], "b"),
    "tokens": ({"admission": "tokens", "max_tokens": 120}, [spec("a", 60), spec("b", 61)], "b"),
    "bytes": ({"admission": "bytes", "max_bytes": 160}, [spec("a", 90), spec("b", 90)], "b"),
    "requests": ({"admission": "requests", "max_requests": 1}, [spec("a", 20), spec("b", 20)], "b"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_the_limit_that_binds_is_named(limit):
    options, load, waiting = LIMITS[limit]
    scheduler = after_steps(make_scheduler("lab", paged(), **options), load, 2)
    reason = scheduler.why_waiting(waiting)
    assert reason.limit == limit
    assert reason.can_ever_fit
    assert reason.request_id == waiting
    assert f"{waiting} waits: " in reason.sentence
    scheduler.check_integrity()


def test_numbers_are_the_caches_own():
    scheduler = after_steps(make_scheduler("lab", paged()), [spec("a", 200), spec("b", 200)], 1)
    reason = scheduler.why_waiting("b")
    assert (reason.num_needed_blocks, reason.num_free_blocks, reason.num_evictable_blocks) == (13, 7, 0)
    assert "needs 13 blocks, 7 of 20 are free" in reason.sentence


def test_headroom_is_said():
    scheduler = make_scheduler("lab", paged(), headroom=0.25)
    after_steps(scheduler, [spec("a", 150), spec("b", 100)], 1)
    reason = scheduler.why_waiting("b")
    assert reason.limit == "blocks"
    assert "needs 7 blocks, 10 of 20 are free, 5 of them kept as headroom" in reason.sentence


def test_contiguous_room_is_told_from_capacity():
    """Two of three runs leave; what they leave does not lie side by side."""
    kv = make_kv_cache("reserve-oracle", capacity_tokens=320, bytes_per_token=1)
    scheduler = make_scheduler("lab", kv, can_ever_fit=False)
    load = [spec("a", 98, 2), spec("b", 40, 60), spec("c", 98, 2), spec("d", 100, 60, arrival=3)]
    after_steps(scheduler, load, 5)
    reason = scheduler.why_waiting("d")
    assert reason.limit == "contiguous_room"
    assert (reason.num_needed_blocks, reason.num_free_blocks) == (160, 220)
    assert "enough is free in total, and no single span is long enough" in reason.sentence


def test_a_reservation_that_is_larger_than_what_is_free():
    kv = make_kv_cache("reserve-max", capacity_tokens=320, bytes_per_token=1, max_model_len=200)
    scheduler = after_steps(make_scheduler("lab", kv, can_ever_fit=False), [spec("a", 20), spec("b", 20)], 2)
    reason = scheduler.why_waiting("b")
    assert reason.limit == "blocks"
    assert (reason.num_needed_blocks, reason.num_free_blocks) == (200, 120)


def test_a_reservation_beyond_the_cache_is_refused_on_arrival():
    kv = make_kv_cache("reserve-max", capacity_tokens=320, bytes_per_token=1, max_model_len=400)
    scheduler = make_scheduler("lab", kv, max_model_len=400)
    assert scheduler.add(spec("a", 20, 10)) == (
        "request a can never fit: an admission asks for 400 blocks, the cache has 320"
    )
    assert not scheduler.has_work()


def test_cached_blocks_are_evictable():
    kv = make_kv_cache("paged", capacity_tokens=320, bytes_per_token=1, prefix="hash")
    scheduler = make_scheduler("lab", kv)
    cached = RequestSpec("a", 0.0, 100, 1, 1, prompt_token_ids=list(range(100)))
    after_steps(scheduler, [cached, spec("b", 230, 60, arrival=1), spec("c", 100, arrival=2)], 4)
    reason = scheduler.why_waiting("c")
    assert reason.num_evictable_blocks > 0
    assert reason.num_free_blocks + reason.num_evictable_blocks < reason.num_needed_blocks


def holds_from_outside(num_tokens: int):
    """Ten blocks: four hold a prefix that nobody uses, the rest is left to what is held from outside the scheduler."""
    kv = make_kv_cache("paged", capacity_tokens=160, bytes_per_token=1, prefix="hash")
    scheduler = make_scheduler("lab", kv)
    shared = list(range(64))
    simulate(
        scheduler,
        LinearStepCost(),
        [RequestSpec("a", 0.0, 65, 1, 1, prompt_token_ids=[*shared, 0])],
        clock="step",
    )
    kv.admit("a session elsewhere", num_tokens, max_tokens=num_tokens)
    scheduler.add(RequestSpec("b", 0.0, 110, 2, 2, prompt_token_ids=[*shared, *range(200, 246)]))
    return scheduler


def test_its_own_cached_prefix_makes_no_room_for_it():
    """Three blocks are needed beside the four that are hit, and the four cannot be evicted for them."""
    scheduler = holds_from_outside(64)
    reason = scheduler.why_waiting("b")
    assert (reason.limit, reason.num_needed_blocks) == ("blocks", 3)
    assert "needs 3 blocks, 6 of 10 are free, 4 of them its own cached prefix" in reason.sentence
    assert (
        "nobody runs here, so whoever holds the other 4 is none of this scheduler's requests"
        in reason.sentence
    )
    assert not scheduler.schedule().admitted
    with pytest.raises(NoProgress, match="blocks are short"):
        simulate(scheduler, LinearStepCost(), [], guard=ProgressGuard(max_steps=20))


def test_control_one_block_less_is_held_and_it_joins():
    scheduler = holds_from_outside(48)
    assert scheduler.why_waiting("b").limit == "none"
    assert [row.request_id for row in scheduler.schedule().admitted] == ["b"]


def test_the_first_chunk_is_what_joins():
    kv = make_kv_cache("paged", capacity_tokens=160, bytes_per_token=1)
    kv.admit("a session elsewhere", 80, max_tokens=80)
    scheduler = make_scheduler("lab", kv, gate="chunk", max_num_batched_tokens=32)
    scheduler.add(spec("b", 100))
    assert "its first 32 tokens take 2" in scheduler.why_waiting("b").sentence
    assert scheduler.why_waiting("b").limit == "none"
    assert scheduler.schedule().admitted


def test_what_the_cache_itself_refuses_is_said():
    """Counting requests does not look at memory; the cache does."""
    scheduler = make_scheduler("lab", paged(10), admission="requests")
    scheduler.add(spec("b", 100, 200))
    reason = scheduler.why_waiting("b")
    assert (reason.limit, reason.can_ever_fit) == ("capacity", False)
    assert "it may grow beyond the whole cache" in reason.sentence
    assert not scheduler.schedule().admitted


CACHES = {
    "paged": {},
    "paged, hash": {"prefix": "hash"},
    "paged, radix": {"prefix": "radix"},
    "paged, window": {"window": 24},
    "reserve-oracle": {},
    "reserve-pow2": {},
    "grow": {},
    "grow-compact": {},
}


@pytest.mark.parametrize("cache", CACHES)
def test_the_head_joins_an_idle_scheduler_exactly_when_nothing_is_named(cache):
    """Random settings and loads, with blocks that somebody else holds in half of them."""
    num_asked = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        num_blocks = int(rng.integers(6, 24))
        capacity = num_blocks * 16
        kv = make_kv_cache(cache.split(",")[0], capacity_tokens=capacity, bytes_per_token=1, **CACHES[cache])
        scheduler = make_scheduler(
            "lab",
            kv,
            admission=str(rng.choice(["blocks", "tokens", "bytes", "requests"])),
            gate=str(rng.choice(["chunk", "prompt"])),
            can_ever_fit=bool(rng.integers(2)),
            headroom=float(rng.choice([0, 0.3])),
            batching=str(rng.choice(["chunked", "static", "decode-first", "mixed"])),
            max_num_batched_tokens=int(rng.choice([20, 60, 2048])),
            pressure=str(rng.choice(["recompute", "swap", "wait"])),
        )
        if rng.integers(2):
            held = int(rng.integers(1, capacity // 2))
            kv.admit("a session elsewhere", held, max_tokens=held, final_tokens=held)
        common = [int(token) for token in rng.integers(0, 9, capacity)]
        for i in range(8):
            num_prompt = int(rng.integers(1, capacity * 3 // 4))
            num_shared = int(rng.integers(0, num_prompt + 1))
            own = [int(token) for token in rng.integers(100, 200, num_prompt - num_shared)]
            num_output = int(rng.integers(1, 30))
            allowed = num_output + int(rng.choice([0, capacity // 4]))
            scheduler.add(
                RequestSpec(
                    f"r{i}", 0.0, num_prompt, num_output, allowed, prompt_token_ids=common[:num_shared] + own
                )
            )
        for _ in range(60):
            reason = None
            if len(scheduler.waiting) and not scheduler.running:
                head = next(iter(scheduler.waiting)).request_id
                reason = scheduler.why_waiting(head)
            plan = scheduler.schedule()
            if reason is not None:
                num_asked += 1
                joined = head in [row.request_id for row in plan.admitted]
                assert joined == (reason.limit == "none"), (seed, reason.sentence)
            if not plan.num_scheduled_tokens and not plan.swapped_bytes:
                break
            scheduler.update(plan, LinearStepCost().execute(plan))
    assert num_asked > 20


def test_asking_changes_nothing():
    options, load, _ = LIMITS["throttle"]
    asked = make_scheduler("lab", paged(), **options)
    silent = make_scheduler("lab", paged(), **options)
    for scheduler, asks in ((asked, True), (silent, False)):
        for request in load:
            scheduler.add(request)
        rows = []
        for _ in range(80):
            if not scheduler.has_work():
                break
            plan = scheduler.schedule()
            if asks:
                for request in list(scheduler.waiting):
                    scheduler.why_waiting(request.request_id)
            result = LinearStepCost().execute(plan)
            outcome = scheduler.update(plan, result)
            rows.append((plan.num_scheduled_tokens, tuple(plan.admitted), tuple(outcome.finished)))
        scheduler.rows = rows
    assert asked.rows == silent.rows


def test_only_those_who_wait_can_be_asked_about():
    scheduler = after_steps(make_scheduler("lab", paged()), [spec("a", 200), spec("b", 200)], 1)
    for request_id in ("a", "nobody"):
        with pytest.raises(LabError, match=f"request '{request_id}' is not waiting; waiting: b"):
            scheduler.why_waiting(request_id)


def test_two_stalled_requests_are_a_deadlock_that_is_named():
    """Pressure response "wait": each holds what the other needs."""
    scheduler = make_scheduler("lab", paged(10), pressure="wait")
    with pytest.raises(NoProgress, match="2 running and none of them can go on"):
        simulate(
            scheduler,
            LinearStepCost(),
            [spec("a", 70, 60), spec("b", 70, 60)],
            guard=ProgressGuard(max_steps=20),
        )


def test_the_guard_counts_only_steps_without_progress():
    """Control: the same load with recompute is served."""
    scheduler = make_scheduler("lab", paged(10), pressure="recompute")
    totals = simulate(
        scheduler, LinearStepCost(), [spec("a", 70, 60), spec("b", 70, 60)], guard=ProgressGuard(max_steps=20)
    )
    assert totals.num_finished == 2
    assert totals.num_preempted > 0
