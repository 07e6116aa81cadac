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
# # 4. Why LLM serving fragments more than ordinary inference
#
# **The question.** The same PyTorch, the same GPU, the same allocator served image models for years without a word about
# fragmentation. What is different about language models?
#
# Five things. You will switch them on alone, to see what each does, and one after another, to see what they do together.
#
# | cause | off | on |
# |---|---|---|
# | lengths | 896 + 128 tokens for all | prompt and output lengths of the trace |
# | growth | the whole length at once | the prompt first, then a longer piece every 64 tokens |
# | continuous batching | 32 start together, the next 32 when the last of them has ended | each starts when it arrives |
# | shared prefixes | none | three requests in four share one of eight system prompts |
# | long sessions | none | two requests in a hundred stay forty times as long |

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
from labkit.experiments.five_causes import (
    CAUSES,
    Causes,
    fragmentation_of,
    load_with,
    prefix_residency,
    room_needed,
    room_needed_in_blocks,
)
from labkit.models import get_model
from labkit.teach import claim, finish, predict, setup
from labkit.viz import Event, Series, SliderPanel, Toggle, draw_timeline
from labkit.viz.charts import draw_bars
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)
bytes_per_token = get_model("Llama-3.1-8B").kv_bytes_per_token()
requests, origin = load_or_synthetic("azure-conv", lab.pick(ci=1500, lab=8000), lab.rng(1))
print(origin)


def load(causes):
    return load_with(causes, requests, lab.rng(2), bytes_per_token=bytes_per_token)


# %% [markdown]
# ## 4.0 Ordinary inference: nothing happens
#
# Thirty-two requests of one length are born together and die together; the next batch follows. First fit has nothing to
# do wrong.

# %%
ordinary = fragmentation_of(load(Causes()))
print(f"contiguity loss, averaged over time: {ordinary.mean_loss:.3f}")

# %% [markdown]
# ## Each cause alone
#
# Contiguity loss is 1 − (largest free span / free in total), averaged over time: 0 when all that is free is in one piece.

# %%
guess = predict("Which of the five, alone, breaks free memory up most?", options=list(CAUSES))
guess

# %%
alone = {name: fragmentation_of(load(Causes.only(index))) for index, name in enumerate(CAUSES)}
guess.compare(max(alone, key=lambda name: alone[name].mean_loss))
draw_bars(
    {"none": {"loss": ordinary.mean_loss}}
    | {name: {"loss": found.mean_loss} for name, found in alone.items()},
    ylabel="contiguity loss (0 to 1), mean over time",
    title="one cause at a time, the same allocator (first fit), memory 10 % above the peak demand",
)

# %%
BROKEN_UP = 0.05


def broken_up(found):
    return found.mean_loss > BROKEN_UP


claim(
    "4.0",
    "Static shapes in a fixed batch leave all free memory in one piece.",
    held=ordinary.mean_loss == 0,
    control=fragmentation_of(load(Causes.first(5))).mean_loss == 0,
    loss=ordinary.mean_loss,
)
claim(
    "4.1",
    "Lengths of the trace, and with them release times, break free memory up even in fixed batches.",
    held=broken_up(alone["lengths"]),
    control=broken_up(ordinary),
    loss=alone["lengths"].mean_loss,
    shortest_tokens=min(r.num_prompt_tokens + r.num_output_tokens for r in requests),
    longest_tokens=max(r.num_prompt_tokens + r.num_output_tokens for r in requests),
)
claim(
    "4.2",
    "Objects that grow by moving break free memory up, although all are of one length.",
    held=broken_up(alone["growth"]),
    control=broken_up(ordinary),
    loss=alone["growth"].mean_loss,
)
claim(
    "4.3",
    "Births and deaths at any moment break free memory up, although all objects are equal.",
    held=broken_up(alone["continuous batching"]),
    control=broken_up(ordinary),
    loss=alone["continuous batching"].mean_loss,
)
claim(
    "4.5",
    "Two long sessions in a hundred break free memory up, although all objects are equal.",
    held=broken_up(alone["long sessions"]),
    control=broken_up(ordinary),
    loss=alone["long sessions"].mean_loss,
)

# %% [markdown]
# ## 4.4 The prefix that outlives its request
#
# One cause did nothing alone: in fixed batches a shared prefix begins and ends with its batch. What sharing changes is
# *when* memory is freed. Three requests in four use one of eight system prompts, kept once; each prompt is freed when the last request
# that uses it ends. How long does it stay, compared with the request that brought it?

# %%
shared = prefix_residency(requests, lab.rng(3), shared=True)
private = prefix_residency(requests, lab.rng(3), shared=False)
draw_bars(
    {
        "shared by many": {"the prefix": shared.prefix_s, "the request that brought it": shared.request_s},
        "each its own": {"the prefix": private.prefix_s, "the request that brought it": private.request_s},
    },
    ylabel="mean time in memory (s)",
    title="freed by the last reference",
)

# %%
claim(
    "4.4",
    "A shared prefix stays until its last user ends, several times longer than the request that brought it.",
    held=shared.outlives(),
    control=private.outlives(),
    prefix_s=shared.prefix_s,
    bringing_request_s=shared.request_s,
)

# %% [markdown]
# ## 4.6 One after another
#
# Now together. Loss says how broken up the free part is; it does not say how much memory that costs, because a nearly
# empty memory may be broken up and nobody minds. So here is a second measure: **how much memory would first fit need to
# serve the load without a refusal**, over the most bytes that are ever in use.

# %%
together = predict(
    "With all five on, how much more memory than is ever in use does first fit need?",
    low=0,
    high=100,
    unit="%",
)
together

# %%
loads = [load(Causes.first(number)) for number in range(len(CAUSES) + 1)]
names = ["none", *(f"+ {name}" for name in CAUSES)]
needed = [100 * (room_needed(holdings) - 1) for holdings in loads]
in_blocks = [100 * (room_needed_in_blocks(holdings, 16 * bytes_per_token) - 1) for holdings in loads]
together.compare(needed[-1])
for index, name in enumerate(CAUSES):
    print(f"{name:<20} alone needs {100 * (room_needed(load(Causes.only(index))) - 1):.1f} % beyond peak use")
draw_bars(
    {
        name: {"first fit": first_fit, "blocks of 16 tokens": blocks}
        for name, first_fit, blocks in zip(names, needed, in_blocks)
    },
    ylabel="memory beyond peak use (%)",
    title="memory needed to refuse nobody, causes added from left to right",
)

# %%
whole = fragmentation_of(loads[-1])
draw_timeline(
    [
        Series("free in total", whole.run.times_s, whole.run.free),
        Series("largest free span", whole.run.times_s, whole.run.largest_free),
    ],
    events=[Event(requests[-1].arrival_s, "other", "last arrival")],
    title=f"all five on: {whole.num_failures} refused although enough bytes were free",
)

# %%
claim(
    "4.6",
    "Added one after another, the five take first fit from none to more than 5 % of memory lost beyond peak use.",
    held=needed[0] == 0 and needed[-1] > 5,
    control=in_blocks[0] == 0 and in_blocks[-1] > 5,
    **{f"percent_{name.strip('+ ').replace(' ', '_')}": value for name, value in zip(names, needed)},
)

# %% [markdown]
# **Explain.** Each cause leaves holes, and none of them alone needs more memory: batches empty everything before the next
# begins, and where all lengths are equal every hole fits whoever comes. The jump comes when births and deaths interleave
# *and* lengths differ: then a hole is as long as whoever left it, and whoever comes needs another length. Growth multiplies the
# number of births; long sessions decide where the walls stand.
# Fragmentation is not a property of an allocator. It is what an allocator makes of a distribution of lifetimes.
#
# **Try it**: any combination.


# %%
def causes_panel(lengths, growth, continuous, prefixes, sessions, figure=None):
    chosen = Causes(lengths, growth, continuous, prefixes, sessions)
    holdings = load_with(chosen, requests[:300], lab.rng(2), bytes_per_token=bytes_per_token)
    found = fragmentation_of(holdings)
    return draw_timeline(
        [
            Series("free in total", found.run.times_s, found.run.free),
            Series("largest free span", found.run.times_s, found.run.largest_free),
        ],
        title=f"contiguity loss {found.mean_loss:.2f}, memory needed beyond peak use {100 * (room_needed(holdings) - 1):.0f} %",
        figure=figure,
    )


SliderPanel(
    causes_panel,
    {
        "lengths": Toggle(True, label="lengths of the trace"),
        "growth": Toggle(False, label="decode grows"),
        "continuous": Toggle(True, label="continuous batching"),
        "prefixes": Toggle(False, label="shared prefixes"),
        "sessions": Toggle(False, label="long sessions"),
    },
    title="Switch the causes",
)

# %% [markdown]
# ## In an interview
#
# *"Our vision service ran for two years on this allocator. Why does the chat service fragment?"* Shallow: sequences have
# different lengths. Good: names the five and says which of them decides *when* memory is freed. Deep: knows that neither
# lengths nor interleaving alone costs memory, that their product does, and can say which of the five each remedy removes
# (blocks remove the shape, pools by lifetime the mixing, admission the interleaving of long and short).
#
# **Exercises** (in `exercises/`): 03 (first fit with coalescing), 05 (PyTorch's rounding and split rule).
#
# ## In five lines
#
# 1. Static batches do not fragment, on the same allocator.
# 2. Lengths, growth, interleaving and long sessions each break free memory up alone.
# 3. A shared prefix is freed by its last user, long after the request that brought it.
# 4. Memory is lost where lengths *and* lifetimes mix.
# 5. In blocks the same loads need hardly more than is in use.
#
# **What would change my mind:** a measurement in which lengths alone, in fixed batches, need more memory than the peak.

# %%
finish("04")
