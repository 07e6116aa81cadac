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
# # 3. What fragmentation is, and why a service grows unstable with it
#
# **The question.** Twenty rooms of a hotel are free and a party of eight is turned away. Nothing is broken: where did the
# twenty rooms go?
#
# You will fill a hotel, ask one allocation four questions, and then let real chat traffic run over one memory and count what
# fragmentation costs.

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
import pandas as pd

from labkit.experiments.churn import AllocatorMemory, Churn, holdings_of
from labkit.experiments.four_questions import four_costs
from labkit.experiments.harms import block_memory, harms_of, peak_demand, with_long_sessions
from labkit.experiments.hotel import adjoining_evening, scattered_evening
from labkit.memory import ALLOCATORS, make_allocator, measure
from labkit.memory.measures import usable_free_curve
from labkit.models import get_model
from labkit.teach import claim, finish, predict, setup
from labkit.units import MIB, format_bytes
from labkit.viz import Choice, Series, Slider, SliderPanel, draw_layout, draw_timeline
from labkit.viz.charts import number
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)
num_requests = lab.pick(ci=4000, lab=19366)

# %% [markdown]
# ## 3.1 The hotel
#
# A hundred rooms, all taken by single guests. Twenty guests leave, from rooms all over the house. Then a party of eight
# arrives that wants adjoining rooms, and nobody who sleeps can be asked to move.
#
# An allocator is this hotel: a *span* is a run of rooms, and a tensor is a party that cannot be split.

# %%
guess = predict(
    "Longest run of adjoining free rooms, with 20 of 100 free at random?", low=1, high=20, unit="rooms"
)
guess

# %%
tonight = scattered_evening(lab.rng(1))
guess.compare(tonight.largest_run)
draw_layout(
    tonight.layout,
    unit="rooms",
    rows=2,
    title=f"{tonight.num_free} rooms free, longest run {tonight.largest_run}, party of {tonight.party_size} "
    f"{'turned away' if tonight.refused else 'served'}",
)

# %% [markdown]
# **Look.** Twenty rooms are free and eight are wanted: what counts is not how many, but where. The same party on a night when
# the twenty free rooms adjoin is the control:

# %%
other_night = adjoining_evening()
draw_layout(
    other_night.layout,
    unit="rooms",
    rows=2,
    title=f"{other_night.num_free} rooms free in a row: the party of "
    f"{other_night.party_size} is {'turned away' if other_night.refused else 'served'}",
)

# %%
claim(
    "3.1",
    "A party of 8 is turned away with 20 rooms free, because no 8 of them adjoin.",
    held=tonight.refused_with_room_to_spare,
    control=other_night.refused_with_room_to_spare,
    rooms_free=tonight.num_free,
    longest_run=tonight.largest_run,
    kind=tonight.kind,
)
# %% [markdown]
# ## 3.2 The four questions of one allocation
#
# "Is there enough memory" is not what an allocator asks. It asks:
#
# 1. Is one free **span** long enough?
# 2. Does the **size class** match, or is more handed out than was asked?
# 3. Does the **lifetime** fit its neighbours, so that freeing leaves long spans behind?
# 4. Will it **force a move** or a reclaim?
#
# Each "no" has a price in bytes. Below, each question alone, on an aged pool (mixed sizes, mixed lifetimes) and on a fresh
# uniform one.

# %%
aged, fresh = four_costs(aged=True), four_costs(aged=False)
for question in aged:
    print(
        f"{question:<26} aged pool {format_bytes(aged[question]):>8}    fresh pool {format_bytes(fresh[question]):>8}"
    )

# %%
claim(
    "3.2",
    "Each of the four questions, answered with no, costs bytes of its own.",
    held=all(cost > 0 for cost in aged.values()),
    control=all(cost > 0 for cost in fresh.values()),
    **{name.replace(" ", "_"): format_bytes(cost) for name, cost in aged.items()},
)
# %% [markdown]
# ## 3.3 Four harms, measured
#
# Now real traffic. Every request of the trace holds the KV of its whole length for as long as it decodes (Llama-3.1-8B,
# 30 ms a token), in **one contiguous piece** each, placed by the allocator of your choice. Two requests in a hundred belong
# to long sessions that stay forty times as long. Nothing is scheduled and nothing is computed: what you see is sizes,
# lifetimes and placement.

# %%
requests, origin = load_or_synthetic("azure-conv", num_requests, lab.rng(2))
print(origin)
bytes_per_token = get_model("Llama-3.1-8B").kv_bytes_per_token()
holdings = with_long_sessions(
    holdings_of(requests, bytes_per_token=bytes_per_token, seconds_per_token=0.03), lab.rng(3)
)
peak = peak_demand(holdings)
print(f"{len(holdings):,} requests, at most {format_bytes(peak)} alive at once")

# %%
refusals = predict(
    "Memory = the peak demand plus 10 %. How many placements are refused although enough bytes are free?",
    low=0,
    high=200,
    unit="placements",
)
refusals

# %%
service = Churn(AllocatorMemory(make_allocator("first-fit", int(1.1 * peak))), on_failure="drop")
middle = holdings[len(holdings) // 2].arrival_s
run = service.feed(holdings, snapshot_times_s=[middle])
refusals.compare(run.num_fragmentation_failures)
draw_timeline(
    [
        Series("free in total", run.times_s, run.free),
        Series("largest free span", run.times_s, run.largest_free),
    ],
    title="first fit, peak demand plus 10 %: no request can be longer than the lower curve",
)

# %% [markdown]
# The map in the middle of the run, and below it what a request of a given size sees: the share of the free bytes that lie in
# spans long enough for it. The total that a dashboard shows is the left end of that curve; it hides everything to the right.

# %%
when, layout = run.snapshots[0]
draw_layout(layout, title=f"first fit after {when:.0f} s: {measure(layout).num_free_spans} free spans")

# %%
sizes = [int(2 ** (quarter / 4) * MIB) for quarter in range(4 * 13 + 1)]
draw_timeline(
    [
        Series(
            "first fit",
            [size / MIB for size in sizes],
            [100 * share for share in usable_free_curve(layout, sizes)],
            unit="% of free bytes usable",
            step=False,
        )
    ],
    xlabel="size of the request (MiB)",
    logx=True,
    title="share of the free bytes that one request of this size could use",
)

# %% [markdown]
# Four harms follow, each with a number:
#
# | harm | measured as |
# |---|---|
# | failed admissions | attempts to place that failed although enough bytes were free (a request that waits tries again) |
# | a cautious scheduler | share of memory free while somebody waits |
# | more frequent reclaim | bytes evicted from a cache of finished requests for each byte asked |
# | ageing | contiguity loss (1 − largest/total free) before a restart, less that after it |
#
# Memory is sized for what each harm needs: 0.7 of the peak demand where requests must queue (the first two), 1.3 of it where
# there is room for a cache (the third), the peak demand itself for ageing. Blocks get the same load and the same sizes.


# %%
def contiguous(name):
    return lambda capacity: AllocatorMemory(make_allocator(name, capacity))


contiguous_harms = harms_of(contiguous("first-fit"), holdings)
block_harms = harms_of(block_memory(16 * bytes_per_token), holdings)
HARMS = {
    "failed_admissions": "failed admissions (attempts)",
    "idle_while_waiting": "free while somebody waits (share of memory)",
    "reclaim_ratio": "evicted for a byte asked (bytes)",
    "ageing": "contiguity loss that a restart heals (0 to 1)",
}
pd.DataFrame(
    {"contiguous (first fit)": vars(contiguous_harms), "blocks of 16 tokens (control)": vars(block_harms)}
).rename(index=HARMS).map(number)

# %%
claim(
    "3.3",
    "On contiguous memory all four harms appear on real traffic; on blocks of 16 tokens not all of them do.",
    held=contiguous_harms.all_present(),
    control=block_harms.all_present(),
    failed_admissions=contiguous_harms.failed_admissions,
    idle_while_waiting=contiguous_harms.idle_while_waiting,
    evicted_per_byte_asked=contiguous_harms.reclaim_ratio,
    loss_healed_by_restart=contiguous_harms.ageing,
    blocks_idle_while_waiting=block_harms.idle_while_waiting,
    blocks_evicted_per_byte_asked=block_harms.reclaim_ratio,
)


# %% [markdown]
# **Explain.** The free bytes are there, in the gaps that departed requests left. A gap is as long as the request that left
# it, minus what somebody smaller has taken since; the next long request needs a longer one. So it waits (2), or something
# still useful is evicted until a neighbourhood happens to empty (3), or it is refused (1). A restart (4) heals it for as
# long as it takes to come back to the same pattern.
#
# **Try it.** Change the experiment: the allocator, how much memory there is, how many requests belong to long sessions.


# %%
def harms_panel(allocator, memory, sessions, figure=None):
    load = with_long_sessions(
        holdings_of(requests[:1500], bytes_per_token=bytes_per_token, seconds_per_token=0.03),
        lab.rng(3),
        share=sessions / 100,
    )
    run = Churn(
        AllocatorMemory(make_allocator(allocator, int(memory / 100 * peak_demand(load)))), on_failure="drop"
    ).feed(load)
    return draw_timeline(
        [
            Series("free in total", run.times_s, run.free),
            Series("largest free span", run.times_s, run.largest_free),
        ],
        title=f"{allocator}: {run.num_fragmentation_failures} refused with room to spare, {run.num_dropped} refused in all",
        figure=figure,
    )


SliderPanel(
    harms_panel,
    {
        "allocator": Choice(
            "first-fit", [name for name in ALLOCATORS if name.endswith("fit") or name == "buddy"]
        ),
        "memory": Slider(110, 60, 200, 5, label="memory (% of the peak demand)"),
        "sessions": Slider(2, 0, 20, 1, label="long sessions (% of requests)"),
    },
    title="What the allocator, the room and the long sessions change",
)

# %% [markdown]
# ## In an interview
#
# *"The GPU shows 12 GB free and a 6 GB request fails. How can that be?"* A short answer names the largest free span instead
# of the total. A good one asks what the neighbours of the holes are and when they end. A deep one says how to tell it from
# the other causes (the failed size, largest free against total free, whether a restart helps and for how long) and what it
# would change: blocks, pools by lifetime, or headroom.
#
# **Exercises** (in `exercises/`): 02 (the measures), 03 (first fit with coalescing), 04 (buddy).
#
# ## In five lines
#
# 1. Free memory is a set of spans, and one allocation needs one span.
# 2. Totals, utilisation and averages do not see this; the largest free span does.
# 3. An allocation asks about span, class, neighbours and movement, and each "no" costs bytes.
# 4. Fragmentation refuses, idles, evicts and ages.
# 5. In equal blocks the same load fails no admission and ages no pool; it idles and evicts far less.
#
# **What would change my mind:** a contiguous allocator that serves this trace at the peak demand plus 10 % without a
# refusal and without moving anything. Put it into the panel above.

# %%
finish("03")
