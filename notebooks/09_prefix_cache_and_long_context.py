# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 9. Prefix cache, long context and multi-turn make it larger
#
# **The question.** A prefix cache computes less. Does it also *hold* less? Who decides when a shared block comes back, and
# what does one more point of hit rate cost in memory?

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
import math

from labkit.experiments.prefix_reuse import (
    BYTES_PER_TOKEN,
    conversations,
    nothing_shared,
    reuse_of,
    run_cached,
    shared_load,
)
from labkit.experiments.prefix_reuse_tradeoff import POLICIES, price_of_the_worst, trade_off, trades
from labkit.experiments.prefix_reuse_borders import (
    agent_load,
    borders,
    known_text,
    padded,
    rag_prompts,
    specs_of,
)
from labkit.experiments.prefix_reuse_lifetimes import (
    holders,
    layouts,
    long_context_load,
    of_mean_length,
    prefix_load,
    residency,
    short_ttft_s,
)
from labkit.experiments.prefix_reuse_turns import chat_load, hotness, kept_for, session_bytes, strangers
from labkit.experiments.scenarios import run_scenario
from labkit.teach import claim, finish, predict, setup
from labkit.units import GIB, format_bytes
from labkit.viz import Choice, Series, Slider, SliderPanel, draw_timeline
from labkit.viz.charts import draw_bars, draw_tradeoff
from labkit.viz.player import player
from labkit.viz.player_builder import RunBuilder

lab = setup(scale, device, seed)
chat, origin = shared_load(lab.pick(ci=500, lab=3000), lab.rng(1))
print(origin)
print("KV of Llama-3.1-8B; a step takes 10 ms and 0.05 ms for each scheduled token.")

# %% [markdown]
# ## 9.0 It saves prefill, and it changes how long things live
#
# The same requests three times, in a pool of 100,000 tokens: without a prefix cache, with one, and with one when nobody
# shares anything (same lengths, every prompt a stranger).

# %%
longer = predict(
    "How many times longer does a block live with the prefix cache (median)?",
    low=0.5,
    high=50.0,
    unit="times",
)
longer

# %%
plain = reuse_of(chat, "off", capacity_tokens=100_000)
cached = reuse_of(chat, "hash", capacity_tokens=100_000)
unshared = reuse_of(nothing_shared(chat), "hash", capacity_tokens=100_000)
longer.compare(cached.block_life_s / plain.block_life_s)
draw_bars(
    {
        name: {"prefill (K tokens)": r.num_prefill_tokens / 1000, "median block life (s)": r.block_life_s}
        for name, r in {"no prefix cache": plain, "prefix cache": cached, "prefix cache, nothing shared": unshared}.items()
    },
    ylabel="thousand tokens, or seconds",
    title=f"the cache saves {cached.hit_share:.0%} of the prefill, and blocks live longer whether it saves or not",
    logy=True,
)  # fmt: skip

# %%
frames = {"no prefix cache": plain.run, "prefix cache": cached.run}
curves = []
for name, run in frames.items():
    frame = run.recorder.series_frame()
    curves.append(Series(f"live, {name}", frame["end_s"], frame["kv_live_bytes"]))
frame = cached.run.recorder.series_frame()
curves.append(
    Series("live + cached", frame["end_s"], frame["kv_live_bytes"] + frame["kv_cached_bytes"], dashed=True)
)
draw_timeline(curves, title="the requests need less, the pool is full")

# %%
claim(
    "9.0",
    "Prefix caching saves more than a tenth of the prefill, and blocks live more than three times as long.",
    held=cached.saves_and_lives_longer(plain),
    control=unshared.saves_and_lives_longer(plain),
    hit_share=cached.hit_share,
    life_without_s=plain.block_life_s,
    life_with_s=cached.block_life_s,
    life_nothing_shared_s=unshared.block_life_s,
)

# %% [markdown]
# The control is worth a second look: where nothing is shared the cache saves nothing, *and blocks live longer all the same*.
# Long life is the price; the saving is only there if somebody comes back.
#
# A word on the number itself. One warm request that is looked up in every step in which it cannot be admitted:

# %%
lies = run_scenario("hit-rate-lies").check().figures
print(
    f"hit rate, every look-up counted: {lies['percent_by_lookup']:.1f} %; admissions counted: {lies['percent_by_admission']:.1f} %"
)

# %% [markdown]
# ## 9.1 A shared prefix is freed when its last reference leaves
#
# One system prompt, 1,024 tokens, for everybody. Each request lives some two seconds. We follow the first block of the
# prompt, from the first request that names it to the moment when nobody does.

# %%
stay = predict(
    "Requests live some two seconds. How long is the prefix held, at 1.2 requests a second?",
    low=1.0,
    high=60.0,
    unit="s",
)
stay

# %%
RATES = [0.1, 0.3, 0.6, 0.9, 1.2]
shared_stays = {
    rate: residency(prefix_load(lab.rng(2), rate=rate, num_requests=900), prefix="hash") for rate in RATES
}
own_stays = {rate: residency(prefix_load(lab.rng(2), rate=rate), prefix="off") for rate in (0.1, 1.2)}
stay.compare(shared_stays[1.2].stay_s)
life_s = own_stays[1.2].writer_s
draw_tradeoff(
    {
        "measured": [(r.mean_alive, r.stay_s, f"{rate:g}/s") for rate, r in shared_stays.items()],
        "(exp(a) − 1) / rate": [(rate * life_s, math.expm1(rate * life_s) / rate, "") for rate in RATES],
        "not shared": [(r.mean_alive, r.stay_s, f"{rate:g}/s") for rate, r in own_stays.items()],
    },
    xlabel="requests alive on average",
    ylabel="first block held for (s)",
    title="residency of a shared prefix grows exponentially with load",
)

# %% [markdown]
# The prefix is held as long as *somebody* is there: the busy period of a queue with infinitely many servers, on average
# (exp(a) − 1) / rate with a requests alive (the orange line). Every further request alive multiplies it by 2.7.

# %%
small = prefix_load(lab.rng(3), rate=1.2, num_requests=40)
runs = []
for title, prefix in {"every request its own": "off", "one shared prefix": "hash"}.items():
    looks = layouts(small, prefix=prefix, capacity_tokens=10_240)
    builder = RunBuilder(total=10_240 * BYTES_PER_TOKEN, title=title, interchangeable=True)
    for time_s, layout in looks:
        builder.add(time_s, layout)
    runs.append(builder.finish())
player(runs, title="shared blocks stay while private ones come and go", time=15.0)

# %%
claim(
    "9.1",
    "A shared prefix leaves with its last user, and is held more than twice as long as the request that wrote it lives.",
    held=shared_stays[1.2].outlives_its_writer(),
    control=own_stays[1.2].outlives_its_writer(),
    writer_s=shared_stays[1.2].writer_s,
    held_s=shared_stays[1.2].stay_s,
    longest_s=shared_stays[1.2].longest_s,
    not_shared_s=own_stays[1.2].stay_s,
)

# %% [markdown]
# ## 9.2 A few long requests hold most of the pool
#
# The same conversations with their longest prompts left in. What a request takes from the others is blocks times the seconds
# for which it holds them: **block-seconds**.

# %%
long_load, origin = long_context_load(lab.pick(ci=500, lab=1500), lab.rng(4))
print(origin)
share = predict(
    "What share of the block-seconds belongs to the longest fifth of the requests?",
    low=20,
    high=100,
    unit="%",
)
share

# %%
real, equal = holders(long_load), holders(of_mean_length(long_load))
share.compare(100 * real.longest_fifth)
short_only = holders([r for r in long_load if r.num_prompt_tokens <= 4096])
draw_bars(
    {
        f"{name} tokens": {key: 100 * value for key, value in row.items()}
        for name, row in real.by_class.items()
    },
    ylabel="share (%)",
    title=f"the longest fifth hold {real.longest_fifth:.0%} of the pool's block-seconds",
)

# %%
print(
    f"first token of a short prompt, mean: {short_ttft_s(real.run):.2f} s beside the long ones, {short_ttft_s(short_only.run):.2f} s without them"
)
claim(
    "9.2",
    "The longest fifth of the requests hold more than half of the pool, measured in block-seconds.",
    held=real.few_hold_most(),
    control=equal.few_hold_most(),
    longest_fifth=real.longest_fifth,
    all_of_one_length=equal.longest_fifth,
)

# %% [markdown]
# A block budget makes them *safe* (no fragmentation); it does not make them *small*. Admission by requests would count a
# prompt of 60,000 tokens like one of 600.
#
# ## 9.3 Conversations: hot state, not a temporary
#
# Sessions of five turns on average, twenty seconds apart. The answer of one turn is part of the prompt of the next. What a
# finished turn leaves behind is idle. Is it garbage?

# %%
wanted = predict(
    "What share of the blocks that a finished turn leaves is asked for again?", low=0, high=100, unit="%"
)
wanted

# %%
turns = chat_load(lab.pick(ci=80, lab=400), lab.rng(5))
hot, cold = hotness(turns), hotness(strangers(turns))
forgetful = hotness(turns, prefix="off")
wanted.compare(100 * hot.wanted_again)
draw_bars(
    {kept: {"still there": 100 * value} for kept, value in kept_for(hot, [2, 5, 10, 20, 40, 80]).items()},
    ylabel="% of what is wanted again",
    title=f"what would still be there, if idle blocks were kept for … (a turn itself runs {hot.turn_s:.1f} s)",
)

# %%
print(
    f"{len(turns)} turns. Mean time to first token: {hot.ttft_s * 1000:.0f} ms with what was kept, {forgetful.ttft_s * 1000:.0f} ms without. "
    f"One conversation keeps {format_bytes(round(session_bytes(turns)))} hot at its end."
)
claim(
    "9.3",
    "More than half of what a turn leaves is wanted again, after an idle time longer than the turn itself.",
    held=hot.hot_state(),
    control=cold.hot_state(),
    wanted_again=hot.wanted_again,
    idle_median_s=hot.idle_s["median"],
    turn_median_s=hot.turn_s,
    wanted_again_of_strangers=cold.wanted_again,
)

# %% [markdown]
# Between two turns the state waits much longer than it works. A cache that throws idle blocks away after a few seconds is a
# cache for bursts, not for people.
#
# ## 9.4 RAG and agents: fixed in part
#
# A RAG prompt is put together: system prompt, tools, retrieved chunks in the order of their score, the question. How much
# of it has been seen before, and how much of *that* can be reused? Two things stand in the way. Reuse goes from the beginning
# of the prompt to the first token that is new. And only whole blocks are found again: where the shared part ends inside a block
# (a **border**), the rest of that block is computed once more.

# %%
extra = predict(
    "Blocks of 64 tokens: how much more prefill do borders inside blocks cost agents?",
    low=0,
    high=50,
    unit="%",
)
extra

# %%
rag = rag_prompts(lab.rng(6), num_requests=lab.pick(ci=120, lab=600))
draw_bars(
    {"RAG prompts": {name: 100 * value for name, value in known_text(rag).items()}},
    ylabel="% of prompt tokens",
    title="most of the text is known; only a beginning can be reused",
    stacked=True,
)

# %%
SIZES = [16, 64, 256]
agents, origin = agent_load(lab.rng(7), num_sessions=lab.pick(ci=15, lab=60), max_prompt_tokens=4096)
print(origin)
rag_specs = specs_of(rag)
at_rag, at_agents = borders(rag_specs, SIZES), borders(agents, SIZES)
at_padded = borders(specs_of(padded(rag, 64)), [64])
inside_hits = borders(agents, [64], prefix="radix", partial_hits=True)
extra.compare(100 * at_agents[64].extra_prefill)
draw_bars(
    {
        **{f"blocks of {size}": {"RAG": 100 * at_rag[size].extra_prefill, "agents": 100 * at_agents[size].extra_prefill} for size in SIZES},
        "64, part of a block copied": {"agents": 100 * inside_hits[64].extra_prefill},
        "64, template padded": {"RAG": 100 * at_padded[64].extra_prefill},
    },
    ylabel="extra prefill (% of the new tokens)",
    title="shared tokens that are computed again, since only whole blocks hit",
)  # fmt: skip

# %%
floor = run_scenario("reuse-floor").check().figures["reused_tokens"]
print(
    f"Shared prefix of 240 tokens: {floor['16']} reused with blocks of 16, {floor['784']} with blocks of 784."
)
claim(
    "9.4",
    "Reuse stops inside a block at most borders of RAG and agent prompts, and prefill grows by more than a fiftieth.",
    held=at_rag[64].stops_inside() and at_agents[64].stops_inside(),
    control=at_padded[64].stops_inside(),
    borders_inside_rag=at_rag[64].inside,
    borders_inside_agents=at_agents[64].inside,
    extra_prefill_rag=at_rag[64].extra_prefill,
    extra_prefill_agents=at_agents[64].extra_prefill,
    extra_prefill_padded=at_padded[64].extra_prefill,
)

# %% [markdown]
# Two different losses. The border inside a block is small with blocks of 16 and is repaired by padding the template or by
# copying a part of a block. The larger one is the orange part of the first figure: a chunk that stands behind something new is
# known text and still cannot be reused, since its keys and values depend on all that stands before it. Put what changes last.
#
# ## 9.5 The whole trade-off
#
# Pools of 30,000 to 240,000 tokens, each twice the one before, and four eviction policies. "Priority" keeps what short prompts leave for 120 seconds, since
# it costs few blocks.

# %%
best = predict("Which policy gets the most hits from the same memory on this load?", options=list(POLICIES))
best

# %%
CAPACITIES = [30_000, 60_000, 120_000, 240_000]
curves = trade_off(chat, capacities=CAPACITIES)
best.compare(max(curves, key=lambda name: sum(p.hit_share for p in curves[name])))
draw_tradeoff(
    {
        name: [(p.held_bytes / GIB, 100 * p.hit_share, f"{p.capacity_tokens // 1000}K") for p in points]
        for name, points in curves.items()
    },
    xlabel="memory held, live and cached (GiB, mean)",
    ylabel="prompt tokens hit (%)",
    title="memory buys hits, at a falling rate",
)

# %%
draw_tradeoff(
    {
        name: [(100 * p.hit_share, p.reclaimed_blocks, f"{p.capacity_tokens // 1000}K") for p in points]
        for name, points in curves.items()
    },
    xlabel="prompt tokens hit (%)",
    ylabel="blocks evicted per 1,000 prompt tokens",
    title="a larger pool: more hits and fewer evictions",
)

# %% [markdown]
# The largest pool keeps nearly all that anybody will ask for again: there the curve is flat, and whether it still rises is
# chance. The claim is about the two doublings before it.

# %%
none_shared = trade_off(nothing_shared(chat[:200]), capacities=CAPACITIES[:2], policies=["LRU", "FIFO"])
doubled = {name: points[:3] for name, points in curves.items()}
claim(
    "9.5",
    "Twice the memory buys hits and saves reclaim, twice in a row, and for the same hits the worst policy needs a tenth more memory.",
    held=trades(doubled),
    control=trades(none_shared),
    worst_over_best_memory=price_of_the_worst(doubled),
    hit_share_small_pool=doubled["LRU"][0].hit_share,
    hit_share_large_pool=doubled["LRU"][-1].hit_share,
    live_gib=doubled["LRU"][0].live_bytes / GIB,
    held_large_gib=doubled["LRU"][-1].held_bytes / GIB,
)

# %% [markdown]
# **Explain.** Live requests need less than a GiB here. All the rest is a bet on who will come back. The bet has a falling
# return, it is settled by eviction at the very moment when a new request needs a block, and the policy only decides
# which bets are kept. The curve can also break off. Sessions take turns in a pool that holds three of them. *Tail first* gives
# up the end of a session before its beginning, *head first* the beginning, without which the rest cannot be found:

# %%
cliff = run_scenario("lru-cliff").check().figures
draw_bars(
    {f"{k} sessions": {"LRU, tail first": cliff["tail_first"][k], "LRU, head first": cliff["head_first"][k]} for k in cliff["tail_first"]},
    ylabel="blocks hit (%)",
    title="one session too many",
)  # fmt: skip

# %% [markdown]
# **Try it**: pool, policy and block size on 110 synthetic requests in conversations.

# %%
panel_load = conversations(80, lab.rng(8))


def cache_panel(pool, policy, block_size, figure=None):
    eviction, ttl_s = POLICIES[policy]
    run = run_cached(
        panel_load, capacity_tokens=1000 * pool, block_size=block_size, prefix_options={"eviction": eviction}, ttl_s=ttl_s
    )  # fmt: skip
    frame = run.recorder.series_frame()
    hits = run.totals.num_hit_tokens / sum(r.num_prompt_tokens for r in panel_load)
    return draw_timeline(
        [
            Series("live", frame["end_s"], frame["kv_live_bytes"]),
            Series(
                "live + cached",
                frame["end_s"],
                frame["kv_live_bytes"] + frame["kv_cached_bytes"],
                dashed=True,
            ),
        ],
        title=f"{hits:.0%} of the prompt tokens hit, {run.kv.prefix.num_evicted:,} blocks evicted, {run.totals.num_preempted} preempted",
        figure=figure,
    )


SliderPanel(
    cache_panel,
    {
        "pool": Slider(40, 8, 150, 2, label="pool (thousand tokens)"),
        "policy": Choice("LRU", list(POLICIES)),
        "block_size": Choice(64, [64, 128, 256, 512], label="block size (tokens)"),
    },
    title="What the cache holds",
)

# %% [markdown]
# ## In an interview
#
# *"We turned prefix caching on, the hit rate is 60 %, and now we run out of memory."* Shallow: turn it off. Good: the cache
# fills the pool by design; look at evictable, not at free. Deep: which blocks are *pinned* by the last of many users, how
# long idle state waits for its next turn, where reuse stops in the prompt, and what the eviction policy gives up first.
#
# **Exercises** (in `exercises/`): 08 (reference counts and copy on write), 09 (prefix cache as a hash chain), 10 (radix tree).
#
# ## In five lines
#
# 1. A prefix cache saves prefill and lengthens lives; the second happens even when the first does not.
# 2. A shared prefix goes with its last user, and under load there is no last user.
# 3. A fifth of the requests can hold most of the pool.
# 4. Between two turns KV is idle and wanted: hot state.
# 5. Hits, memory and reclaim are one curve; the policy bends it, and one session too many breaks it.
#
# **What would change my mind:** a load whose hit share does not fall when the pool is halved.

# %%
finish("09")
