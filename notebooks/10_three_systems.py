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
# # 10. How vLLM, TensorRT-LLM and SGLang answer the same question
#
# **The question.** Three systems hand out the same memory to the same requests. All three cut it into blocks. Why do they
# still behave so differently when it runs short, and which of them is right?

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
import pandas as pd

from labkit.experiments.prefix_reuse import BYTES_PER_TOKEN
from labkit.experiments.three_systems import (
    run_system,
    side_by_side,
    table,
    three_load,
    three_ways,
    until_waiting,
)
from labkit.experiments.three_systems_recordings import exact, replay_recordings, replay_with_another_pool
from labkit.experiments.three_systems_mechanisms import (
    built_for,
    capacity_policies,
    costs_kv,
    fastest_is_not_steadiest,
    num_pieces,
    one_at_a_time,
    step_fill,
    vllm_blocks,
)
from labkit.experiments.three_systems_programs import (
    program_load,
    reuse_against_lifetime,
    sglang_programs,
    single_calls,
)
from labkit.experiments.three_systems_situations import situations
from labkit.experiments.three_systems_small import NAMES
from labkit.experiments.waiting_table import waiting_table
from labkit.teach import claim, finish, predict, setup
from labkit.units import GIB
from labkit.viz import Choice, Limit, Series, Slider, SliderPanel, draw_timeline
from labkit.viz.charts import draw_bars, draw_tradeoff
from labkit.viz.player import player
from labkit.viz.player_builder import RunBuilder

lab = setup(scale, device, seed)
pd.set_option("display.max_colwidth", None)
requests, origin = three_load(lab.pick(ci=400, lab=2000), lab.rng(1))
POOL = 24_000
print(origin)
print(
    f"Requests come fast enough to ask for 870 output tokens a second; every client allows up to 1,024. The pool holds {POOL:,} tokens, a step takes 10 ms and 0.05 ms a token."
)

# %% [markdown]
# ## 10.1 vLLM: blocks, tables, a budget
#
# The pool is cut into blocks of 16 tokens. A request has a table of block numbers; where the blocks lie does not matter.
# Look at the tables of requests at the moment when they leave.

# %%
back = predict(
    "A request leaves. What share of the blocks that it held becomes free?", low=0, high=100, unit="%"
)
back

# %%
blocks = vllm_blocks(requests, POOL)
private = vllm_blocks(requests, POOL, enable_prefix_caching=False)
alone = vllm_blocks(one_at_a_time(requests[:40]), 400_000)
back.compare(100 * blocks.returned)
examples = [(name, ids) for name, ids in blocks.watch.examples if 60 <= len(ids) <= 120][:8]
pd.DataFrame(
    [
        {
            "request": name,
            "blocks": len(ids),
            "pieces": num_pieces(ids),
            "table begins": ids[:6],
            "table ends": ids[-6:],
        }
        for name, ids in examples
    ]
)

# %% [markdown]
# Whoever shares the system prompt has the same numbers at the beginning. The rest lies anywhere, and the attention kernel
# reads it as if it were one piece. The pool while this runs, blocks by who holds them. The dashed line is the longest run of
# free blocks: next to nothing most of the time, and nobody needs it.

# %%
builder = RunBuilder(total=POOL // 16, title="vLLM's pool", unit="blocks")
code = {name: builder.class_code(name) for name in ("private", "shared")}
for time_s, ids, refs in blocks.watch.looks:
    builder.add_columns(
        time_s,
        offset=ids - 1,
        size=ids * 0 + 1,
        cls=(refs > 1) * code["shared"] + (refs == 1) * code["private"],
        owner=ids * 0 + builder.owner_code("running requests"),
        refs=refs,
    )
player(builder.finish(), title="blocks that running requests hold")

# %%
draw_bars(
    {
        name: {"tables in 5 pieces or more": 100 * b.scattered, "blocks freed on leaving": 100 * b.returned}
        for name, b in {"as it is": blocks, "without prefix caching": private, "one request at a time": alone}.items()
    },
    ylabel="share (%)",
    title="tables of leaving requests: how scattered, and how much comes back",
    height=3.4,
)  # fmt: skip

# %%
claim(
    "10.1",
    "vLLM serves everybody from scattered blocks, and with prefix sharing a leaving request frees less than nine tenths of its own.",
    held=blocks.anywhere() and blocks.shared_reclaim(),
    control=alone.anywhere() or private.shared_reclaim(),
    scattered=blocks.scattered,
    scattered_one_at_a_time=alone.scattered,
    returned=blocks.returned,
    returned_without_sharing=private.returned,
)

# %% [markdown]
# And the budget: a request that waits, waits for a number of blocks, and the scheduler can say which.

# %%
waiting_table(until_waiting("vllm", requests, POOL), 6)

# %% [markdown]
# ## 10.2 TensorRT-LLM: fixed shapes, and two ways to be good
#
# An engine is built, or profiled, for its largest step. The buffers of that step are set aside for good. Llama-3.1-8B on an
# H100-80GB, by the planner's own estimate (activations of the widest layer):

# %%
SHAPES = [2048, 8192, 32_768, 131_072]
shapes = {tokens: built_for(tokens) for tokens in SHAPES}
draw_bars(
    {
        f"{tokens:,} tokens a step": {"activations and workspace": (s.activation_bytes + s.workspace_bytes) / GIB, "KV": s.kv_bytes / GIB}
        for tokens, s in shapes.items()
    },
    ylabel="GiB of the card",
    title="the largest step that might come takes its memory for good",
    stacked=True,
)  # fmt: skip

# %% [markdown]
# And two policies for the pool. `GUARANTEED_NO_EVICT` admits a request only if the blocks for its longest possible output fit
# beside those of everybody who runs. `MAX_UTILIZATION` admits while the next step fits, and *pauses* a running request when
# it does not: its blocks go, and it is computed again later.

# %%
faster_by = predict(
    "GUARANTEED_NO_EVICT against MAX_UTILIZATION: how many times longer is the P95 wait (TTFT)?",
    low=0.5,
    high=30.0,
    unit="times",
)
faster_by

# %%
tight, ample = capacity_policies(requests, POOL), capacity_policies(requests, 200_000)
faster_by.compare(tight["GUARANTEED_NO_EVICT"].ttft_p95_s / tight["MAX_UTILIZATION"].ttft_p95_s)
table([*tight.values()])

# %%
short_names = {"no evict": tight["GUARANTEED_NO_EVICT"], "max utilization": tight["MAX_UTILIZATION"]}
draw_timeline(
    [
        Series(f"live, {name}", (f := run.watch.frame())["end_s"], f["live"])
        for name, run in short_names.items()
    ]
    + [
        Series(f"waiting, {name}", (f := run.watch.frame())["end_s"], f["waiting"], unit="requests")
        for name, run in short_names.items()
    ],
    limits=[Limit(POOL * BYTES_PER_TOKEN, "pool")],
    title="blocks promised to the end, or used to the last",
)  # fmt: skip

# %%
fill = step_fill(tight["GUARANTEED_NO_EVICT"], 2048)
print(
    "Built for 2,048 tokens a step. "
    + ", ".join(f"{name}: {value:.1%}" for name, value in fill.items())
    + "."
)
claim(
    "10.2",
    "A step of 131,072 tokens costs a tenth of the KV; and the policy with the short waits pauses requests, the other never does.",
    held=costs_kv(shapes[131_072], shapes[2048]) and fastest_is_not_steadiest(tight),
    control=costs_kv(shapes[8192], shapes[2048]) or fastest_is_not_steadiest(ample),
    kv_tokens_of_2048=shapes[2048].kv_tokens,
    kv_tokens_of_131072=shapes[131_072].kv_tokens,
    ttft_p95_no_evict_s=tight["GUARANTEED_NO_EVICT"].ttft_p95_s,
    ttft_p95_max_utilization_s=tight["MAX_UTILIZATION"].ttft_p95_s,
    pauses_no_evict=tight["GUARANTEED_NO_EVICT"].num_preempted,
    pauses_max_utilization=tight["MAX_UTILIZATION"].num_preempted,
    worst_gap_no_evict_s=tight["GUARANTEED_NO_EVICT"].worst_gap_s,
    worst_gap_max_utilization_s=tight["MAX_UTILIZATION"].worst_gap_s,
)

# %% [markdown]
# In the table, `num_lost_tokens` were computed twice, `hit_share` of the prompt tokens came from the prefix cache, `waste` is the
# empty part of what live requests hold, and `mixed_share` of the steps with a prefill also decode. The column `worst_gap_s`, the
# longest pause between two tokens of one request, is what a reader of a stream feels: one policy lets people wait at the door, the
# other lets them in and sometimes stops in mid-sentence. In a pool that is large enough (the control) they are the same.
#
# The line above the claim says how full the step is that the buffers are made for, and how much of a decode step is padding: a
# recorded graph exists for some batch sizes, and a batch between two of them runs as the next larger one.
#
# ## 10.3 SGLang: reuse against lifetime
#
# Programs of five calls: a plan, three continuations of it at the same time, a join. What a call leaves is in the radix tree
# (all known token sequences, common beginnings stored once) for the next one.

# %%
dead = predict(
    "What share of the memory in use belongs to calls that are over (ample pool)?", low=0, high=100, unit="%"
)
dead

# %%
calls, answers = program_load(lab.rng(2), num_programs=lab.pick(ci=50, lab=300))
SIZES = [6000, 8000, 10_000, 12_000, 20_000, 40_000]
pools = {size: sglang_programs(calls, answers, size) for size in SIZES}
lone_calls, lone_answers = single_calls(calls, answers)
lone = {size: sglang_programs(lone_calls, lone_answers, size) for size in (10_000, 40_000)}
dead.compare(100 * pools[40_000].outlived_share)
draw_tradeoff(
    {
        "programs": [
            (100 * p.outlived_share, 100 * p.hit_share, f"{size // 1000}K") for size, p in pools.items()
        ],
        "single calls": [
            (100 * p.outlived_share, 100 * p.hit_share, f"{size // 1000}K") for size, p in lone.items()
        ],
    },
    xlabel="memory in use that belongs to nobody who runs (%)",
    ylabel="prompt tokens found again (%)",
    title="state that outlives its call, and what it is good for",
)

# %%
runs = {
    "vLLM": run_system("vllm", requests[:150], POOL).watch.steps(),
    "SGLang": run_system("sglang", requests[:150], POOL).watch.steps(),
}
draw_timeline(
    [
        Series(f"{name}: {label}", (part := f[(f["end_s"] > 20) & (f["end_s"] < 26)])["end_s"], part[column], unit=unit, dashed=name == "SGLang")
        for name, f in runs.items()
        for label, column, unit in (("prefill", "prefill_tokens", "tokens a step"), ("decode", "decodes", "requests a step"))
    ],
    title="SGLang moves between prefill and decode; vLLM mixes them",
)  # fmt: skip

# %%
claim(
    "10.3",
    "Programs find a third of their prompts in state that outlived its call and fills most of the memory; a short pool cuts both.",
    held=reuse_against_lifetime(pools[40_000], pools[10_000]),
    control=reuse_against_lifetime(lone[40_000], lone[10_000]),
    hit_share_ample=pools[40_000].hit_share,
    hit_share_tight=pools[10_000].hit_share,
    outlived_ample=pools[40_000].outlived_share,
    outlived_tight=pools[10_000].outlived_share,
    hit_share_single_calls=lone[40_000].hit_share,
    ttft_p95_ample_s=pools[40_000].ttft_p95_s,
    ttft_p95_tight_s=pools[10_000].ttft_p95_s,
)

# %% [markdown]
# Single calls leave much behind too, and nobody ever comes for it: lifetime without reuse. In the smallest pools the hits of
# the programs rise again. That is no luck of memory: the queue is long there, and SGLang (`lpm`, longest prefix match) serves
# first whoever finds most. The others wait.
#
# SGLang also guesses how much running requests will still write, and takes memory back (*retracts* a request) when it guessed too
# little. A lower `schedule_conservativeness` is a bolder guess. Does the boldest one retract most?

# %%
guesses = {
    value: sglang_programs(calls, answers, 6000, schedule_conservativeness=value)
    for value in (0.05, 0.3, 1.0)
}
pd.DataFrame(
    [
        {"schedule_conservativeness": value, "retractions": p.num_retracted, "hit share": round(p.hit_share, 3), "TTFT P95 (s)": round(p.ttft_p95_s, 2)}
        for value, p in guesses.items()
    ]
)  # fmt: skip

# %% [markdown]
# The boldest retracts least. After its first retraction SGLang takes the share that running requests have really written as
# its new guess, and lets it sink by less than two thousandths of the *initial* guess a step. From a small guess it hardly sinks, and
# after one burn the boldest setting is cautious for the rest of the run. What a switch is called is not what it does.
#
# ## 10.4 The three on the same trace

# %%
kinder = predict(
    "In which system does the P95 request wait longest for its first token?",
    options=["vLLM", "SGLang", "TensorRT-LLM"],
)
kinder

# %%
three = side_by_side(requests, POOL)
contiguous = three.pop("contiguous, reserved")
kinder.compare(max(three.values(), key=lambda run: run.ttft_p95_s).name)
table([*three.values(), contiguous])

# %%
draw_timeline(
    [
        Series(f"live KV, {name}", (f := run.watch.frame())["end_s"], f["live"])
        for name, run in three.items()
    ]
    + [
        Series(f"running, {name}", (f := run.watch.frame())["end_s"], f["running"], unit="requests")
        for name, run in three.items()
    ]
    + [
        Series(f"waiting, {name}", (f := run.watch.frame())["end_s"], f["waiting"], unit="requests waiting")
        for name, run in three.items()
    ],
    limits=[Limit(POOL * BYTES_PER_TOKEN, "pool")],
    title="the same requests, the same pool",
)  # fmt: skip

# %% [markdown]
# Are these really vLLM, SGLang and TensorRT-LLM? Nine recordings of the real code (what it decided in every step), replayed on
# the models that ran above, every field compared. The control replays three of them with a pool one unit larger.

# %%
verdicts = replay_recordings()
other_pool = [
    replay_with_another_pool(n)
    for n in ("vllm/pressure", "sglang/pressure_retract", "trtllm/pressure_max_util")
]
pd.DataFrame(
    [
        {"recording": "/".join(v.file.split("/")[-2:]), "steps": v.comparison.num_ops, "differing fields": v.comparison.num_differences}
        for v in verdicts
    ]
    + [
        {"recording": f"{c.format}, pool one unit larger", "steps": c.num_ops, "differing fields": c.num_differences}
        for c in other_pool
    ]
)  # fmt: skip

# %%
claim(
    "10.4",
    "On one trace all three serve everybody with under a tenth of waste, in three different ways, and each replays its recordings without a difference.",
    held=three_ways(list(three.values())) and exact([v.comparison for v in verdicts]),
    control=three_ways([three["vLLM"], contiguous]) or exact(other_pool),
    **{f"waste_{name.replace('-', '_').lower()}": run.waste for name, run in three.items()},
    waste_contiguous=contiguous.waste,
    num_recorded_steps=sum(v.comparison.num_ops for v in verdicts),
    differing_fields=sum(v.comparison.num_differences for v in verdicts),
    differing_fields_other_pool=sum(c.num_differences for c in other_pool),
)

# %% [markdown]
# **Explain.** Blocks make irregular requests *manageable*: any hole fits. What makes them *predictable* is who pays when the
# promise comes due. vLLM promises little, and the last one in pays with its work. SGLang estimates, and the one that has
# said least pays. TensorRT-LLM promises everything to the end, and the ones at the door pay. None is right; each is right
# for somebody.
#
# One situation, three answers (more of them, and how each comes about, in `docs/systems.md`):

# %%
pd.DataFrame(
    [{"situation": s.name, **{NAMES[k]: v for k, v in s.answers.items()}} for s in situations()]
).set_index("situation")

# %% [markdown]
# **Try it**: one system, one pool, one mood.

# %%
MOODS = {
    "vLLM": ("vllm", {}),
    "vLLM, watermark 10 %": ("vllm", {"watermark": 0.1}),
    "SGLang": ("sglang", {}),
    "SGLang, bold": ("sglang", {"schedule_conservativeness": 0.1}),
    "TensorRT-LLM, no evict": ("tensorrt_llm", {}),
    "TensorRT-LLM, max utilization": ("tensorrt_llm", {"capacity_scheduler_policy": "MAX_UTILIZATION"}),
}


def systems_panel(mood, pool, figure=None):
    name, own = MOODS[mood]
    run = run_system(name, requests[:80], 1000 * pool, **own)
    frame = run.watch.frame()
    return draw_timeline(
        [
            Series("live", frame["end_s"], frame["live"]),
            Series("live + cached", frame["end_s"], frame["live"] + frame["cached"], dashed=True),
            Series("waiting", frame["end_s"], frame["waiting"], unit="requests"),
        ],
        title=f"{run.num_preempted} preempted, TTFT P95 {run.ttft_p95_s:.2f} s, longest gap {run.worst_gap_s:.2f} s, hits {run.hit_share:.0%}",
        figure=figure,
    )


SliderPanel(
    systems_panel,
    {
        "mood": Choice("vLLM", list(MOODS), label="system"),
        "pool": Slider(14, 10, 60, 1, label="pool (thousand tokens)"),
    },
    title="One trace, your system",
)

# %% [markdown]
# ## In an interview
#
# *"vLLM, SGLang or TensorRT-LLM?"* Shallow: whichever is fastest in the last benchmark. Good: what each counts on admission.
# Deep: who pays when memory runs short (the last one in, the one that has said least, the one at the door), what a step
# mixes, when a block becomes findable, and a recording to prove that you read the code right.
#
# **Exercises** (in `exercises/`): 10 (radix tree), 11 (admission by block with headroom), 12 (chunked prefill within a token budget).
#
# ## In five lines
#
# 1. All three cut memory into blocks, so any hole fits.
# 2. They differ in what they promise on admission: the present, an estimate, or everything.
# 3. They differ in who pays: the last one in, the one that has said least, the ones at the door.
# 4. Shapes and workspaces are paid for in every step; size them for the steps that come.
# 5. Reusable state outlives its request: memory that nobody uses now and somebody will ask for.
#
# **What would change my mind:** a recording of a real system that its model does not reproduce.

# %%
finish("10")
