"""Section 9: its predicates under several seeds, each beside its control; and the measures themselves on tiny loads."""

from itertools import pairwise

import numpy as np
import pytest

from labkit.experiments.prefix_reuse import conversations, nothing_shared, reuse_of, run_cached, shared_load
from labkit.experiments.prefix_reuse_borders import (
    agent_load,
    borders,
    known_text,
    padded,
    rag_prompts,
    shared_tokens,
    specs_of,
)
from labkit.experiments.prefix_reuse_lifetimes import (
    holders,
    long_context_load,
    of_mean_length,
    prefix_load,
    residency,
)
from labkit.experiments.prefix_reuse_tradeoff import TradePoint, price_of_the_worst, trade_off, trades
from labkit.experiments.prefix_reuse_turns import answers_of, chat_load, hotness, kept_for, strangers
from labkit.workload.base import RequestSpec


@pytest.fixture(params=[0, 1, 2])
def rng(request):
    return np.random.default_rng(request.param)


@pytest.fixture
def no_traces(monkeypatch):
    monkeypatch.setenv("LABKIT_NO_TRACES", "1")


def test_sharing_saves_and_lengthens_lives_and_strangers_only_lengthen_them(rng):
    load = conversations(200, rng)
    plain, cached = (reuse_of(load, prefix, capacity_tokens=40_000) for prefix in ("off", "hash"))
    unshared = reuse_of(nothing_shared(load), "hash", capacity_tokens=40_000)
    assert cached.saves_and_lives_longer(plain)
    assert not unshared.saves_and_lives_longer(plain)
    assert unshared.hit_share == 0.0
    assert unshared.block_life_s > 3 * plain.block_life_s


def test_memory_buys_hits_along_a_curve_and_not_where_nothing_is_shared(rng):
    load = conversations(300, rng)
    curves = trade_off(load, capacities=[20_000, 40_000, 80_000], policies=["LRU", "LFU"], block_size=256)
    assert trades(curves)
    alone = trade_off(
        nothing_shared(load[:100]), capacities=[15_000, 30_000], policies=["LRU", "LFU"], block_size=256
    )
    assert not trades(alone)


def test_price_of_the_worst_compares_memory_for_the_same_hits():
    def curve(name, hits):
        return [
            TradePoint(name, 0, hit, held, 0.0, 0.0, 0)
            for hit, held in zip(hits, (10.0, 20.0, 30.0), strict=True)
        ]

    curves = {"good": curve("good", (0.1, 0.3, 0.4)), "bad": curve("bad", (0.1, 0.2, 0.4))}
    assert price_of_the_worst(curves) == pytest.approx(25 / 20)
    assert price_of_the_worst({"good": curves["good"]}) == 1.0
    never = {"good": curves["good"], "never": curve("never", (0.1, 0.15, 0.2))}
    assert price_of_the_worst(never) == pytest.approx(30 / 20)


def test_a_dear_entry_survives_until_its_time_is_over():
    """A short prompt is dear for a minute: the long ones evict each other first."""
    blocks = iter(range(1000))

    def request(name, at_s, num_blocks, hashes=None):
        hashes = hashes or [next(blocks) for _ in range(num_blocks)]
        return RequestSpec(name, at_s, 64 * num_blocks + 1, 1, prefix_hashes=hashes, prefix_block_size=64)

    first = request("short", 0.0, 8)
    load = [first] + [request(f"long{i}", 1.0 + i, 40) for i in range(3)]
    load.append(request("again", 10.0, 8, first.prefix_hashes))
    hits = {}
    for name, ttl_s in {"lru": None, "priority": 60.0, "expired": 2.0}.items():
        policy = "lru" if name == "lru" else "priority"
        run = run_cached(load, capacity_tokens=64 * 100, prefix_options={"eviction": policy}, ttl_s=ttl_s)
        hits[name] = run.recorder.requests["again"].num_hit_tokens
    assert hits == {"lru": 0, "priority": 512, "expired": 0}


def test_a_shared_prefix_leaves_with_its_last_user(rng):
    load = prefix_load(rng, rate=1.3, num_requests=250)
    shared, own = (residency(load, prefix=prefix) for prefix in ("hash", "off"))
    assert shared.outlives_its_writer()
    assert own.ends_with_the_last
    assert not own.outlives_its_writer()
    assert own.num_stays == len(load)
    assert own.stay_s == pytest.approx(own.writer_s)


def test_long_requests_hold_the_pool_and_equal_ones_do_not(rng, no_traces):
    load, origin = long_context_load(300, rng)
    assert "synthetic" in origin
    real, equal = holders(load), holders(of_mean_length(load))
    assert real.few_hold_most()
    assert not equal.few_hold_most()
    assert sum(row["block-seconds held"] for row in real.by_class.values()) == pytest.approx(1.0)


def test_turns_want_their_state_again_and_strangers_do_not(rng):
    turns = chat_load(25, rng)
    hot, cold = hotness(turns), hotness(strangers(turns))
    assert hot.hot_state()
    assert not cold.hot_state()
    assert cold.wanted_again == cold.hit_share == 0.0
    kept = list(kept_for(hot, [1, 10, 100]).values())
    assert kept == sorted(kept)
    assert kept[-1] > 0.9


def test_the_answer_of_a_turn_is_in_the_prompt_of_the_next(rng):
    turns = chat_load(20, rng)
    answers = answers_of(turns)
    session = [r for r in turns if r.session_id == turns[0].session_id]
    for before, after in pairwise(session):
        said = [*before.prompt_token_ids, *answers[before.request_id]]
        assert after.prompt_token_ids[: len(said)] == said


def test_reuse_stops_inside_blocks_and_padding_moves_the_border(rng):
    rag = rag_prompts(rng, num_requests=50)
    found = borders(specs_of(rag), [1, 64])
    filled = borders(specs_of(padded(rag, 64)), [64])[64]
    assert found[64].stops_inside()
    assert not filled.stops_inside()
    assert filled.num_hit_tokens == filled.num_shared_tokens
    assert found[1].num_hit_tokens == found[1].num_shared_tokens  # blocks of one token lose nothing


def test_copied_parts_of_blocks_lose_nothing(rng, no_traces):
    agents, _ = agent_load(rng, num_sessions=4)
    whole = borders(agents, [64])[64]
    inside = borders(agents, [64], prefix="radix", partial_hits=True)[64]
    assert whole.stops_inside()
    assert inside.num_hit_tokens == inside.num_shared_tokens


def test_shared_tokens_counts_the_longest_earlier_beginning():
    def spec(name, tokens):
        return RequestSpec(name, 0.0, len(tokens), 1, prompt_token_ids=tokens)

    load = [spec("a", [1, 2, 3]), spec("b", [1, 2, 4, 5]), spec("c", [1, 2, 3]), spec("d", [2, 3])]
    assert shared_tokens(load) == [0, 2, 2, 0]


def test_known_text_behind_something_new_is_not_reused():
    from labkit.experiments.prefix_reuse_borders import Parts

    first = Parts("q0", 0.0, (("system", 50), ("a", 30), ("b", 20)))
    second = Parts("q1", 1.0, (("system", 50), ("b", 20), ("a", 30)))
    assert list(known_text([first, second]).values()) == pytest.approx([0.25, 0.25, 0.5])


def test_the_agent_trace_gives_borders_to_the_token():
    from labkit.workload.traces import find_trace

    if find_trace("lmcache-agents") is None:
        pytest.skip("the trace lmcache-agents is not on this machine")
    load, origin = agent_load(np.random.default_rng(0), num_sessions=5)
    assert "5 sessions" in origin
    assert all(r.num_prompt_tokens == len(r.prompt_token_ids) for r in load)
    assert any(shared % 16 for shared in shared_tokens(load))


def test_without_the_trace_the_load_says_that_it_is_synthetic(no_traces, rng):
    load, origin = shared_load(50, rng)
    assert len(load) == 50
    assert "synthetic" in origin
    assert [r.arrival_s for r in load] == sorted(r.arrival_s for r in load)
