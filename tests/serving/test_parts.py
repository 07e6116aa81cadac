"""Each part alone: what changes when one decision is exchanged and everything else stays."""

from __future__ import annotations

import pytest

from labkit.kv import make_kv_cache
from labkit.observe.recorder import RunRecorder
from labkit.serving.admission import BlockAdmission
from labkit.serving.base import Recorder
from labkit.serving.batching import BatchComposition
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.lab import LabScheduler
from labkit.serving.order import QueueOrder
from labkit.serving.pressure import PressureResponse
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


def spec(request_id, prompt, output=10, arrival=0.0, **more):
    return RequestSpec(request_id, arrival, prompt, output, output, **more)


def serve(load, num_blocks=1000, scheduler=None, prefix="off", clock="step", **options):
    kv = make_kv_cache("paged", capacity_tokens=num_blocks * 16, bytes_per_token=1, prefix=prefix)
    scheduler = scheduler(kv) if scheduler else make_scheduler("lab", kv, **options)
    trail = Trail()
    trail.totals = simulate(scheduler, LinearStepCost(), load, trail, clock=clock)
    scheduler.check_integrity()
    return trail


class Trail(RunRecorder):
    def __init__(self):
        super().__init__()
        self.plans = []
        self.admissions: list[str] = []

    def on_step(self, scheduler, plan, outcome, start_s, end_s):
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        self.plans.append((plan.num_prefill_tokens, plan.num_decode_requests))
        self.admissions += [row.request_id for row in plan.admitted]

    def waits(self):
        return {r.request_id: r.queue_s for r in self.requests.values()}


# --- queue order ---------------------------------------------------------------------------------------------------------


QUEUE = [
    spec("long", 300, priority=2),
    spec("short", 20, priority=1),
    spec("middle", 100, priority=0),
]
ORDERS = {
    "fcfs": ["long", "short", "middle"],
    "shortest-prompt": ["short", "middle", "long"],
    "priority": ["middle", "short", "long"],
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders(order):
    assert serve(QUEUE, order=order, max_num_seqs=1).admissions == ORDERS[order]


def test_longest_prefix_goes_first_and_sees_the_cache_change():
    hot = list(range(160))
    load = [
        RequestSpec("seed", 0.0, 160, 5, 5, prompt_token_ids=hot),
        RequestSpec("cold", 1.0, 160, 5, 5, prompt_token_ids=list(range(900, 1060))),
        RequestSpec("warm", 1.0, 160, 5, 5, prompt_token_ids=hot),
        RequestSpec("half", 1.0, 160, 5, 5, prompt_token_ids=hot[:80] + list(range(500, 580))),
    ]
    ordered = serve(load, order="longest-prefix", max_num_seqs=1, prefix="hash")
    assert ordered.admissions == ["seed", "warm", "half", "cold"]
    assert serve(load, order="fcfs", max_num_seqs=1, prefix="hash").admissions == [
        "seed",
        "cold",
        "warm",
        "half",
    ]


def test_shortest_first_starves_and_ageing_does_not():
    load = [spec("large", 200, 5)] + [spec(f"s{i}", 10, 5, arrival=float(i)) for i in range(0, 300, 2)]
    load.sort(key=lambda r: r.arrival_s)
    starved = serve(load, order="shortest-prompt", max_num_seqs=1).waits()["large"]
    aged = serve(load, order="ageing", tokens_per_step=5.0, max_num_seqs=1).waits()["large"]
    assert aged < 100 < 300 < starved


# --- admission -----------------------------------------------------------------------------------------------------------


def test_units_admit_differently():
    """Twenty short requests and one long: the coarser the unit, the less it knows."""
    load = [spec(f"s{i}", 17, 40) for i in range(20)]
    running = {
        name: serve(load, num_blocks=40, admission=name, **options).peak_running
        for name, options in {
            "requests": {"max_requests": 5},
            "tokens": {"max_tokens": 17 * 8},
            "blocks": {},
            "bytes": {"max_bytes": 2 * 16 * 12},
        }.items()
    }
    assert running == {"requests": 5, "tokens": 8, "blocks": 20, "bytes": 12}


def test_headroom_trades_preemptions_for_waiting():
    load = [spec(f"r{i}", 40, 60) for i in range(12)]
    bare, kept = (serve(load, num_blocks=30, headroom=h) for h in (0.0, 0.4))
    assert bare.num_preemptions > kept.num_preemptions
    assert bare.peak_running > kept.peak_running


def test_a_prediction_reserves_less_than_the_maximum():
    load = [RequestSpec(f"r{i}", 0.0, 16, 8, 240) for i in range(16)]
    running = {r: serve(load, num_blocks=64, reserve=r).peak_running for r in ("all", "predicted", "none")}
    assert running["all"] == 4 < running["predicted"] < running["none"] == 16


# --- batch composition ---------------------------------------------------------------------------------------------------


LATE = [spec("a", 100, 20), spec("b", 300, 20, arrival=3.0)]


def test_static_batches_join_only_when_everybody_has_left():
    waits = serve(LATE, batching="static").waits()
    assert waits["b"] == 17
    assert serve(LATE, batching="continuous").waits()["b"] == 0


def test_chunked_prefill_keeps_the_budget_and_decodes_go_on():
    trail = serve(LATE, batching="chunked", max_num_batched_tokens=64)
    assert max(p + d for p, d in trail.plans) == 64
    assert [(p, d) for p, d in trail.plans if p] == [(64, 0), (36, 0)] + [(63, 1)] * 4 + [(48, 1)]


def test_whole_prompts_may_overrun_the_budget_alone():
    trail = serve(LATE, batching="mixed", max_num_batched_tokens=64)
    assert [p for p, _ in trail.plans if p] == [100, 300]


def test_prefill_first_stalls_decodes_and_decode_first_stalls_prompts():
    first = serve(LATE, batching="prefill-first", max_num_batched_tokens=64)
    assert all(not (p and d) for p, d in first.plans), "kinds do not mix"
    assert first.waits()["b"] == 0
    last = serve(LATE, batching="decode-first", max_num_batched_tokens=64)
    assert all(not (p and d) for p, d in last.plans)
    assert last.waits()["b"] > 15


def test_a_threshold_leaves_budget_for_others():
    load = [spec("long", 400, 5), spec("short", 30, 5)]
    plain = serve(load, max_num_batched_tokens=100).waits()["short"]
    capped = serve(load, max_num_batched_tokens=100, long_prefill_threshold=60).waits()["short"]
    assert capped == 0 < plain


def test_pools_keep_short_prompts_moving():
    load = [spec(f"long{i}", 1000, 5) for i in range(4)] + [spec("short", 30, 5)]
    mixed = serve(load, max_num_batched_tokens=128).requests["short"].ttft_s
    pools = serve(
        load,
        batching="pools",
        max_num_batched_tokens=128,
        long_prompt=100,
        long_tokens=64,
        max_long=1,
        blocked="skip",
    )
    assert pools.requests["short"].ttft_s == 1 < mixed


# --- pressure ------------------------------------------------------------------------------------------------------------


TIGHT = [spec(f"r{i}", 40, 60) for i in range(6)]


def test_pressure_responses():
    refuse = serve(TIGHT, num_blocks=20, pressure="refuse")
    assert refuse.num_dropped > 0
    assert refuse.num_finished + refuse.num_dropped == 6
    degrade = serve(TIGHT, num_blocks=20, pressure="degrade", high=0.7, max_output_tokens=10)
    short = [r for r in degrade.requests.values() if r.num_output_tokens < 60]
    assert degrade.num_finished == 6
    assert short
    recompute = serve(TIGHT, num_blocks=20, pressure="recompute")
    assert recompute.num_preemptions > 0
    assert all(r.num_output_tokens == 60 for r in recompute.requests.values())
    throttle = serve(TIGHT, num_blocks=20, pressure="throttle", high=0.5, low=0.3)
    assert throttle.num_preemptions < recompute.num_preemptions
    swap = serve(TIGHT, num_blocks=20, pressure="swap")
    assert swap.totals.swapped_bytes > 0
    assert swap.num_lost_tokens == 0 < recompute.num_lost_tokens


def test_the_least_urgent_is_the_victim():
    load = [spec("urgent", 40, 60, priority=0), spec("b", 40, 60, priority=5), spec("c", 40, 60, priority=1)]
    last = serve(load, num_blocks=16, victim="last")
    least = serve(load, num_blocks=16, victim="least-urgent")
    assert last.requests["c"].num_preemptions > 0
    assert least.requests["b"].num_preemptions > 0
    assert least.requests["urgent"].num_preemptions == least.requests["c"].num_preemptions == 0


def test_a_victim_gives_its_share_of_the_step_back():
    """Three prompts under way; the second takes the room of the first (least urgent), and the third its tokens."""
    load = [spec("a", 200, 5, priority=9), spec("b", 200, 5, priority=0), spec("c", 200, 5, priority=1)]
    kv = make_kv_cache("paged", capacity_tokens=22 * 16, bytes_per_token=1)
    scheduler = make_scheduler(
        "lab",
        kv,
        gate="chunk",
        victim="least-urgent",
        max_num_batched_tokens=100,
        long_prefill_threshold=48,
        record_chunks=True,
    )
    steps = []

    class Steps(Recorder):
        def on_step(self, scheduler, plan, outcome, start_s, end_s):
            chunks = {c.request_id: c.num_tokens for c in plan.chunks}
            steps.append((chunks, [row.request_id for row in plan.preempted]))

    simulate(scheduler, LinearStepCost(), load, Steps(), clock="step")
    assert steps[0] == ({"a": 48, "b": 48, "c": 4}, [])
    assert steps[3] == ({"b": 48, "c": 48}, ["a"]), "c would get 4 tokens without the give-back"


def test_split_pools_shield_the_short_from_the_long():
    load = [
        spec("s0", 40, 100),
        spec("long0", 300, 100),
        spec("long1", 300, 100),
        spec("s1", 40, 100, arrival=2.0),
    ]

    def kind(request):
        return "long" if request.num_prompt_tokens > 100 else "short"

    def victims(**options):
        trail = serve(load, num_blocks=48, **options)
        assert trail.num_finished == 4
        return {r.request_id for r in trail.requests.values() if r.num_preemptions}

    pools = {"pressure": "pools", "classify": kind, "blocked": "skip"}
    assert "s1" in victims(pressure="recompute")
    assert not {"s0", "s1"} & victims(**pools, shares={"long": 0.55, "short": 0.45})


def test_a_request_beyond_its_share_is_refused():
    load = [spec("long", 300, 100), spec("short", 30, 10)]
    trail = serve(
        load,
        num_blocks=48,
        pressure="pools",
        classify=lambda r: "long" if r.num_prompt_tokens > 100 else "short",
        shares={"long": 0.4, "short": 0.6},
    )
    assert (trail.num_refused, trail.num_finished) == (1, 1)
    assert trail.requests["long"].refused == (
        "request long can never fit: it needs 25 blocks and the class 'long' may hold 19 of 48"
    )


# --- one's own -----------------------------------------------------------------------------------------------------------


def test_a_scheduler_of_ones_own_parts():
    """The four smallest parts that do something, together."""

    class Newest(QueueOrder):
        def key(self, request, space):
            return -request.arrival

    class Half(BlockAdmission):
        def capacity(self, space):
            return space.num_blocks // 2

        def free(self, space, num_running, num_tokens):
            return super().free(space, num_running, num_tokens) - space.num_blocks // 2

    class OnePrompt(BatchComposition):
        def chunk(self, request, want):
            return super().chunk(request, want) if self._first_prompt else 0

    class DropLongest(PressureResponse):
        def relieve(self, scheduler, plan, request):
            victim = max(scheduler.running.values(), key=lambda r: r.num_prompt_tokens)
            scheduler.drop(plan, victim, "the longest goes")
            return victim is not request

    trail = serve(
        [spec(f"r{i}", 30 + i, 90) for i in range(6)],
        num_blocks=24,
        scheduler=lambda kv: LabScheduler(
            kv, order=Newest(), admission=Half(), batching=OnePrompt(), pressure=DropLongest()
        ),
    )
    assert trail.admissions[0] == "r5"
    assert trail.num_finished + trail.num_dropped == 6
    assert trail.num_dropped > 0


def test_a_recorder_may_implement_nothing():
    kv = make_kv_cache("paged", capacity_tokens=320, bytes_per_token=1)
    assert simulate(make_scheduler("lab", kv), LinearStepCost(), [spec("a", 5)], Recorder()).num_finished == 1
