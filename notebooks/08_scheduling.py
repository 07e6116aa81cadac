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
# # 8. Scheduling decides memory stability
#
# **The question.** The allocator gets the blame, and it only does what it is told. Who tells it? Change one decision of the
# scheduler at a time, on the same trace, and watch memory.

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
import pandas as pd

from labkit.experiments.harms import peak_demand
from labkit.experiments.scheduling import (
    DECISIONS,
    amplification,
    curve_of,
    decide,
    faster,
    long_and_short,
    merged,
    mixture,
    outcome,
    spread,
    window,
    with_burst,
    with_client_limit,
)
from labkit.experiments.serve import serve
from labkit.experiments.waiting_table import waiting_table
from labkit.models import get_model
from labkit.teach import claim, finish, predict, setup
from labkit.viz import Choice, Event, Series, Slider, SliderPanel, draw_timeline
from labkit.viz.charts import draw_bars
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)
bytes_per_token = get_model("Llama-3.1-8B").kv_bytes_per_token()
requests, origin = load_or_synthetic("azure-conv", lab.pick(ci=500, lab=4000), lab.rng(1))
requests = with_client_limit([r for r in requests if r.num_prompt_tokens + r.num_output_tokens < 8000])
pool = {"capacity_tokens": 48_000, "bytes_per_token": bytes_per_token}
print(origin, "A step takes 10 ms and 0.05 ms for each scheduled token.")

# %% [markdown]
# ## 8.1 One decision, another memory
#
# *Prefill* computes a whole prompt, *decode* one token of every running request. The usual scheduler batches continuously (who
# arrives joins at the next step, who is done leaves) and cuts long prompts into chunks that share a step with decodes. Seven
# decisions against it: who joins a batch; prefill or decode first; short ones first; long and short apart; how much is set
# aside on admission; in what unit. The measure: how far the curve of live KV moves, over its mean. The control runs the usual
# one again, four times.

# %%
guess = predict("Which decision moves memory most?", options=list(DECISIONS)[1:])
guess

# %%
curves = {name: curve_of(decide(requests, options, **pool)) for name, options in DECISIONS.items()}
usual = curves["continuous, chunked"]
moved = {name: usual.distance(curve) for name, curve in curves.items() if curve is not usual}
guess.compare(max(moved, key=moved.get))
draw_bars(
    {name: {"moved": 100 * distance} for name, distance in moved.items()},
    ylabel="change of the memory curve (%)",
    title="the same trace, one decision changed",
)

# %%
shown = {name: curves[name] for name in ("continuous, chunked", "static batches", "decode before prefill")}
draw_timeline(
    [
        Series(name, curve.times_s[curve.times_s < 150], curve.live_bytes[curve.times_s < 150])
        for name, curve in shown.items()
    ],
    title="KV held by live requests, the first 150 s",
)


# %%
def several_move(distances):
    return sum(distance > 0.05 for distance in distances) >= 4


again = [curve.distance(curve_of(decide(requests, {}, **pool))) for curve in [usual] * 4]
claim(
    "8.1",
    "At least four of the seven decisions move the memory curve by more than 5 % on the same trace.",
    held=several_move(moved.values()),
    control=several_move(again),
    **{name.replace(" ", "_").replace(":", "").replace(",", ""): value for name, value in moved.items()},
)

# %% [markdown]
# Some decisions hardly show here, and that is an answer too. In which order a queue is served, and who may share a step, matter
# only while somebody waits, and this pool (48,000 tokens) is seldom full. 8.4 takes a smaller one.
#
# ## 8.2 Long and short, mixed
#
# Contiguous memory. Short requests come in waves, long ones append to what they hold. The memory is large enough for both
# together. How often is at least half of it free while no span is longer than a quarter?

# %%
short, long = long_and_short(lab.rng(2), bytes_per_token=bytes_per_token)
both = merged(short, long)
capacity = int(1.1 * peak_demand(both))
mixtures = {
    "short only": mixture(short, capacity),
    "long only": mixture(long, capacity),
    "mixed": mixture(both, capacity),
}
draw_bars(
    {name: {"spoiled": 100 * found.spoiled_share} for name, found in mixtures.items()},
    ylabel="instants, % of the half-empty ones",
    title="half of the memory is free, and no span is longer than a quarter of it",
)

# %%
mixed_run = mixtures["mixed"].run
draw_timeline(
    [
        Series("free in total", mixed_run.times_s, mixed_run.free),
        Series("largest free span", mixed_run.times_s, mixed_run.largest_free),
    ],
    title="mixed: after each wave much is free again, and late in one piece",
)

# %%
claim(
    "8.2",
    "Long and short requests mixed spoil the space of a pool that is half empty; each kind alone does not.",
    held=mixtures["mixed"].good_space_shrinks(),
    control=mixtures["short only"].good_space_shrinks() or mixtures["long only"].good_space_shrinks(),
    **{name.replace(" ", "_"): found.spoiled_share for name, found in mixtures.items()},
)

# %% [markdown]
# ## 8.3 A burst of very long prompts
#
# Twelve prompts of 12,000 tokens within 1.2 seconds, into a calm service that runs prefill first. What do the *others* feel
# in the next twelve seconds? **TTFT** is the time to a request's first token; its P95 is what the luckier 95 % stay below. The
# control is the calm run against itself, twelve seconds later.

# %%
slower = predict(
    "How many times longer is the P95 of TTFT of ordinary requests in the burst?",
    low=1,
    high=50,
    unit="times",
)
slower

# %%
AT = 60.0
calm_run = decide(
    requests, {"batching": "prefill-first"}, capacity_tokens=200_000, bytes_per_token=bytes_per_token
)
burst_run = decide(
    with_burst(requests, at_s=AT),
    {"batching": "prefill-first"},
    capacity_tokens=200_000,
    bytes_per_token=bytes_per_token,
)
calm, burst, later = (
    window(calm_run, AT, AT + 12),
    window(burst_run, AT, AT + 12),
    window(calm_run, AT + 12, AT + 24),
)
slower.compare(burst.ttft_p95_s / calm.ttft_p95_s)
frame = burst_run.recorder.series_frame()
shown = frame[(frame["end_s"] > AT - 15) & (frame["end_s"] < AT + 40)]
draw_timeline(
    [
        Series("free KV", shown["end_s"], shown["kv_free_bytes"]),
        Series("requests that decode", shown["end_s"], shown["num_decode_requests"], unit="requests"),
    ],
    events=[Event(AT, "other", "burst")],
    title=f"TTFT P95 {calm.ttft_p95_s:.2f} s without and {burst.ttft_p95_s:.1f} s with the burst; "
    f"{calm.output_tokens_per_s:,.0f} and {burst.output_tokens_per_s:,.0f} tokens/s",
)

# %%
claim(
    "8.3",
    "A burst of long prompts takes the free blocks, and TTFT and throughput of the others get worse together.",
    held=burst.worse_than(calm),
    control=later.worse_than(calm),
    ttft_p95_calm_s=calm.ttft_p95_s,
    ttft_p95_burst_s=burst.ttft_p95_s,
    tokens_per_s_calm=calm.output_tokens_per_s,
    tokens_per_s_burst=burst.output_tokens_per_s,
    lowest_free_share=burst.lowest_free_share,
)

# %% [markdown]
# ## 8.4 Three questions, answered by measurement
#
# The trace played 1.5 times as fast, and a pool that is too small for it (24,000 tokens). Goodput counts, a second, the
# requests that got their first token within 2 s and the others within 60 ms each (on average). A request that is *preempted*
# gives its blocks up and its tokens are computed again: lost work.

# %%
tight = {"capacity_tokens": 24_000, "bytes_per_token": bytes_per_token}
ample = {"capacity_tokens": 400_000, "bytes_per_token": bytes_per_token}
busy = faster(requests, 1.5)
UNITS = {
    "requests (64 at once)": {"admission": "requests", "max_requests": 64},
    "tokens": {"admission": "tokens"},
    "blocks": {"admission": "blocks"},
    "blocks, 5 % headroom": {"admission": "blocks", "headroom": 0.05},
    "blocks, maximum set aside": {"admission": "blocks", "reserve": "all"},
}
RESPONSES = ["refuse", "throttle", "degrade", "pools", "recompute", "swap"]


def compare(pool, load=busy):
    units = [outcome(name, load, **pool, **options) for name, options in UNITS.items()]
    responses = [outcome(name, load, **pool, pressure=name) for name in RESPONSES]
    return units, responses


units, responses = compare(tight)
columns = [
    "name",
    "goodput",
    "num_preempted",
    "num_lost_tokens",
    "num_dropped",
    "num_truncated",
    "ttft_p95_s",
]
names = ["", "goodput (requests/s)", "preempted", "tokens lost", "refused", "cut short", "TTFT P95 (s)"]
pd.DataFrame([[getattr(row, column) for column in columns] for row in units], columns=names).round(2)

# %% [markdown]
# **In what unit?** By requests, the pool overflows and work is thrown away. By blocks, with a little headroom, next to none
# is. Setting the maximum aside wastes nothing on preemption and most of the memory on a promise.
#
# **What under pressure?**

# %%
pd.DataFrame([[getattr(row, column) for column in columns] for row in responses], columns=names).round(2)

# %% [markdown]
# Read it with its price: `refuse` gave up requests, `degrade` cut answers short (both counted as missed), `swap` moved bytes
# instead of computing again, `pools` protects one class from the other and wastes what a class does not use, `throttle` stops
# admitting while the pool is nearly full.
#
# **Which class of request amplifies trouble?** Leave each class out and see how much lost (recomputed) work goes with it; on
# four times the load, since a class is few requests and chance is large.

# %%
longer, _ = load_or_synthetic("azure-conv", lab.pick(ci=2000, lab=4000), lab.rng(3))
longer = with_client_limit([r for r in longer if r.num_prompt_tokens + r.num_output_tokens < 8000])
classes = amplification(faster(longer, 1.5), **tight)
worst = max(classes, key=lambda name: classes[name][1] / classes[name][0])
draw_bars(
    {
        name: {"share of all tokens": share, "lost work that goes with it": lost}
        for name, (share, lost) in classes.items()
    },
    ylabel="share of the whole (0 to 1)",
    title=f"most lost work for its share of tokens: {worst}",
)

# %%
easy_units, easy_responses = compare(ample, busy[:200])


def amplifies(classes):
    return max(lost / share for share, lost in classes.values()) > 1.5


def choice_matters(units, responses, classes):
    return spread(units) > 0.2 and spread(responses) > 0.2 and amplifies(classes)


claim(
    "8.4",
    "Under pressure the unit of admission and the response to pressure decide more than a fifth of the goodput.",
    held=choice_matters(units, responses, classes),
    control=choice_matters(easy_units, easy_responses, amplification(busy[:200], **ample)),
    spread_of_units=spread(units),
    spread_of_responses=spread(responses),
    best_unit=max(units, key=lambda row: row.goodput).name,
    best_response=max(responses, key=lambda row: row.goodput).name,
    amplifier=worst,
)

# %% [markdown]
# **Explain.** Memory is a queue of promises. Admission makes them, decoding calls them in, and preemption is what a broken
# one costs. Every decision of a scheduler moves one of these, so it moves memory; where memory is ample none of it shows
# (the control).
#
# ### Why is it waiting?
#
# A scheduler of this lab can say for every waiting request what it needs, what is there, which limit binds and whether it
# can ever fit. Here is the head of the queue at the step at which it is longest:

# %%
frame = next(row for row in units if row.name == "blocks").run.recorder.series_frame()
worst_step = int(frame["step"][frame["num_waiting"].idxmax()])
stopped = serve("paged", busy, **tight, max_model_len=16_384, max_steps=worst_step, admission="blocks")
queue = waiting_table(stopped.scheduler)
print(queue["sentence"][0])
queue.drop(columns="sentence")

# %% [markdown]
# **Try it**: one decision and one number at a time.


# %%
def scheduling_panel(memory, headroom, batching, pressure, figure=None):
    row = outcome(
        "", busy[:200], capacity_tokens=memory * 1000, bytes_per_token=bytes_per_token,
        batching=batching, pressure=pressure, headroom=headroom / 100,
    )  # fmt: skip
    frame = row.run.recorder.series_frame()
    return draw_timeline(
        [
            Series("live KV", frame["end_s"], frame["kv_live_bytes"]),
            Series("waiting", frame["end_s"], frame["num_waiting"], unit="requests"),
        ],
        title=f"goodput {row.goodput:.2f}/s, {row.num_preempted} preempted, {row.num_dropped} dropped, TTFT P95 {row.ttft_p95_s:.1f} s",
        figure=figure,
    )


SliderPanel(
    scheduling_panel,
    {
        "memory": Slider(24, 12, 100, 2, label="pool (thousand tokens)"),
        "headroom": Slider(0, 0, 40, 1, label="headroom (% of the pool)"),
        "batching": Choice("chunked", ["chunked", "prefill-first", "decode-first", "continuous", "static"]),
        "pressure": Choice("recompute", RESPONSES),
    },
    title="The scheduler's choices",
)

# %% [markdown]
# ## In an interview
#
# *"Preemptions went from zero to thousands and nobody touched the model. What do you look at?"* Shallow: the pool is too
# small. Good: what admission counts, and what it leaves free. Deep: which class of request calls in promises late (long
# outputs), what each response to pressure costs whom, and why the same settings look perfect in a load test
# with ample memory.
#
# **Exercises** (in `exercises/`): 11 (admission by block with headroom), 12 (chunked prefill within a token budget), 16 (beat the scheduler).
#
# ## In five lines
#
# 1. The same trace under another decision is another memory curve.
# 2. Long and short mixed spoil space that is half empty.
# 3. A prefill burst takes blocks, first tokens and throughput at once.
# 4. Count blocks and leave headroom; every response to pressure has a payer.
# 5. Requests with long outputs amplify trouble out of proportion.
#
# **What would change my mind:** a tight pool in which the unit of admission does not matter.

# %%
finish("08")
