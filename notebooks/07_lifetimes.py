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
# # 7. An allocator seems to hand out tokens; it hands out lifetimes
#
# **The question.** Two loads ask for exactly the same sizes at exactly the same times. One leaves memory clean after every
# wave, the other leaves it riddled with holes. What differs, if not the sizes?

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
from labkit.experiments.lifetimes import (
    CLASSES,
    compare_pools,
    engine_objects,
    in_waves,
    lifetime_quantiles,
    run_pools,
    same_lifetime,
    shuffled_names,
    two_lifetimes,
    who_pins_holes,
)
from labkit.models import get_model
from labkit.teach import claim, finish, predict, setup
from labkit.units import format_bytes
from labkit.viz import Choice, Series, Slider, SliderPanel, draw_layout, draw_timeline
from labkit.viz.charts import draw_bars
from labkit.viz.palette import color_of
from labkit.viz.player import player
from labkit.viz.player_builder import RunBuilder
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)

# %% [markdown]
# ## 7.1 Same sizes, two lifetimes
#
# Objects of 8 MiB come in waves. Nineteen in twenty live about a second; one in twenty lives a minute and a half. Memory
# can be handed to somebody else (unmapped, given to another pool) only in whole granules of 64 MiB, so we count what is
# **lost**: free bytes inside granules in which something still lives, over the bytes in use. The control keeps arrivals, sizes
# and names, and lets everybody live equally long.

# %%
guess = predict("Lost bytes for each byte in use: one pool for all?", low=0.0, high=3.0)
guess

# %%
mixed = two_lifetimes(lab.rng(1))
one_pool, two_pools = run_pools(mixed, []), run_pools(mixed, ["session"])
equal = same_lifetime(mixed)
equal_one, equal_two = run_pools(equal, []), run_pools(equal, ["session"])
guess.compare(one_pool.lost_share)
draw_bars(
    {
        "two lifetimes": {"one pool": one_pool.lost_share, "pools by lifetime": two_pools.lost_share},
        "one lifetime (control)": {
            "one pool": equal_one.lost_share,
            "pools by lifetime": equal_two.lost_share,
        },
    },
    ylabel="lost bytes for a byte in use",
    title="the same sizes at the same times",
)

# %%
quiet = min(one_pool.run.snapshots, key=lambda look: sum(s.size for s in look[1] if s.state == "allocated"))
draw_layout(quiet[1], rows=3, title=f"one pool, in the quiet after a wave ({quiet[0]:.0f} s)")

# %%
same_look = next(look for look in two_pools.run.snapshots if look[0] == quiet[0])
draw_layout(same_look[1], rows=3, title="pools by lifetime, the same instant (long ones have the left part)")

# %% [markdown]
# One service is one throw of the dice. The claim, and that of 7.5, rests on the mean over four such services.

# %%
services = [mixed, *(two_lifetimes(lab.rng(10 + number)) for number in range(3))]
two_kinds, one_kind = compare_pools(services), compare_pools([same_lifetime(load) for load in services])
claim(
    "7.1",
    "With two lifetimes, pools by lifetime at least halve what one pool loses; with one lifetime they do not.",
    held=two_kinds.halved(),
    control=one_kind.halved(),
    one_pool=two_kinds.lost_one_pool,
    two_pools=two_kinds.lost_pools,
    one_lifetime_one_pool=one_kind.lost_one_pool,
    one_lifetime_two_pools=one_kind.lost_pools,
)

# %% [markdown]
# Both on one clock: drag through the waves.

# %%
runs = []
for title, pooled in {"one pool": one_pool, "pools by lifetime": two_pools}.items():
    builder = RunBuilder(total=pooled.capacity, title=title)
    for time_s, layout in pooled.run.snapshots:
        builder.add(time_s, layout)
    runs.append(builder.finish())
player(runs, title="waves of short objects around long ones", time=quiet[0])

# %% [markdown]
# ## 7.2 How far lifetimes really are apart
#
# Everything that one engine allocates under the chat trace: KV of ordinary requests and of long chats, shared prefixes,
# the workspace of each prefill, adapters (small weights) loaded on the way and kept. Three bars a class: the lifetime that 5 %,
# half, and 95 % of its objects stay below.

# %%
requests, origin = load_or_synthetic("azure-conv", lab.pick(ci=1200, lab=6000), lab.rng(2))
print(origin)
objects = engine_objects(
    in_waves(requests), lab.rng(3), bytes_per_token=get_model("Llama-3.1-8B").kv_bytes_per_token()
)
quantiles = lifetime_quantiles(objects)
draw_bars(
    {
        {"weights": "adapters (weights)"}.get(name, name): {
            "5 % quantile": low,
            "median": median,
            "95 % quantile": high,
        }
        for name, (low, median, high) in quantiles.items()
    },
    ylabel="lifetime (s)",
    title="lifetimes of the objects of one engine",
    logy=True,
)


# %%
def far_apart(medians):
    return max(medians) / min(medians) > 1000


medians = {name: median for name, (_, median, _) in quantiles.items()}
claim(
    "7.2",
    "The typical lifetimes of the classes are more than a thousand times apart.",
    held=far_apart(medians.values()),
    control=far_apart(quantiles["request"]),
    **{f"{name}_median_s": value for name, value in medians.items()},
)

# %% [markdown]
# ## 7.3 Who punches holes, who pins them
#
# Look at holes that *last*: the same free span in four looks in a row (more than ten seconds). What lies on their two
# sides? The control deals the names "long" and "short" out at random: if the answer came from how many there are, it would
# not change.

# %%
pinned = who_pins_holes(one_pool.run)
dealt_out = who_pins_holes(run_pools(shuffled_names(mixed, lab.rng(4)), []).run)
draw_bars(
    {
        "sides of lasting holes": {"long-lived": pinned.side_share},
        "all live objects": {"long-lived": pinned.live_share},
        "sides, names dealt out at random": {"long-lived": dealt_out.side_share},
    },
    ylabel="share that is long-lived (0 to 1)",
    title=f"who stands beside the {pinned.num_lasting} holes that last",
)

# %%
claim(
    "7.3",
    "The holes that last were left by short objects and are walled in by long ones on nearly every side.",
    held=pinned.pinned_by_long(),
    control=dealt_out.pinned_by_long(),
    long_on_the_sides=pinned.side_share,
    long_among_all=pinned.live_share,
    at_random=dealt_out.side_share,
)

# %% [markdown]
# ## 7.4 The layers of mature systems, switched on one by one
#
# Weights apart from everything dynamic; the workspace apart from KV; shared prefixes apart from private KV; long chats
# apart from short ones; at last size classes inside the pools. The control deals the lifetime names out at random: as many
# pools of the same sizes, and no lifetime separated from another.

# %%
names = ["one pool", *(f"+ {name} apart" for name in CLASSES), "+ size classes"]
layers = [run_pools(objects, CLASSES[:number]) for number in range(len(CLASSES) + 1)]
layers.append(run_pools(objects, CLASSES, inner="size-class"))
by_chance = run_pools(shuffled_names(objects, lab.rng(5)), CLASSES)
draw_bars(
    {name: {"lost": 100 * layer.lost_share} for name, layer in zip(names, layers)}
    | {"pools by chance (control)": {"lost": 100 * by_chance.lost_share}},
    ylabel="lost (% of bytes in use)",
    title="free bytes that only their own pool can use",
)

# %% [markdown]
# Which requests became long chats, and when adapters were loaded, was drawn; the claim rests on the mean over four draws.

# %%
engines = [
    engine_objects(
        in_waves(requests),
        lab.rng(20 + number),
        bytes_per_token=get_model("Llama-3.1-8B").kv_bytes_per_token(),
    )
    for number in range(4)
]
apart = compare_pools(engines, CLASSES)
chance = compare_pools([shuffled_names(load, lab.rng(30)) for load in engines], CLASSES)
claim(
    "7.4",
    "Separating the classes takes away more than a fifth of what is lost; as many pools by chance do not.",
    held=apart.saves_a_fifth(),
    control=chance.saves_a_fifth(),
    mean_one_pool=apart.lost_one_pool,
    mean_all_apart=apart.lost_pools,
    by_chance_one_pool=chance.lost_one_pool,
    by_chance_all_apart=chance.lost_pools,
    **{name.replace("+ ", "").replace(" ", "_"): layer.lost_share for name, layer in zip(names, layers)},
)

# %% [markdown]
# Read the steps honestly. Setting long chats apart brings most of the gain. The other layers change little on this load, one
# way or the other, because first fit already puts what lives for a tenth of a second into the holes at the front; a step may
# even cost a little, since every pool has a granule of its own that is partly empty. "Apart" is not a miracle in each layer;
# it keeps one class from spoiling another.
#
# ## 7.5 Slightly more memory, and steadier
#
# Pools cost something: each must hold its own peak, and peaks do not come together. What is bought is that the worst
# moment is less bad. Here is the price and the gain of the two pools of 7.1, over its four services:

# %%
for name, kinds in {"two lifetimes": two_kinds, "one lifetime (control)": one_kind}.items():
    print(
        f"{name:<23} pools take {kinds.memory_ratio:.2f} times the memory; lost at the worst moment, bytes a byte in use: "
        f"{kinds.worst_one_pool:.2f} in one pool, {kinds.worst_pools:.2f} in pools"
    )
claim(
    "7.5",
    "Pools by lifetime take slightly more memory, and their worst moment is less bad.",
    held=two_kinds.dearer_and_steadier(),
    control=one_kind.dearer_and_steadier(),
    memory_ratio=two_kinds.memory_ratio,
    worst_one_pool=two_kinds.worst_one_pool,
    worst_two_pools=two_kinds.worst_pools,
)

# %% [markdown]
# **Explain.** A wave needs many granules. Most of its objects leave at once; a few stay where they happened to lie, and each
# keeps a granule that is otherwise empty. The next wave starts from there. Sizes never mattered: every hole fits every
# object. What failed is the *rhythm*: space comes back in the order of ends, and is asked for in the order of starts.
#
# **Try it**: how long the long ones live, and where they are put.


# %%
def lifetime_panel(long_s, pools, figure=None):
    load = two_lifetimes(lab.rng(1), num_waves=4, long_s=float(long_s))
    run = run_pools(load, ["session"] if pools == "by lifetime" else [], num_looks=40)
    return draw_timeline(
        [
            Series("free in total", run.run.times_s, run.run.free),
            Series("largest free span", run.run.times_s, run.run.largest_free, color=color_of("session")),
        ],
        title=f"long ones live {long_s} s, pools: {pools}; {run.lost_share:.2f} bytes lost for a byte in use, {format_bytes(run.capacity)}",
        figure=figure,
    )


SliderPanel(
    lifetime_panel,
    {
        "long_s": Slider(90, 1, 300, 1, label="long objects live (s)"),
        "pools": Choice("one for all", ["one for all", "by lifetime"]),
    },
    title="Same sizes, other lifetimes",
)

# %% [markdown]
# ## In an interview
#
# *"What does an allocator for LLM serving have to know?"* Shallow: sizes. Good: sizes and lifetimes, and it names four
# classes with their orders of magnitude. Deep: explains why freeing in the order of ends and asking in the order of starts
# makes holes even when all sizes are equal, what separating a class costs (its own peak), and when it does not pay.
#
# **Exercises** (in `exercises/`): 04 (buddy), 11 (admission with headroom).
#
# ## In five lines
#
# 1. Same sizes, other lifetimes, other memory.
# 2. Lifetimes in one engine are more than a thousand times apart.
# 3. Short objects punch the holes, long ones keep them.
# 4. Separate what lives differently; as many pools by chance do not help.
# 5. The price is some memory, since each pool holds its own peak; the gain is the worst moment.
#
# **What would change my mind:** a load with two lifetimes on which one pool loses no more than two.

# %%
finish("07")
