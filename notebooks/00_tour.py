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
# # The tour: five minutes
#
# **Why does a GPU with memory to spare already refuse requests?**
#
# An A100 with 40 GB serves Llama-3.1-8B. Weights take 15 GB, and 20 GiB are left for the **KV cache**: the keys and values of
# every token that the model still has to look back at. Chat traffic runs for some minutes. Then somebody sends a long
# document, the dashboard shows that more than half of the memory is free, and the request is turned away. A restart heals
# it. You will see why, and what changes it for good.

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
from labkit.experiments.churn import AllocatorMemory, BlockMemory, holdings_of
from labkit.experiments.harms import with_long_sessions
from labkit.experiments.tour import layouts_of, take_tour
from labkit.memory import make_allocator
from labkit.models import get_model
from labkit.teach import finish, predict, setup
from labkit.units import GIB, format_bytes
from labkit.viz import Choice, Event, Series, Slider, SliderPanel, draw_layout, draw_timeline
from labkit.viz.player import player
from labkit.viz.player_builder import RunBuilder
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)
bytes_per_token = get_model("Llama-3.1-8B").kv_bytes_per_token()
CAPACITY = 20 * GIB
LONG_REQUEST = 49_152 * bytes_per_token  # a document of 48K tokens
requests, origin = load_or_synthetic("azure-conv", lab.pick(ci=6000, lab=19366), lab.rng(1))
print(origin)
print(f"One token is {bytes_per_token:,} bytes of KV; the document needs {format_bytes(LONG_REQUEST)}.")

# %% [markdown]
# ## Predict
#
# Each request keeps its KV in one piece, as a tensor would, in the first hole that is long enough (**first fit**). Two in a
# hundred belong to long chats that stay forty times as long as the others. The document needs 6 GiB.

# %%
guess = predict(
    "How much memory can be free in total and the 6 GiB request is still refused?", low=6, high=20, unit="GiB"
)
guess

# %% [markdown]
# ## Run

# %%
holdings = with_long_sessions(
    holdings_of(requests, bytes_per_token=bytes_per_token, seconds_per_token=0.03), lab.rng(2)
)
tour = take_tour(
    holdings, capacity=CAPACITY, long_request_bytes=LONG_REQUEST, block_bytes=16 * bytes_per_token
)
aged = tour.aged
guess.compare(aged.free / GIB)
print(
    f"After {aged.time_s / 60:.0f} minutes: free {format_bytes(aged.free)}, asked {format_bytes(aged.asked)}, "
    f"largest free span {format_bytes(aged.largest_free)}: {'served' if aged.served else 'refused'}."
)
print(
    f"The long request would have been refused, with enough bytes free, at {100 * tour.share_of_time_refused:.0f} % of all arrivals."
)

# %% [markdown]
# ## Look
#
# The dashboard shows the upper curve. The allocator lives by the lower one: wherever the dashed line lies between the two,
# the document is turned away although enough bytes are free.

# %%
draw_timeline(
    [
        Series("free in total", tour.run.times_s, tour.run.free),
        Series("largest free span", tour.run.times_s, tour.run.largest_free),
        Series(
            "the long request",
            [tour.run.times_s[0], tour.run.times_s[-1]],
            [LONG_REQUEST] * 2,
            dashed=True,
            color="#000000",
        ),
    ],
    events=[Event(aged.time_s, "oom", "the document is refused")],
    title="free memory under chat traffic, contiguous KV",
)

# %% [markdown]
# The map at the red line. Read it like text, row by row: every grey hole is what some conversation left behind, and its
# neighbours are still talking.

# %%
draw_layout(
    aged.layout,
    capacity=CAPACITY,
    rows=3,
    title=f"{format_bytes(aged.free)} free, largest span {format_bytes(aged.largest_free)}: "
    f"a request of {format_bytes(aged.asked)} is refused",
)

# %% [markdown]
# ### Restart
#
# The same live conversations, placed again from the start of the memory. Not one byte less is in use, and the document
# (dark) fits.

# %%
draw_layout(
    tour.restarted.layout,
    capacity=CAPACITY,
    rows=3,
    title=f"after a restart: {format_bytes(tour.restarted.free)} free before the request, in one span of "
    f"{format_bytes(tour.restarted.largest_free)}: {'served' if tour.restarted.served else 'refused'}",
)

# %% [markdown]
# ### Blocks
#
# The same load with KV in blocks of 16 tokens that may lie anywhere; a table says which block comes next. Nothing was
# restarted, and the document (dark) lies in many places at once.

# %%
draw_layout(
    tour.on_blocks.layout,
    capacity=CAPACITY,
    title=f"in blocks: {format_bytes(tour.on_blocks.free)} free before the request, which is "
    f"{'served' if tour.on_blocks.served else 'refused'}",
)

# %% [markdown]
# ## Move through time
#
# Both memories on one clock. Drag the slider, press play, or use the arrow keys; hover to see who owns a span. In the pool of
# blocks any free block serves, so there "largest free" is all that is free.

# %%
first_part = holdings[:1500]
runs = []
for title, memory in {
    "contiguous": AllocatorMemory(make_allocator("first-fit", CAPACITY)),
    "blocks": BlockMemory(CAPACITY, 128 * bytes_per_token),
}.items():
    builder = RunBuilder(total=CAPACITY, title=title, interchangeable=title == "blocks")
    for time_s, layout in layouts_of(memory, first_part, lab.pick(ci=60, lab=300)):
        builder.add(time_s, layout)
    runs.append(builder.finish())
player(
    runs,
    title=f"the first {first_part[-1].arrival_s / 60:.0f} minutes of chat, contiguous and in blocks (of 128 tokens, to keep the page small)",
)

# %% [markdown]
# ## Change it
#
# Is it the allocator? The long chats? Would more memory help? The sliders run the first 1,200 requests only, so 16 GiB are enough
# to be short of.


# %%
def tour_panel(allocator, gib, sessions, figure=None):
    load = with_long_sessions(
        holdings_of(requests[:1200], bytes_per_token=bytes_per_token, seconds_per_token=0.03),
        lab.rng(2),
        share=sessions / 100,
    )
    again = take_tour(
        load,
        capacity=gib * GIB,
        long_request_bytes=LONG_REQUEST,
        block_bytes=16 * bytes_per_token,
        allocator=allocator,
    )
    return draw_timeline(
        [
            Series("free in total", again.run.times_s, again.run.free),
            Series("largest free span", again.run.times_s, again.run.largest_free),
            Series(
                "the long request",
                [again.run.times_s[0], again.run.times_s[-1]],
                [LONG_REQUEST] * 2,
                dashed=True,
                color="#000000",
            ),
        ],
        title=f"{allocator}, {gib} GiB: 6 GiB refused with room to spare at {100 * again.share_of_time_refused:.0f} % of arrivals",
        figure=figure,
    )


SliderPanel(
    tour_panel,
    {
        "allocator": Choice("first-fit", ["first-fit", "best-fit", "next-fit", "worst-fit"]),
        "gib": Slider(16, 14, 40, 1, label="memory for KV (GiB)"),
        "sessions": Slider(2, 0, 20, 1, label="long chats (% of requests)"),
    },
    title="When is the document refused?",
)

# %% [markdown]
# ## What you have seen
#
# 1. Free memory is not usable memory: what counts is the longest span, and a dashboard shows the sum.
# 2. It came from lifetimes: short conversations leave holes between long ones.
# 3. A restart heals it without freeing a byte, which is how you recognise it.
# 4. More memory moves the moment; another shape of allocation removes it.
# 5. Blocks are not the end of the story: the next notebooks show what they cost, who still fills the pool, and how a
#    scheduler, a prefix cache and a restart decide what your users feel.
#
# Go on with **01** (why this is the usual case), or with the question that brought you here: **03** fragmentation, **05**
# contiguous KV, **06** blocks, **08** scheduling, **12** five situations that are easy to misjudge.

# %%
assert aged.refused_with_room_to_spare, "the tour rests on this refusal"
assert tour.restarted.served, "a restart must heal it"
assert tour.on_blocks.served, "blocks must serve it"
finish("00")
