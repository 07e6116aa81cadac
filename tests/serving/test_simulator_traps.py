"""Mistakes that other simulators made, each as a test that fails when the lab makes it too."""

from __future__ import annotations

import warnings

import pytest

from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix import make_prefix_cache
from labkit.observe.recorder import RunRecorder
from labkit.serving.base import Recorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.progress import NoProgress, ProgressGuard
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


def private(i: int, prompt: int, output: int, arrival: float = 0.0) -> RequestSpec:
    tokens = list(range(i * 100_000, i * 100_000 + prompt))
    return RequestSpec(f"r{i}", arrival, prompt, output, output, prompt_token_ids=tokens)


def paged(num_blocks: int, prefix: str = "hash") -> PagedKVCache:
    return PagedKVCache(num_blocks, 1, block_size=4, prefix=make_prefix_cache(prefix, 4))


class Tally(Recorder):
    def __init__(self):
        self.preempted: dict[str, int] = {}
        self.hits_after: list[tuple[int, int]] = []
        self.num_computed = 0

    def on_step(self, scheduler, plan, outcome, start_s, end_s):
        scheduler.check_integrity()
        assert not (plan.preempted and plan.admitted), (
            "an admission never preempts, and nobody joins a step that does"
        )
        for row in plan.preempted:
            self.preempted[row.request_id] = row.num_computed_tokens
        for row in plan.admitted:
            if row.resumed:
                self.hits_after.append((row.num_hit_tokens, self.preempted[row.request_id]))
        self.num_computed += plan.num_scheduled_tokens


def test_blocks_of_a_preempted_request_are_found_only_while_they_are_there():
    """A simulator kept their hashes for ever: throughput 45 times too high under load, right at low load."""
    kv, tally = paged(12), Tally()
    load = [private(i, 20, 24) for i in range(4)]
    simulate(make_scheduler("lab", kv, max_num_batched_tokens=64), LinearStepCost(), load, tally)
    assert len(tally.hits_after) >= 3
    assert all(hit <= had for hit, had in tally.hits_after), "nothing is found that was not computed"
    assert any(hit < had // 4 * 4 for hit, had in tally.hits_after), "the pool was too full to keep all of it"
    useful = sum(r.num_prompt_tokens + r.num_output_tokens - 1 for r in load)
    saved = sum(hit for hit, _ in tally.hits_after)
    lost = sum(had for _, had in tally.hits_after)
    assert tally.num_computed == useful + lost - saved, "what is not found is computed again, and counted"


def test_what_was_placed_and_not_computed_is_never_found():
    """The victim's chunk of the very step in which it is preempted has slots and no content."""
    kv = paged(16)
    kv.admit("victim", 32, max_tokens=40, token_ids=list(range(32)))
    kv.free("victim", num_computed_tokens=13)
    assert kv.lookup(token_ids=list(range(32))) == 12


@pytest.mark.parametrize("gate", ["prompt", "chunk"])
def test_a_request_beyond_the_pool_does_not_spin(gate):
    scheduler = make_scheduler("lab", paged(10), can_ever_fit=False, gate=gate, max_num_batched_tokens=16)
    with pytest.raises(NoProgress):
        simulate(scheduler, LinearStepCost(), [private(0, 60, 10)], max_steps=5000)
    scheduler = make_scheduler("lab", paged(10), gate=gate)
    totals = simulate(scheduler, LinearStepCost(), [private(0, 60, 10), private(1, 8, 4)])
    assert (totals.num_refused, totals.num_finished) == (1, 1)


def test_the_guard_lets_a_slow_prompt_pass():
    """Control: many steps without a new token are progress while the prompt moves on."""
    scheduler = make_scheduler("lab", paged(3000), max_num_batched_tokens=4)
    totals = simulate(scheduler, LinearStepCost(), [private(0, 8000, 2)], guard=ProgressGuard(max_steps=10))
    assert totals.num_steps > 2000
    assert totals.num_finished == 1


def test_admission_takes_nothing_from_running_requests():
    """New arrivals wait: whoever runs is only ever preempted because a running request grew."""
    kv = paged(16)
    scheduler = make_scheduler("lab", kv, reserve="all")
    load = [private(0, 30, 20)] + [private(i, 30, 20, arrival=0.001 * i) for i in range(1, 10)]
    tally = Tally()
    totals = simulate(scheduler, LinearStepCost(), load, tally)
    assert totals.num_preempted == 0
    assert totals.num_finished == 10


def test_ttft_contains_the_queue():
    """A simulator measured from admission: throughput right, TTFT 4.7 times too small."""
    load = [RequestSpec(f"r{i}", 0.0, 30, 30, 30) for i in range(60)]
    recorder = RunRecorder()
    simulate(make_scheduler("lab", PagedKVCache(60, 1, block_size=4)), LinearStepCost(), load, recorder)
    last = max(recorder.requests.values(), key=lambda r: r.admission_s)
    assert last.queue_s > 1
    assert last.ttft_s == pytest.approx(last.first_token_s)  # everybody arrived at 0
    mean = sum(r.ttft_s for r in recorder.requests.values()) / 60
    from_admission = sum(r.first_token_s - r.admission_s for r in recorder.requests.values()) / 60
    assert mean > 4.7 * from_admission, "here the two differ enough to tell them apart"


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_partial_block_is_a_block(num_tokens, num_blocks):
    kv = PagedKVCache(10, 1, block_size=4)
    scheduler = make_scheduler("lab", kv)
    scheduler.add(RequestSpec("r", 0.0, num_tokens, 4, 4))
    scheduler.schedule()
    assert 10 - kv.num_free_blocks == num_blocks
    assert scheduler.usage == pytest.approx(num_blocks / 10)


def test_a_long_overload_says_nothing(capfd):
    """No warning for each refused or preempted request: a million of them would be the run's main work."""
    load = [private(i, 20 + 40 * (i % 2), 24, arrival=0.01 * i) for i in range(300)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        totals = simulate(make_scheduler("lab", paged(12)), LinearStepCost(), load)
    assert totals.num_refused > 100
    assert totals.num_preempted > 50
    assert not caught
    out = capfd.readouterr()
    assert out.out == out.err == ""


def test_usage_counts_live_blocks_and_a_hit_counts_once():
    kv = paged(32)
    scheduler = make_scheduler("lab", kv)
    first = RunRecorder()
    simulate(scheduler, LinearStepCost(), [private(0, 40, 2)], first)
    assert scheduler.usage == 0.0, "cached blocks that nobody holds are not in use"
    assert kv.stats().cached_bytes > 0
    again = RunRecorder()
    spec = private(0, 40, 2)
    simulate(scheduler, LinearStepCost(), [spec], again)
    assert again.num_hit_tokens == 36, "nine whole blocks; the last token is always computed"
