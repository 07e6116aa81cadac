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
# # 1. Rarely "not enough memory"; usually "memory that cannot be used"
#
# **The question.** You added up weights, KV and batch, and the sum fits. Why does the service refuse requests all the same?

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
from labkit.experiments.churn import BlockMemory, Churn, holdings_of
from labkit.experiments.dynamics import (
    SOURCES,
    age_and_restart,
    freed_with_pending_event,
    freed_with_shared_prefix,
    mean_demand,
    memory_curve,
    smoothed,
    sum_against_run,
)
from labkit.experiments.harms import with_long_sessions
from labkit.experiments.tour import take_tour
from labkit.models import get_model
from labkit.teach import claim, finish, predict, setup
from labkit.units import GIB, format_bytes
from labkit.viz import Choice, Event, Limit, Series, Slider, SliderPanel, draw_timeline
from labkit.viz.charts import draw_bars
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)
bytes_per_token = get_model("Llama-3.1-8B").kv_bytes_per_token()
requests, origin = load_or_synthetic("azure-conv", lab.pick(ci=4000, lab=19366), lab.rng(1))
print(origin)
holdings = holdings_of(requests, bytes_per_token=bytes_per_token, seconds_per_token=0.03)

# %% [markdown]
# ## 1.1 The sum on a sheet of paper
#
# Requests a second × seconds each stays × bytes each holds: that is what is alive on average (Little's law). Let the memory
# be half as large again as this sum. Each request holds its KV (keys and values of its tokens) in one piece, and a request
# that finds no room is refused. The control is a load with the same sum whose requests are all alike and evenly spaced.

# %%
guess = predict(
    "How many of the requests are refused, with half as much memory again as the sum?",
    low=0,
    high=len(holdings) // 8,
)
guess

# %%
capacity = int(1.5 * mean_demand(holdings))
dynamic, static = sum_against_run(holdings, capacity), sum_against_run(smoothed(holdings), capacity)
guess.compare(dynamic.num_refused)
draw_timeline(
    [
        Series("in use, real load", dynamic.run.times_s, [capacity - free for free in dynamic.run.free]),
        Series("in use, even load", static.run.times_s, [capacity - free for free in static.run.free]),
    ],
    limits=[Limit(capacity, "memory"), Limit(dynamic.mean_demand, "the sum on paper")],
    title=f"same sum, same memory: {dynamic.num_refused} of {dynamic.num_asked:,} refused under the real load, "
    f"{static.num_refused} under the even one",
)

# %% [markdown]
# The blue curve stays below the memory and requests are refused all the same. Two things happen at its peaks. What is free
# then is little, and it is in pieces. Blocks take away the second and leave the first (they also let in what one piece
# refuses, so they meet fuller peaks):

# %%
in_blocks = Churn(BlockMemory(capacity, 16 * bytes_per_token), on_failure="drop").feed(holdings)
print(
    f"refused: {dynamic.num_refused}, of which {dynamic.run.num_fragmentation_failures} with enough bytes free; "
    f"if the pieces did not matter (blocks of 16 tokens): {in_blocks.num_dropped}"
)

# %%
claim(
    "1.1",
    "The static sum fits with half as much again to spare, and the same load is refused once it is dynamic.",
    held=dynamic.sum_fits_and_run_does_not(),
    control=static.sum_fits_and_run_does_not(),
    sum_gib=dynamic.mean_demand / GIB,
    memory_gib=capacity / GIB,
    refused=dynamic.num_refused,
    refused_when_even=static.num_refused,
    with_enough_bytes_free=dynamic.run.num_fragmentation_failures,
    refused_in_blocks=in_blocks.num_dropped,
)

# %% [markdown]
# ## 1.2 Eight gigabytes free, and still no
#
# The tour showed it; here it is as a claim. KV memory of 20 GiB, two requests in a hundred belong to long chats, and a
# document of 48K tokens (6 GiB) arrives.

# %%
tour = take_tour(
    with_long_sessions(holdings, lab.rng(2)),
    capacity=20 * GIB,
    long_request_bytes=49_152 * bytes_per_token,
    block_bytes=16 * bytes_per_token,
)
draw_bars(
    {
        "contiguous": {
            "free in total": tour.aged.free / GIB,
            "free in one piece": tour.aged.largest_free / GIB,
        },
        "after a restart": {
            "free in total": tour.restarted.free / GIB,
            "free in one piece": tour.restarted.largest_free / GIB,
        },
        "in blocks": {
            "free in total": tour.on_blocks.free / GIB,
            "free in one piece": tour.on_blocks.largest_free / GIB,
        },
    },
    ylabel="GiB",
    title="a request of 6 GiB: refused, served, served (in blocks, any free block will do)",
)


# %%
def refused_with_8_gib_free(moment):
    return moment.free >= 8 * GIB and moment.refused_with_room_to_spare


claim(
    "1.2",
    "With more than 8 GiB free, one request of 6 GiB is refused, because no single free span is that long.",
    held=refused_with_8_gib_free(tour.aged),
    control=refused_with_8_gib_free(tour.on_blocks),
    free_gib=tour.aged.free / GIB,
    largest_span_gib=tour.aged.largest_free / GIB,
    share_of_arrivals=tour.share_of_time_refused,
)

# %% [markdown]
# ## 1.3 Given back, and out of reach
#
# A second cause has nothing to do with holes. Somebody gave memory back, and it cannot be handed out yet: another request
# still refers to the same blocks, or another CUDA stream (a second queue of GPU work) may still be reading; PyTorch's
# allocator then waits for an event, the GPU's word that the reading is over.

# %%
shared, own = freed_with_shared_prefix(shared=True), freed_with_shared_prefix(shared=False)
pending, done = freed_with_pending_event(pending=True), freed_with_pending_event(pending=False)
print(f"request ended, blocks shared:        freed {shared.freed} blocks, usable now {shared.usable}")
print(f"request ended, blocks its own:       freed {own.freed} blocks, usable now {own.usable}")
print(
    f"tensor freed, other stream reading:  freed {format_bytes(pending.freed)}, usable now {format_bytes(pending.usable)}"
)
print(
    f"tensor freed, other stream done:     freed {format_bytes(done.freed)}, usable now {format_bytes(done.usable)}"
)

# %%
claim(
    "1.3",
    "What its owner gave back is out of reach while a shared prefix refers to it or an event is pending.",
    held=shared.held_back() and pending.held_back(),
    control=own.held_back() or done.held_back(),
    blocks_given_back=shared.freed,
    blocks_usable=shared.usable,
    bytes_given_back=pending.freed,
    bytes_usable=pending.usable,
)

# %% [markdown]
# ## 1.4 A service that ages
#
# One request in forty belongs to a client that goes away and leaves its session open. Memory was sized after a load test of
# a third of this length: what is left behind by then fits with room to spare. Requests queue, first come first served. The
# run is cut where the first request waits, and where the first one waits too long (more than 30 s counts as refused). Then
# the service is restarted, and the last part of the load comes again. The control is the same service in which every client
# closes its session.

# %%
story = predict("What share of the run passes before anybody waits?", low=0, high=100, unit="%")
story

# %%
aged, young = age_and_restart(holdings), age_and_restart(holdings, leave_behind=False)
story.compare(100 * aged.phases[0].share_of_run)
for phase in aged.phases:
    print(
        f"{phase.name:<16} {100 * phase.share_of_run:5.1f} % of the run   P99 wait {phase.p99_wait_s:6.2f} s   refused {100 * phase.refused_share:5.1f} %"
    )
num = len(holdings)
cuts = [
    holdings[min(num - 1, int(num * sum(p.share_of_run for p in aged.phases[:k])))].arrival_s for k in (1, 2)
]
draw_timeline(
    [
        Series("free in total", aged.run.times_s, aged.run.free),
        Series("largest free span", aged.run.times_s, aged.run.largest_free),
        Series("requests waiting", aged.run.times_s, aged.run.num_waiting, unit="requests"),
    ],
    events=[Event(cuts[0], "other", "first wait"), Event(cuts[1], "oom", "first refusal")],
    title="good, then jitter, then refusals",
)

# %%
claim(
    "1.4",
    "The same load runs well, then jitters, then is refused; a restart brings the first state back.",
    held=aged.three_phases_and_a_cure(),
    control=young.three_phases_and_a_cure(),
    good_share_of_run=aged.phases[0].share_of_run,
    jitter_p99_wait_s=aged.phases[1].p99_wait_s,
    refused_at_last=aged.phases[2].refused_share,
    refused_after_restart=aged.phases[3].refused_share,
)

# %% [markdown]
# ## 1.5 What makes serving dynamic
#
# Seven things, each switched on alone on a load that is otherwise static (one length, batches of 16, no reuse):
#
# | source | what changes |
# |---|---|
# | prompt lengths, output lengths | those of the trace instead of their means |
# | joins and leaves | a request starts when it arrives and leaves when it is done, not with its batch |
# | multi-turn sessions | talks of four turns; each prompt is the talk so far |
# | prefix reuse | the first half of all prompts is the same and is kept once |
# | scheduler: prefill first | new prompts are computed before anybody who runs gets a next token |
# | scheduler: preemption | memory for three quarters of a batch; who does not fit is thrown out and computed again |
#
# The measure is how far the curve of live KV moves from the static one, over its mean. The control compares the static load
# with itself.

# %%
few = requests[: lab.pick(ci=200, lab=1000)]
static_curve = memory_curve(None, few, bytes_per_token=bytes_per_token)
curves = {source: memory_curve(source, few, bytes_per_token=bytes_per_token) for source in SOURCES}
moved = {source: static_curve.distance(curve) for source, curve in curves.items()}
draw_bars(
    {source: {"moved": 100 * distance} for source, distance in moved.items()},
    ylabel="change of the memory curve (%)",
    title="each source alone, against the static load",
)

# %%
shown = {"static": static_curve} | {name: curves[name] for name in ("output lengths", "joins and leaves")}
draw_timeline(
    [
        Series(
            name,
            curve.times_s[curve.times_s < 70],
            curve.live_bytes[curve.times_s < 70],
            color="#000000" if name == "static" else None,
        )
        for name, curve in shown.items()
    ],
    title="KV held by live requests, the first 70 s: the static load and two of the seven",
)

# %%
claim(
    "1.5",
    "Each of the seven sources alone moves the memory curve by more than 5 %.",
    held=all(distance > 0.05 for distance in moved.values()),
    control=static_curve.distance(memory_curve(None, few, bytes_per_token=bytes_per_token)) > 0.05,
    **{source.replace(" ", "_").replace(":", ""): distance for source, distance in moved.items()},
)

# %% [markdown]
# **Explain.** The sum on paper is a mean. Arrivals come in bursts, lengths have a tail, and what is alive at the peak, and
# where it lies, decides who is turned away: that is 1.1. What is left free is in pieces (1.2) or spoken for (1.3). And what is never given
# back grows until the peak no longer fits (1.4). None of these is visible in the number that a dashboard calls "memory
# used".
#
# **Try it**: memory against load. At which ratio does nobody notice?


# %%
def sum_panel(memory, speed, lengths, figure=None):
    load = holdings_of(requests[:1500], bytes_per_token=bytes_per_token, seconds_per_token=0.03 / speed * 100)
    load = load if lengths == "real load" else smoothed(load)
    found = sum_against_run(load, int(memory / 100 * mean_demand(load)))
    return draw_timeline(
        [Series("in use", found.run.times_s, [found.capacity - free for free in found.run.free])],
        limits=[Limit(found.capacity, "memory"), Limit(found.mean_demand, "the sum on paper")],
        title=f"{lengths}: {found.num_refused} of {found.num_asked:,} refused with {memory} % of the sum",
        figure=figure,
    )


SliderPanel(
    sum_panel,
    {
        "memory": Slider(150, 100, 400, 10, label="memory (% of the sum)"),
        "speed": Slider(100, 50, 200, 10, label="speed of decoding (%)"),
        "lengths": Choice("real load", ["real load", "even load"]),
    },
    title="How much more than the sum?",
)

# %% [markdown]
# ## In an interview
#
# *"Your capacity plan says 40 concurrent requests. Production refuses at 25. Where do you look first?"* Shallow: add GPUs.
# Good: mean against peak, free in total against largest span, what is held without being used. Deep: separates the causes
# by what each predicts (does it depend on uptime? on the longest request? does a restart help, and for how long?) before
# touching anything.
#
# **Exercise** (in `exercises/`): 01 (the ledger by hand).
#
# ## In five lines
#
# 1. A static sum is a mean; requests meet the peak.
# 2. Free in total is not free in one piece.
# 3. Given back is not yet usable.
# 4. What nobody ends makes a service age.
# 5. Seven sources make the load dynamic, and each moves memory on its own.
#
# **What would change my mind:** a service whose refusals are predicted by its mean demand alone.

# %%
finish("01")
