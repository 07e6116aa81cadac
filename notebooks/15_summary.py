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
# # 15. Four factors, and the closing question
#
# **The question.** Capacity, the shape of allocation, the regularity of lifetimes, and how well scheduling fits the memory it
# schedules: which of the four decides? And why does *this* GPU, with memory to spare, already refuse requests?

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
import pandas as pd

from labkit.experiments.churn import holdings_of
from labkit.experiments.four_factors import (
    FACTORS,
    act_together,
    all_of,
    closing_answer,
    effects,
    factorial,
    run_cell,
)
from labkit.experiments.harms import with_long_sessions
from labkit.models import get_model
from labkit.teach import claim, finish, predict, setup
from labkit.viz import Slider, SliderPanel, Toggle
from labkit.viz.charts import draw_bars
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)
bytes_per_token = get_model("Llama-3.1-8B").kv_bytes_per_token()
all_requests, origin = load_or_synthetic("azure-conv", lab.pick(ci=4000, lab=19366), lab.rng(1))
requests = [
    r for r in all_requests[: lab.pick(ci=400, lab=1500)] if r.num_prompt_tokens + r.num_output_tokens < 4000
]
print(origin)
pd.DataFrame([(name, *levels) for name, levels in FACTORS.items()], columns=["factor", "low", "high"])

# %% [markdown]
# ## 15.1 All sixteen combinations
#
# Four factors at two levels each, every combination run on the same requests: a full factorial experiment. The outcome is the
# share of requests served whole within the SLA, the promise to the user (first token in 2 s, then 60 ms a token). An
# **effect** is the mean of the runs with the factor high, less the mean of those with it low. An **interaction**
# ("capacity × shape") says that one factor changes what the other is worth.

# %%
guess = predict("Which factor has the largest effect here?", options=list(FACTORS))
guess

# %%
results = factorial(requests, bytes_per_token=bytes_per_token)
found = effects(results)
guess.compare(found[0].factors[0])
draw_bars(
    {effect.name.replace(" x ", " × "): {"effect": 100 * effect.size} for effect in found[:10]},
    ylabel="effect (percentage points)",
    title="main effects (first four) and the largest interactions",
)

# %%
table = pd.DataFrame(
    [
        (*(FACTORS[name][level] for name, level in zip(FACTORS, cell)), 100 * share)
        for cell, share in results.items()
    ],
    columns=[*FACTORS, "served in the SLA (%)"],
)
table.round(0)

# %%
idle = effects(factorial(requests[:150], bytes_per_token=bytes_per_token, speed=0.05))
claim(
    "15.1",
    "Each factor is worth more than two points of the SLA, and an interaction more than five: they act together.",
    held=act_together(found),
    control=act_together(idle),
    **{effect.name.replace(" ", "_"): effect.size for effect in found[:6]},
)

# %% [markdown]
# Compare the rows with the load of the trace. Under a scheduler that counts requests neither blocks nor twice the capacity help.
# With one that counts memory, blocks in the *small* memory serve more than reserved runs in the large one. So what one factor
# is worth depends on the others; alone, most of them look useless. The control is the same design on a load so light that
# nothing binds: all effects are zero, and every configuration looks equally good. That is the load test that passed.

# %% [markdown]
# ## 15.2 Why does this GPU, with memory to spare, already refuse requests?
#
# Your own run. Contiguous memory as large as the peak demand, the chat trace with one session in twenty a long one, drawn
# four times (at the peak only few are refused, and each of them is luck). Every refusal is looked at
# when it happens: how much was asked, how much was free, how long the longest free span was. Then two remedies: 5 % more
# memory, and blocks of 16 tokens (with 1 % more memory, for the empty rest of last blocks).

# %%
holdings = holdings_of(all_requests, bytes_per_token=bytes_per_token, seconds_per_token=0.03)
answer = all_of(
    [
        closing_answer(
            with_long_sessions(holdings, lab.rng(10 + draw), share=0.05), block_bytes=16 * bytes_per_token
        )
        for draw in range(4)
    ]
)
print(answer.sentence)
draw_bars(
    {"as it is": {"refused": answer.refused}}
    | {name: {"refused": left} for name, left in answer.after.items()},
    ylabel="requests refused",
    title="the remedy that fits the cause, and the one that does not",
)

# %%
claim(
    "15.2",
    "It refuses because no free span is long enough; changing the shape of allocation ends it, more memory does not.",
    held=answer.removes_refusals("blocks"),
    control=answer.removes_refusals("5 % more memory"),
    refused=answer.refused,
    with_room_to_spare=answer.with_room_to_spare,
    left_with_blocks=answer.after["blocks"],
    left_with_more_memory=answer.after["5 % more memory"],
)


# %% [markdown]
# **Try it**: one cell of the sixteen, at any load.


# %%
def cell_panel(speed, capacity, shape, lifetimes, scheduling, figure=None):
    cell = (capacity, shape, lifetimes, scheduling)
    few = requests[:60]
    chosen_levels = ", ".join(levels[level] for levels, level in zip(FACTORS.values(), cell))
    bars = {f"your choice: {chosen_levels}": cell, "all low": (False,) * 4, "all high": (True,) * 4}
    return draw_bars(
        {
            name: {"served": 100 * run_cell(few, chosen, bytes_per_token=bytes_per_token, speed=speed / 100)}
            for name, chosen in bars.items()
        },
        ylabel="served in the SLA (%)",
        title=f"{len(few)} requests of the trace at {speed} % of its rate",
        figure=figure,
    )


SliderPanel(
    cell_panel,
    {
        "speed": Slider(70, 40, 400, 10, label="load (% of the trace's rate)"),
        "capacity": Toggle(False, label="capacity: 80,000 tokens instead of 40,000"),
        "shape": Toggle(False, label="shape: blocks instead of reserved runs"),
        "lifetimes": Toggle(False, label="lifetimes: all alike"),
        "scheduling": Toggle(False, label="scheduling: counts memory"),
    },
    title="Four switches and a load",
)

# %% [markdown]
# ## In an interview
#
# *"Sum it up: why does memory fail before it is full?"* Shallow: fragmentation. Good: because capacity, shape, lifetimes and
# scheduling must fit each other. Deep: says which of the four binds in *this* service, how it was told from the other three,
# what the interaction predicts for the remedy that was proposed, and what a load test must do to see it.
#
# **Exercise** (in `exercises/`): 16 (beat the built-in policy on a real trace under an SLA).
#
# ## In five lines
#
# 1. Four factors act together: what one is worth depends on the others.
# 2. A light load shows none of them: it proves nothing about a heavy one.
# 3. Look at a refusal when it happens: asked, free, longest span.
# 4. The remedy must fit the cause: shape is not mended by capacity.
# 5. Predict, run, look, prove. Then change the service.
#
# **What would change my mind:** a heavy, irregular load on which one of the four factors has no effect at any level of the
# others.

# %%
finish("15")
