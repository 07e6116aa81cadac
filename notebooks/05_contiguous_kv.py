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
# # 5. Contiguous KV, and why it loses its advantage
#
# **The question.** One tensor, one address, `position × stride`: nothing is simpler than a contiguous KV cache, and for one
# request nothing is better. What exactly breaks when there are many, and could a cleverer reservation save it?

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
from labkit.experiments.contiguous_kv import (
    contiguous_footprint,
    grow_once,
    paged_footprint,
    reservation_curve,
    waste_of_reserve_max,
    with_fixed_lengths,
)
from labkit.experiments.serve import serve
from labkit.memory import measure
from labkit.models import get_model
from labkit.teach import claim, finish, predict, setup
from labkit.units import format_bytes
from labkit.viz import Choice, Series, Slider, SliderPanel, draw_layout, draw_timeline
from labkit.viz.charts import draw_tradeoff
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)
MAX_MODEL_LEN = 8192
bytes_per_token = get_model("Llama-3.1-8B").kv_bytes_per_token()
requests, origin = load_or_synthetic("azure-conv", lab.pick(ci=1000, lab=5000), lab.rng(1))
requests = [r for r in requests if r.num_prompt_tokens + r.num_output_tokens <= MAX_MODEL_LEN]
print(origin, f"{bytes_per_token:,} bytes of KV a token (Llama-3.1-8B, 16 bits).")

# %% [markdown]
# ## 5.0 Where it is right
#
# One request, offline, of a length that is known. The cache is reserved at exactly that length. A kernel finds token `i`
# by one multiplication. In a *paged* cache the KV lies in blocks of 16 tokens, and a table says where each block is: its
# kernel first loads a table entry and waits for it before it knows the address.

# %%
length = [4000]
alone = contiguous_footprint(length, reserved=4000, bytes_per_token=bytes_per_token)
paged = paged_footprint(length, block_size=16, bytes_per_token=bytes_per_token)
lengths = [r.num_prompt_tokens + r.num_output_tokens for r in requests]
mixed = contiguous_footprint(lengths, reserved=MAX_MODEL_LEN, bytes_per_token=bytes_per_token)
mixed_paged = paged_footprint(lengths, block_size=16, bytes_per_token=bytes_per_token)
for name, foot in {
    "one request, contiguous": alone,
    "one request, paged": paged,
    f"{len(lengths):,} requests, reserved": mixed,
    f"{len(lengths):,} requests, paged": mixed_paged,
}.items():
    print(
        f"{name:<26} holds {format_bytes(foot.held_bytes):>11}   metadata {format_bytes(foot.metadata_bytes):>10}"
        f"   table loads a step, layer and KV head {foot.table_loads:>8,}"
    )

# %%
claim(
    "5.0",
    "For one request of known length a contiguous cache holds no more, needs less metadata and loads no table.",
    held=alone.leaner_than(paged),
    control=mixed.leaner_than(mixed_paged),
    not_measured=""
    if lab.device == "cuda"
    else "The timing half was not measured: no GPU (labkit kernels bench).",
    metadata_contiguous=alone.metadata_bytes,
    metadata_paged=paged.metadata_bytes,
    table_loads_paged=paged.table_loads,
    mixed_load_contiguous_over_paged=mixed.held_bytes / mixed_paged.held_bytes,
)

# %% [markdown]
# The control is the same comparison on the chat trace, where each request must reserve the longest that it may become.
# There the simple cache holds many times more.
#
# ## 5.1 Reserve for the longest
#
# On arrival nobody knows whether 50 or 2,000 tokens will come. The safe answer is to reserve the model's maximum (the cache
# called `reserve-max`). A *slot* is the place of one token. The control is a load on which everybody really becomes that long.

# %%
guess = predict(
    f"Of the slots reserved at {MAX_MODEL_LEN:,} each, how many percent hold a token, averaged over the run?",
    low=0,
    high=100,
    unit="%",
)
guess

# %%
CAPACITY = 120_000
reserved = waste_of_reserve_max(
    requests, max_model_len=MAX_MODEL_LEN, capacity_tokens=CAPACITY, bytes_per_token=bytes_per_token
)
guess.compare(100 * reserved.token_share)
always_long = waste_of_reserve_max(
    with_fixed_lengths(requests[:100], MAX_MODEL_LEN - 92, 92),
    max_model_len=MAX_MODEL_LEN,
    capacity_tokens=CAPACITY,
    bytes_per_token=bytes_per_token,
)
frame = reserved.recorder.series_frame()
draw_timeline(
    [
        Series("reserved by requests", frame["end_s"], frame["kv_live_bytes"]),
        Series("holds a token", frame["end_s"], frame["kv_token_bytes"]),
    ],
    title=f"reserve-max on the trace: {100 * (1 - reserved.token_share):.0f} % of what requests hold is empty, "
    f"{reserved.summary['peak_running']} run at most",
)

# %%
claim(
    "5.1",
    "Reserving the longest length leaves more than half of what requests hold empty on real lengths.",
    held=1 - reserved.token_share > 0.5,
    control=1 - always_long.token_share > 0.5,
    empty_share=1 - reserved.token_share,
    empty_share_when_all_are_long=1 - always_long.token_share,
    most_requests_at_once=reserved.summary["peak_running"],
)

# %% [markdown]
# ## 5.2 Reserve little and grow
#
# Then the cache must grow while it lives. If the slots behind it are free, it is longer by a line of bookkeeping. If a
# neighbour lies there, a longer run must be found **while the old one still exists**, and everything is copied. If there is no
# such run either, a request is *preempted*: it gives everything up and is computed again later.

# %%
crowded, roomy = grow_once(neighbour_behind=True), grow_once(neighbour_behind=False)
for where, growth in {"a neighbour behind": crowded, "room behind": roomy}.items():
    print(
        f"{where:<18} {growth.moved_tokens:>5,} tokens copied, {growth.peak_slots:,} slots held at the worst moment, "
        f"{growth.final_slots:,} afterwards"
    )

# %%
grown = serve(
    "grow",
    requests,
    capacity_tokens=CAPACITY // 2,
    bytes_per_token=bytes_per_token,
    max_model_len=MAX_MODEL_LEN,
)
one_by_one = serve(
    "grow",
    requests[:40],
    capacity_tokens=CAPACITY // 2,
    bytes_per_token=bytes_per_token,
    max_model_len=MAX_MODEL_LEN,
    max_num_seqs=1,
)
moved = grown.kv.stats().num_moved_bytes
print(
    f"{len(requests):,} requests: {format_bytes(moved)} copied to keep {format_bytes(sum(lengths) * bytes_per_token)} of KV, "
    f"{grown.totals.num_preempted:,} preemptions because no run was long enough"
)
frame = grown.recorder.series_frame()
worst = frame.loc[frame["num_waiting"].idxmax()]
fullest = serve(
    "grow",
    requests,
    capacity_tokens=CAPACITY // 2,
    bytes_per_token=bytes_per_token,
    max_model_len=MAX_MODEL_LEN,
    max_steps=int(worst["step"]),
)
layout = fullest.kv.layout()
gaps = measure(layout)
draw_layout(
    layout,
    rows=3,
    title=f"grow, when the queue is longest: {worst['num_waiting']:.0f} wait, {format_bytes(gaps.free_bytes)} are free, "
    f"the longest run is {format_bytes(gaps.largest_free_bytes)}",
)

# %%
claim(
    "5.2",
    "A growing contiguous cache is copied or runs out of room; with nobody behind it, neither happens.",
    held=moved > 0 and crowded.peak_slots == 1024 + crowded.final_slots,
    control=one_by_one.kv.stats().num_moved_bytes > 0 and roomy.peak_slots == 1024 + roomy.final_slots,
    bytes_copied_per_byte_of_kv=moved / (sum(lengths) * bytes_per_token),
    preemptions=grown.totals.num_preempted,
    peak_slots_of_one_growth=crowded.peak_slots,
    slots_needed=crowded.final_slots,
)

# %% [markdown]
# ## 5.3 The contradiction in one curve
#
# So reserve something in between. Below, each point keeps room in steps of that many tokens. The horizontal axis is what
# lies empty, the vertical one what is copied or computed again for each token of the load (logarithmic above 0.1). A good
# reservation would be in the shaded corner, below left.

# %%
best = predict(
    "Which step has less than 10 % waste and less than 0.1 copied tokens a token?",
    options=["64", "256", "1024", "none of them"],
)
best

# %%
STEPS = [64, 128, 256, 512, 1024, 2048, 4096]
curve = reservation_curve(requests, STEPS, capacity_tokens=CAPACITY, bytes_per_token=bytes_per_token)
fixed = reservation_curve(
    with_fixed_lengths(requests, 896, 128), STEPS, capacity_tokens=CAPACITY, bytes_per_token=bytes_per_token
)
best.compare(next((str(p.reserved_tokens) for p in curve if p.good_at_both()), "none of them"))


def points(curve):
    return [(100 * p.waste, p.moved_per_token, str(p.reserved_tokens)) for p in curve]


draw_tradeoff(
    {"lengths of the trace": points(curve), "all 896 + 128 (control)": points(fixed)},
    xlabel="reserved and empty (% of what requests hold)",
    ylabel="copied or recomputed (tokens per token)",
    title="numbers at the points: tokens reserved at a time",
    good=(10, 0.1),
    linthresh_y=0.1,
)

# %%
claim(
    "5.3",
    "No reservation is good at both waste and copying, because the output length is not known on arrival.",
    held=not any(point.good_at_both() for point in curve),
    control=not any(point.good_at_both() for point in fixed),
    **{f"waste_at_{p.reserved_tokens}": p.waste for p in curve[::2]},
    **{f"copied_at_{p.reserved_tokens}": p.moved_per_token for p in curve[::2]},
)

# %% [markdown]
# **Explain.** A small step keeps waste down and is used up at once, so the cache is copied again and again. A large step is
# empty most of its life; and because every reservation must be one run, large ones also meet fragmentation. Where all
# lengths are equal (the control) one step fits all, and the corner is reached. **The contradiction is not between two
# parameters but between contiguity and not knowing the length.**
#
# **Try it**: the step, and how much of the load has a length of its own.


# %%
def step_panel(step, memory, lengths, figure=None):
    load = requests[:220] if lengths == "of the trace" else with_fixed_lengths(requests[:220], 896, 128)
    run = serve(
        "grow",
        load,
        capacity_tokens=memory * 1000,
        bytes_per_token=bytes_per_token,
        max_model_len=MAX_MODEL_LEN,
        kv_options={"grow_tokens": step},
    )
    frame = run.recorder.series_frame()
    return draw_timeline(
        [
            Series("held by requests", frame["end_s"], frame["kv_live_bytes"]),
            Series("holds a token", frame["end_s"], frame["kv_token_bytes"]),
        ],
        title=f"steps of {step} tokens: {100 * (1 - run.token_share):.0f} % empty, "
        f"{format_bytes(run.kv.stats().num_moved_bytes)} copied, {run.totals.num_preempted} preempted",
        figure=figure,
    )


SliderPanel(
    step_panel,
    {
        "step": Slider(256, 16, 4096, 16, label="room kept in steps of (tokens)"),
        "memory": Slider(60, 20, 200, 10, label="memory (thousand tokens)"),
        "lengths": Choice("of the trace", ["of the trace", "all 896 + 128"]),
    },
    title="One reservation for all",
)

# %% [markdown]
# ## In an interview
#
# *"Why not simply allocate the KV cache as one tensor per request?"* Shallow: fragmentation. Good: because the output
# length is unknown, you choose between waste (reserve-max) and copies (grow). Deep: you can put numbers on both ends for
# your own length distribution, you know that a copy needs old and new at once, and you know the case where contiguous is
# still right (offline, fixed shapes, one request), and what virtual memory (one address range, pages mapped on demand)
# changes about it.
#
# **Exercise** (in `exercises/`): 06 (grow by copy, and its peak).
#
# ## In five lines
#
# 1. Contiguous is the leanest layout for one request of known length.
# 2. Reserving the maximum leaves most of the memory empty on real lengths.
# 3. Growing copies, and for a moment holds old and new.
# 4. Between the two there is no good point, because the length is unknown.
# 5. With equal lengths there is one: the trouble is not-knowing plus contiguity.
#
# **What would change my mind:** a predictor of output lengths so good that the curve reaches the shaded corner. Try one:
# `labkit.serving.admission` takes any `predictor`.

# %%
finish("05")
