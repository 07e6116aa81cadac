"""Lives of blocks against a notebook kept independently, on random runs with and without a prefix cache."""

from __future__ import annotations

import numpy as np
import pytest
from recorded_runs import run

from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix import make_prefix_cache
from labkit.observe.block_watch import BlockWatch, histogram, pooled
from labkit.observe.recorder import make_recorder
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec


def cache(num_blocks: int, prefix: bool) -> PagedKVCache:
    return PagedKVCache(num_blocks, 1, block_size=4, prefix=make_prefix_cache("hash", 4) if prefix else None)


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_against_a_log_of_states(seed, prefix):
    """After every single operation the state of each block is read off the pool; changes of state are the events."""
    rng = np.random.default_rng(seed)
    kv = cache(40, prefix)
    watch = BlockWatch(kv, 0.0)
    state, born, idle_since = ["free"] * 40, [0.0] * 40, [0.0] * 40
    lifetimes, idles, gaps, live = [], [], [], {}

    def look(now: float) -> None:
        for block in range(40):
            held = kv.pool.refs[block] > 0
            found = kv.pool.prefix is not None and kv.pool.prefix.holds(block)
            new = "held" if held else "cached" if found else "free"
            old = state[block]
            if old == "free" and new != "free":
                born[block] = now
            if old == "held" and new == "cached":
                idle_since[block] = now
            if old == "cached" and new == "held":
                gaps.append(now - idle_since[block])
            if old != "free" and new == "free":
                lifetimes.append(now - born[block])
                if old == "cached":
                    idles.append(now - idle_since[block])
            state[block] = new

    now = 0.0
    for step in range(400):
        now += float(rng.uniform(0.1, 1.0))
        evicted_before = watch.num_evicted
        if live and rng.random() < 0.45:
            name = rng.choice(list(live))
            kv.free(name, num_computed_tokens=live.pop(name))
        else:
            family, length = int(rng.integers(0, 4)), int(rng.integers(1, 40))
            ids = [family * 1000 + i for i in range(length)]
            options = {"token_ids": ids} if prefix else {}
            if kv.admit(f"r{step}", length, max_tokens=length, **options).admitted:
                live[f"r{step}"] = length
        watch.on_step(0, now, now)
        if watch.num_evicted == evicted_before:
            look(now)
        else:  # evicted and taken within one operation: the log sees cached -> held, the watch the eviction
            for block in range(40):
                if state[block] == "cached" and watch.born[block] == now:
                    lifetimes.append(now - born[block])
                    idles.append(now - idle_since[block])
                    state[block] = "free"
            look(now)
    assert sorted(pooled(watch.lifetimes_s)) == pytest.approx(sorted(lifetimes))
    assert sorted(pooled(watch.idle_before_evict_s)) == pytest.approx(sorted(idles))
    assert sorted(pooled(watch.reuse_gaps_s)) == pytest.approx(sorted(gaps))
    assert watch.counts[: max(kv.pool.refs) + 1] == np.bincount(kv.pool.refs).tolist()
    if prefix:
        assert len(idles) > 10
        assert len(gaps) > 10


def test_a_run_keeps_block_seconds():
    kv = cache(200, False)
    scheduler = make_scheduler("lab", kv, max_num_batched_tokens=64)
    recorder = make_recorder("full")
    load = [RequestSpec(f"r{i}", 0.05 * i, 20 + i % 7, 10 + i % 5) for i in range(60)]
    simulate(scheduler, LinearStepCost(), load, recorder)
    watch, busy = recorder.blocks, recorder.series.column("end_s")
    assert watch.num_failed == recorder.num_preemptions == 0
    assert sum(watch.reference_counts().values()) == pytest.approx(1.0)
    watch._settle()
    first = busy[0] - recorder.series.column("start_s")[0]
    assert sum(watch.ref_seconds) == pytest.approx(200 * (recorder.busy_s - first))
    assert len(pooled(watch.lifetimes_s)) == sum(
        -(-(r.num_prompt_tokens + r.num_output_tokens - 1) // 4) for r in load
    )
    assert "take" not in vars(kv.pool), "the cache has its own methods back"


def test_sharing_delays_the_way_back():
    kv = cache(40, True)
    watch = BlockWatch(kv, 0.0)
    ids = list(range(16))
    kv.admit("a", 16, max_tokens=16, token_ids=ids)
    watch.on_step(0, 0.0, 1.0)
    kv.admit("b", 16, max_tokens=16, token_ids=ids)
    watch.on_step(0, 1.0, 2.0)
    kv.free("a")
    watch.on_step(1, 2.0, 3.0)
    kv.free("b")
    watch.on_step(1, 3.0, 10.0)
    delays = pooled(watch.reclaim_delays_s)
    assert sorted(delays) == pytest.approx([0.0, 0.0, 7.0, 7.0, 7.0]), (
        "three shared blocks wait for b; two private ones"
    )


def test_failures_are_counted_and_detached():
    kv = cache(3, False)
    watch = BlockWatch(kv)
    assert not kv.admit("a", 99, max_tokens=99).admitted
    assert watch.num_failed == 1
    watch.detach()
    kv.admit("b", 99, max_tokens=99)
    assert watch.num_failed == 1


def test_histogram_keeps_everything():
    edges, counts = histogram(np.array([0.0, 0.0015, 3.0, 1e9]))
    assert counts.sum() == 4
    assert counts[0] == 2
    assert counts[-1] == 1
    assert len(edges) == len(counts) + 1


def test_under_pressure_every_preemption_is_a_failed_allocation():
    recorder = run(num=150, num_blocks=190)
    assert recorder.blocks.num_failed >= recorder.num_preemptions > 0
    assert recorder.blocks.counts == [190, 0], "drained"
    assert (pooled(recorder.blocks.lifetimes_s) >= 0).all()
    lost = recorder.requests_frame().set_index("request_id")["num_lost_tokens"]
    assert lost.sum() == recorder.num_lost_tokens > 0
