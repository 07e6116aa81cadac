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
# # 2. First the ledger: where inference memory goes
#
# **The question.** 80 GB on the card, 15 GB of weights: 65 GB for KV cache? How far off is that, and which lines did it
# forget?

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
import dataclasses

import pandas as pd

from labkit.experiments.lifetimes import engine_objects, run_pools
from labkit.models import get_gpu, get_model
from labkit.planning.ledger import KINDS, make_ledger, naive_concurrency
from labkit.planning.planner import make_plan
from labkit.planning.request import PlanRequest
from labkit.teach import claim, finish, predict, setup
from labkit.units import GIB, format_bytes
from labkit.viz.charts import draw_bars
from labkit.viz.ledger import draw_ledger
from labkit.viz.whatif import whatif_panel
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)
pd.set_option("display.max_colwidth", None)


def plan(model, gpu, **options):
    return make_plan(PlanRequest(get_model(model), get_gpu(gpu), **options))


# %% [markdown]
# ## 2.1 Seven kinds
#
# Weights; activations and intermediate buffers; workspace of attention and GEMM; communication buffers; KV cache; runtime
# metadata and indices; and what the allocator and the driver keep for themselves. The plan below follows vLLM's own
# arithmetic. Each line has a formula and says how sure it is. *Rank* is one GPU of a server; *unused* is what the plan leaves
# free on purpose, because vLLM takes only a share of the card (`gpu_memory_utilization`, 0.9 here). *Hidden* lines are those
# that estimates leave out.
#
# Before you look at it:

# %%
guess = predict(
    "The lines nobody writes down, together, for Llama-3.1-8B on an A100-80GB?",
    low=0.0,
    high=10.0,
    unit="GiB",
)
guess

# %%
llama = plan("Llama-3.1-8B", "A100-80GB", max_model_len=16_384)
ledger = make_ledger(llama)
print(ledger.sentence())
ledger.frame()

# %%
draw_ledger(ledger, title="where the memory of one GPU goes (hatched: what estimates leave out)")


# %%
def has_all_kinds(kinds):
    return all(kinds.get(kind, 0) > 0 for kind in KINDS)


two_ranks = make_ledger(
    plan(
        "Llama-3.1-8B",
        "A100-80GB",
        max_model_len=16_384,
        parallel=dataclasses.replace(llama.request.parallel, tp=2),
    )
)
by_kind = {kind: two_ranks.bytes_of(kind) for kind in KINDS}
sheet_of_paper = {
    "weights": by_kind["weights"],
    "kv_cache": by_kind["kv_cache"],
    "activations": by_kind["activations"],
}
claim(
    "2.1",
    "On a rank of a two-GPU server each of the seven kinds has a line with bytes.",
    held=has_all_kinds(by_kind),
    control=has_all_kinds(sheet_of_paper),
    **{kind: format_bytes(size) for kind, size in by_kind.items()},
)

# %% [markdown]
# The control is the usual sheet of paper: weights, KV and batch. Four kinds are not on it.
#
# ## 2.2 The underestimated lines
#
# Hatched in the picture: what estimates leave out. CUDA graphs (recorded launches of a whole decode step, one for each batch
# size, with their buffers), block tables (where each request's KV blocks lie), rotary tables (sines and cosines of all
# positions), driver context, the rounding of the allocator, temporaries of a new shape. How much is that?

# %%
guess.compare(ledger.hidden_bytes / GIB)
hidden = pd.DataFrame([row for row in ledger.rows() if row["hidden"]])
hidden[["kind", "line", "gib", "formula", "confidence"]]

# %%
SERVERS = {
    "Llama-3.1-8B, A100-80GB": ledger,
    "Llama-3.1-8B, L4-24GB": make_ledger(plan("Llama-3.1-8B", "L4-24GB", max_model_len=8192)),
    "Qwen2.5-7B, RTX4090": make_ledger(plan("Qwen2.5-7B", "RTX4090-24GB", max_model_len=8192)),
    "Llama-2-13B, A100-40GB": make_ledger(plan("Llama-2-13B", "A100-40GB", max_model_len=4096)),
}


draw_bars(
    {
        name: {
            "hidden lines": one.hidden_bytes / GIB,
            "visible, not weights or KV": (
                one.used_bytes - one.bytes_of("weights") - one.bytes_of("kv_cache") - one.hidden_bytes
            )
            / GIB,
        }
        for name, one in SERVERS.items()
    },
    ylabel="GiB on one rank",
    title="beyond weights and KV",
)


# %%
def forgets_half_a_gib(ledger):
    return ledger.hidden_bytes > 0.5 * GIB


bare = make_ledger(
    plan(
        "Llama-3.1-8B",
        "A100-80GB",
        max_model_len=16_384,
        memory_fraction=1.0,
        given={"peak_activation": 0, "non_torch": 0, "cuda_graphs": 0},
    )
)
claim(
    "2.2",
    "The lines that nobody writes down take more than half a GiB on every one of these servers.",
    held=all(forgets_half_a_gib(one) for one in SERVERS.values()),
    control=forgets_half_a_gib(bare),
    bare_engine=format_bytes(bare.hidden_bytes),
    **{name: format_bytes(one.hidden_bytes) for name, one in SERVERS.items()},
)

# %% [markdown]
# ## 2.3 How far off the sheet of paper is
#
# "All memory less the weights, divided by the KV of one request." Against what the engine would print:

# %%
rows = []
for name, one in SERVERS.items():
    asked = one.plan.request
    paper, printed = naive_concurrency(one.plan), one.plan.max_concurrency
    rows.append((name, asked.model_len, paper, printed, 100 * (paper / printed - 1), one.plan.binding_limit))
table = pd.DataFrame(
    rows,
    columns=["server", "tokens a request", "on paper", "printed", "paper is too high by %", "what binds"],
)
table.round(1)

# %%
draw_bars(
    {row[0]: {"on paper": row[2], "by the engine's arithmetic": row[3]} for row in rows},
    ylabel="requests of full length at once",
    title="maximum concurrency: paper against what the engine would print",
)


# %%
def too_high(paper, printed):
    return paper > 1.10 * printed


claim(
    "2.3",
    "Weights plus theoretical KV promises more than 10 % too much concurrency on every one of these servers.",
    held=all(too_high(row[2], row[3]) for row in rows),
    control=too_high(naive_concurrency(bare.plan), bare.plan.max_concurrency),
    **{row[0]: row[4] for row in rows},
)

# %% [markdown]
# The control is an engine that takes the whole card and needs nothing for activations, context and graphs: for it, paper
# and print agree. There is no such engine.
#
# ## 2.4 What stands still and what moves
#
# Weights are put down once. KV and temporaries come and go, and only things that come and go leave holes. The objects of
# one engine under the chat trace, placed by first fit: those that come and go, and those that stay (weights of adapters,
# loaded on the way and kept to the end). *Contiguity loss* is the share of the free bytes outside the largest free span.

# %%
requests, origin = load_or_synthetic("azure-conv", lab.pick(ci=600, lab=4000), lab.rng(1))
print(origin)
objects = engine_objects(requests, lab.rng(2), bytes_per_token=get_model("Llama-3.1-8B").kv_bytes_per_token())
moving = run_pools([item for item in objects if item.lifetime != "weights"], [])
static = run_pools([item for item in objects if item.lifetime == "weights"], [])
draw_bars(
    {"KV and temporaries": {"loss": moving.mean_loss}, "weights of adapters": {"loss": static.mean_loss}},
    ylabel="contiguity loss (0 to 1), mean over time",
    title="what breaks free memory up",
)

# %%
dynamic_share = 1 - ledger.static_bytes / ledger.used_bytes
claim(
    "2.4",
    "What comes and goes breaks free memory up; what is put down once does not.",
    held=moving.mean_loss > 0.05,
    control=static.mean_loss > 0.05,
    loss_of_moving=moving.mean_loss,
    loss_of_static=static.mean_loss,
    dynamic_share_of_the_ledger=dynamic_share,
)

# %% [markdown]
# **Explain.** Three things make the sheet of paper wrong. The engine does not get the whole card (utilisation, context,
# communication). Room for the largest forward pass and its graphs is set aside for good, however few requests run. And the
# allocator rounds, caches and holds. Each of these is small; together they cost the requests by which the two bars differ.
#
# **Try it**: another model, another card, another format. The bar is one rank; the title says what the engine would print,
# and what the sheet of paper ("weights + KV alone") would.

# %%
whatif_panel()

# %% [markdown]
# ## In an interview
#
# *"How many concurrent requests does this server take?"* Shallow: (memory − weights) / KV per request. Good: the engine's
# own arithmetic, term by term, and which limit binds. Deep: which of the terms move (with batch tokens, with a new shape,
# with uptime), which are per rank, and what one more GiB, another KV format or a lower maximum length would buy, computed and
# not guessed (`labkit plan`).
#
# **Exercise** (in `exercises/`): 01 (the ledger by hand).
#
# ## In five lines
#
# 1. Memory has seven kinds; weights and KV are two of them.
# 2. Most of what estimates forget belongs to the allocator, the driver and hidden workspaces.
# 3. Paper promises more than 10 % too much concurrency.
# 4. Weights stand still; KV and temporaries move and make the holes.
# 5. Ask which term a number of yours belongs to, and whether it moves.
#
# **What would change my mind:** a server whose printed concurrency equals the sheet of paper.

# %%
finish("02")
