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
# # 11. What to watch instead of only nvidia-smi
#
# **The question.** nvidia-smi says 95 %. Is the model too large, is there too much traffic, do you need more GPUs, or is the
# framework broken? That number cannot tell. Which numbers can?
#
# Five groups of metrics, each shown on a server in which its own group moves and the others do not. The names are those of
# `labkit.observe.metrics`; [docs/metrics.md](../docs/metrics.md) defines each one.

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
import pandas as pd

from labkit.experiments.one_reading import CAUSES, one_reading_four_causes, told_apart
from labkit.experiments.serve import serve
from labkit.experiments.soak_faults import Leak
from labkit.experiments.watching import (
    alike,
    device_with,
    harmed_and_healed,
    lost_contiguity,
    room_for,
    sees_what_stays,
    steady_load,
    watch,
    with_long_answers,
    with_restart,
)
from labkit.models import get_model
from labkit.observe.exposition import block_histograms
from labkit.observe.measure import free_by_size_class, measure
from labkit.observe.metrics import Metric
from labkit.teach import claim, finish, predict, setup
from labkit.units import GIB, MIB, format_bytes
from labkit.viz import Choice, Event, Limit, Series, Slider, SliderPanel, dashboard, draw_timeline
from labkit.viz.charts import draw_bars, number
from labkit.viz.player_builder import RunBuilder
from labkit.workload.sessions import SessionLoad, session_load
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)
pd.set_option("display.max_colwidth", None)
model = get_model("Llama-3.1-8B")
bytes_per_token = model.kv_bytes_per_token()
requests, origin = load_or_synthetic("azure-conv", lab.pick(ci=600, lab=4000), lab.rng(1))
requests = [r for r in requests if r.num_prompt_tokens + r.num_output_tokens < 8000]
print(origin, "The card has 80 GiB. A step takes 10 ms and 0.05 ms for each scheduled token.")


def shown(value, unit):
    """A figure as people read it; of a distribution some points."""
    if isinstance(value, dict):
        keys = [key for key in value if key in ("mean", "p50", "p95", "before", "after")] or list(value)[:6]
        by_class = unit == "bytes by power of two"
        return ", ".join(
            f"{format_bytes(key) if by_class else key}: {format_bytes(value[key]) if by_class else number(value[key])}"
            for key in keys
        )
    return format_bytes(value) if unit == "bytes" else number(value)


def table(metrics, group):
    """The metrics of one group, as they are called."""
    rows = [
        (m.info.name, shown(value, m.info.unit), "" if m.info.unit == "bytes" else m.info.unit)
        for m, value in metrics.items()
        if m.info.group == group
    ]
    return pd.DataFrame(rows, columns=["metric", "value", "unit"]).set_index("metric")


# %% [markdown]
# ## 11.1 Capacity: the pool is set aside at start, so the card looks the same empty and full
#
# A server with 15 GiB of weights and 8 GiB for keys and values. Real chat traffic runs through it. We compare what
# nvidia-smi shows before the first request and at the busiest instant.

# %%
guess = predict(
    "By how many points does nvidia-smi move from idle to busiest?", low=0, high=60, unit="points"
)
guess

# %%
server = watch(requests, device_with(model.weight_bytes(), 8 * GIB), bytes_per_token=bytes_per_token)
idle, busiest = server.idle(), server.busiest()
guess.compare(100 * (busiest.nvidia_smi - idle.nvidia_smi))
frame = server.recorder.series_frame()
draw_timeline(
    [
        Series("nvidia-smi", frame["end_s"], 100 * (frame["device_reserved_bytes"] + GIB / 2) / (80 * GIB), unit="% of the card"),
        Series(
            "allocatable blocks",
            frame["end_s"],
            (frame["kv_free_bytes"] + frame["kv_cached_bytes"]) / server.block_bytes,
            unit="blocks",
        ),
    ],
    limits=[Limit(100, "the card", "% of the card")],
    title="the same server, two dials",
)  # fmt: skip

# %%
metrics = server.metrics()
table(metrics, "capacity")

# %% [markdown]
# Six numbers, and each answers another question: what the model costs (weights), what was set aside (KV), what a step needs
# for itself (workspace), what the allocator took from the card (reserved), what of it is in use (active), and what the next
# request can have (allocatable blocks). The control compares two idle instants: nothing is hidden there.

# %%
claim(
    "11.1",
    "nvidia-smi moves by less than a point while more than half of the allocatable blocks go.",
    held=idle.hides(busiest),
    control=idle.hides(idle),
    nvidia_smi_idle=idle.nvidia_smi,
    nvidia_smi_busiest=busiest.nvidia_smi,
    allocatable_blocks_idle=idle.allocatable_blocks,
    allocatable_blocks_busiest=busiest.allocatable_blocks,
)

# %% [markdown]
# ## 11.2 Fragmentation: the total is there, the run is not
#
# Contiguous KV, rounded up to powers of two, with some long answers that stay. How often were 4,096 tokens free in total
# while no run was that long? The control is the same load on blocks.

# %%
long_answers = with_long_answers(requests, lab.rng(2), share=0.04)
pool = {"capacity_tokens": 60_000, "bytes_per_token": bytes_per_token, "every": 4}
contiguous, paged = serve("reserve-pow2", long_answers, **pool), serve("paged", long_answers, **pool)
frame = contiguous.recorder.series_frame()
draw_timeline(
    [
        Series("free in total", frame["end_s"], frame["kv_free_bytes"]),
        Series("largest contiguous run", frame["end_s"], frame["kv_largest_free_bytes"]),
        Series("waiting", frame["end_s"], frame["num_waiting"], unit="requests"),
    ],
    title="contiguous KV: bytes that are free, and the run that a request needs",
)

# %%
stopped = serve("reserve-pow2", long_answers, **pool, max_steps=4000)
classes = free_by_size_class(stopped.kv.layout())
draw_bars(
    {f"{format_bytes(size)} and up": {"free": total / MIB} for size, total in classes.items()},
    ylabel="free (MiB)",
    title="free bytes by the length of the span they lie in, at one instant of the run",
)

# %%
table(measure(contiguous.recorder, block_bytes=bytes_per_token, layout=stopped.kv.layout()), "fragmentation")


# %%
def loses_contiguity(run):
    return lost_contiguity(run, 4096) > 0.1


claim(
    "11.2",
    "At more than a tenth of all instants 4,096 tokens are free in total and no run is that long; totals hide it.",
    held=loses_contiguity(contiguous),
    control=loses_contiguity(paged),
    contiguous=lost_contiguity(contiguous, 4096),
    blocks=lost_contiguity(paged, 4096),
    waste_inside_contiguous=1 - contiguous.token_share,
    waste_inside_blocks=1 - paged.token_share,
)

# %% [markdown]
# ## 11.3 Lifetime: what stays, and how late it comes back
#
# Chats over shared system prompts, with a prefix cache; two in a hundred answers are very long. A block comes back when its
# *last* holder leaves. The control has the same arrivals and the mean lengths, and shares nothing.

# %%
chats = with_long_answers(
    session_load(SessionLoad(session_rate=1.5, think_s=15.0), lab.pick(ci=100, lab=400), lab.rng(3)),
    lab.rng(4),
    share=0.04,
)
shared = {"bytes_per_token": bytes_per_token, "kv_options": {"prefix": "hash"}}
sharing = watch(chats, device_with(model.weight_bytes(), 4 * GIB), **shared)
apart = watch(alike(chats), device_with(model.weight_bytes(), 4 * GIB), **shared)
edges, _ = block_histograms(sharing.recorder)["block lifetime"]
draw_bars(
    {
        f"{edge:g} s": {name: counts[i] for name, (_, counts) in block_histograms(sharing.recorder).items() if name != "reclaim delay"}
        for i, edge in enumerate(edges[:-1])
        if 0.1 <= edge <= 100
    },
    ylabel="blocks",
    title="how long blocks live, lie idle before eviction, wait for reuse (from each label up to the next)",
    logy=True,
)  # fmt: skip

# %%
table(sharing.metrics(), "lifetime")

# %%
claim(
    "11.3",
    "Long requests, blocks with several holders, a reclaim delay and a residency of seconds are all visible.",
    held=sees_what_stays(sharing.metrics()),
    control=sees_what_stays(apart.metrics()),
    share_of_long_requests=sharing.metrics()[Metric.LONG_SHARE],
    reclaim_delay_s=sharing.metrics()[Metric.RECLAIM_DELAY],
    residency_s=sharing.metrics()[Metric.PREFIX_RESIDENCY],
)

# %% [markdown]
# ## 11.4 Scheduling: waiting where memory shows nothing
#
# The first server again, with 40 GiB for keys and values and a limit of eight sequences that somebody set long ago.

# %%
tight, wide = (
    watch(requests, device_with(model.weight_bytes(), 40 * GIB), bytes_per_token=bytes_per_token, max_num_seqs=limit)
    for limit in (8, 256)
)  # fmt: skip
frame = tight.recorder.series_frame()
draw_timeline(
    [
        Series(
            "KV live (% of the pool)", frame["end_s"], 100 * frame["kv_live_bytes"] / (40 * GIB), unit="%"
        ),
        Series("active sequences", frame["end_s"], frame["num_running"], unit="requests"),
        Series("waiting", frame["end_s"], frame["num_waiting"], unit="requests"),
    ],
    title="memory is nearly empty, and everybody waits",
)

# %%
pd.concat({name: table(run.metrics(), "scheduling")["value"] for name, run in {"8 at once": tight, "256 at once": wide}.items()}, axis=1)  # fmt: skip


# %%
def waits_beside_free_memory(run):
    frame, metrics = run.recorder.series_frame(), run.metrics()
    full = frame["kv_live_bytes"].max() / run.kv.stats().capacity_bytes
    return full < 0.5 and metrics[Metric.PREFILL_WAIT]["p95"] > 1.0 and metrics[Metric.BATCH_OCCUPANCY] > 0.8


claim(
    "11.4",
    "Requests wait for seconds with a full batch while less than half of the memory was ever live.",
    held=waits_beside_free_memory(tight),
    control=waits_beside_free_memory(wide),
    prefill_wait_p95_s=tight.metrics()[Metric.PREFILL_WAIT]["p95"],
    batch_occupancy=tight.metrics()[Metric.BATCH_OCCUPANCY],
    prefill_wait_p95_s_256=wide.metrics()[Metric.PREFILL_WAIT]["p95"],
)

# %% [markdown]
# ## 11.5 User: the harm, and what a restart says about it
#
# A server that leaks: every fourth request leaves 256 tokens behind. Steady traffic, five requests a second, and a pool 2.1 times as
# large as what it holds on average. In the middle the server is drained and restarted. The dashboard has all five groups on one
# clock, and the pool below it follows: drag in the picture or in the player. **TTFT** is the time to the first token, **TPOT** the
# mean time to each later one; the curves of lifetimes and of TTFT look back over an eighth of the run, so they fall some time
# after the restart.

# %%
worse = predict(
    "How many times longer is the P95 of TTFT before the restart than after it?",
    low=1,
    high=200,
    unit="times",
)
worse

# %%
steady = steady_load(requests, lab.pick(ci=1600, lab=3200), 5.0, lab.rng(5), regular=True)
room = room_for(steady, 2.1, bytes_per_token=bytes_per_token)
ageing = {"capacity_tokens": room, "bytes_per_token": bytes_per_token}
leaky, restart_s = with_restart(steady, **ageing, fault=Leak(every=4, tokens_each=256))
sound, sound_restart_s = with_restart(steady, **ageing, fault=None)
leaky_metrics, sound_metrics = measure(leaky, restart_s=restart_s), measure(sound, restart_s=sound_restart_s)
worse.compare(leaky_metrics[Metric.BEFORE_AFTER_RESTART]["ratio"])
builder = RunBuilder(total=room * bytes_per_token, title="the pool", interchangeable=True)
for time_s, layout in leaky.layouts:
    builder.add(time_s, layout)
builder.event(restart_s, "restart")
dashboard(
    leaky,
    title="a leak, and a restart",
    player_run=builder.finish(),
    events=[Event(restart_s, "restart")],
    time=0.95 * restart_s,
    block_bytes=16 * bytes_per_token,
    max_num_seqs=256,
    restart_s=restart_s,
)

# %%
table(leaky_metrics, "user")

# %%
claim(
    "11.5",
    "P95 TTFT is beyond 1 s before the restart and less than a third of that after it: something had aged.",
    held=harmed_and_healed(leaky_metrics),
    control=harmed_and_healed(sound_metrics),
    ttft_p95_before_s=leaky_metrics[Metric.BEFORE_AFTER_RESTART]["before"],
    ttft_p95_after_s=leaky_metrics[Metric.BEFORE_AFTER_RESTART]["after"],
    ratio_without_a_leak=sound_metrics[Metric.BEFORE_AFTER_RESTART]["ratio"],
)

# %% [markdown]
# ## 11.6 One reading, four root causes
#
# Four sick servers and a healthy one. Each shows 95 %.
#
# * **weights**: a 70B model in 8 bits; what is left is a small pool;
# * **traffic**: requests come eight times as fast;
# * **sessions**: idle sessions keep nearly the whole pool;
# * **allocator**: one large temporary once needed 24 GiB, and its segment stays reserved.

# %%
causes = one_reading_four_causes(steady_load(requests, 1400, 6.0, lab.rng(6)), lab.rng(7))
readings = {name: reading for name, (reading, _) in causes.items()}
seen = {name: reading.only_nvidia_smi() for name, reading in readings.items()}
draw_bars(
    {
        name: {
            "nvidia-smi, of the card": 100 * r.nvidia_smi,
            "weights, of the card": 100 * r.weights_share,
            "not active, of the card": 100 * r.cached_by_allocator,
            "live, of the pool": 100 * r.pool_usage,
            "explained, of what is live": 100 * min(1.0, r.explained),
        }
        for name, r in readings.items()
    },
    ylabel="share (%)",
    title="the same first bar on five servers",
)

# %%
pd.DataFrame(
    {
        name: {
            "nvidia-smi (%)": 100 * r.nvidia_smi,
            "active sequences": r.active_sequences,
            "waiting": r.num_waiting,
            "TTFT P95 (s)": r.ttft_p95_s,
            "told from nvidia-smi alone": seen[name].cause(),
            "told from the metrics": r.cause(),
        }
        for name, r in readings.items()
    }
).T

# %% [markdown]
# How each is told: weights over 70 % of the card; a fifth of the card reserved by the allocator and not active; a full pool of
# which the active sequences (their number times the mean tokens of a request) explain less than half; a queue beside sequences
# that explain what is live. The control applies the same rules to somebody who has nothing but the reading.

# %%
numbers = [readings[name].nvidia_smi for name in CAUSES]
claim(
    "11.6",
    "nvidia-smi shows the same within a point for four root causes, and the metrics name each of them.",
    held=max(numbers) - min(numbers) < 0.01 and told_apart(readings),
    control=max(numbers) - min(numbers) < 0.01 and told_apart(seen),
    **{f"nvidia_smi_{name}": readings[name].nvidia_smi for name in CAUSES},
    **{f"told_{name}": readings[name].cause() for name in CAUSES},
)

# %% [markdown]
# **Explain.** A serving engine takes its memory at start and divides it itself. From outside, the card is a closed box that
# always weighs the same. What matters happens inside the box (who holds blocks, for how long, in what pieces), beside it (who
# waits, and for which limit) and after it (what users feel). So the order of a diagnosis is from the user inwards: is there
# harm; who waits; who holds; is it one piece; and only then how large.
#
# **Try it**: change the server, watch which dial moves.


# %%
def watch_panel(pool_gib, limit, speed, sharing, figure=None):
    load = steady_load(chats[:70] if sharing == "chats" else requests, 70, float(speed), lab.rng(8))
    run = watch(
        load,
        device_with(model.weight_bytes(), pool_gib * GIB),
        bytes_per_token=bytes_per_token,
        kv_options={"prefix": "hash"},
        max_num_seqs=limit,
        every=8,
    )
    frame = run.recorder.series_frame()
    return draw_timeline(
        [
            Series("KV live", frame["end_s"], frame["kv_live_bytes"]),
            Series("KV cached", frame["end_s"], frame["kv_cached_bytes"]),
            Series("active", frame["end_s"], frame["num_running"], unit="requests"),
            Series("waiting", frame["end_s"], frame["num_waiting"], unit="requests"),
        ],
        title=f"nvidia-smi {100 * run.device.nvidia_smi:.0f} %, TTFT P95 {run.metrics()[Metric.TTFT]['p95'] or 0:.2f} s",
        figure=figure,
    )


SliderPanel(
    watch_panel,
    {
        "pool_gib": Slider(8, 3, 56, 1, label="pool (GiB)"),
        "limit": Slider(64, 8, 256, 1, label="sequences at once"),
        "speed": Slider(6, 2, 40, 1, label="requests a second"),
        "sharing": Choice("chats", ["chats", "single requests"], label="load"),
    },
    title="Which dial moves?",
)

# %% [markdown]
# ## In an interview
#
# *"The card is at 95 % and users complain. What is the first thing you look at?"* Shallow: memory. Good: TTFT and TPOT, then
# the queue, then the pool. Deep: knows that the reading was 95 % before the first request came, names one metric for each of
# the four causes, and says which of them a restart would heal (sessions and leaks, the allocator's cache; not weights, not
# traffic).
#
# **Exercises** (in `exercises/`): 02 (measures of fragmentation), 05 (PyTorch's rounding and split rule), 15 (name the cause).
#
# ## In five lines
#
# 1. The reading is set at start; it says nothing about load.
# 2. Allocatable blocks, not used bytes, say what the next request can have.
# 3. A total can hide that no run is long enough.
# 4. A full batch beside empty memory is a limit, not a shortage.
# 5. Watch users first and go inwards; compare before and after a restart.
#
# **What would change my mind:** two of the four servers whose five groups of metrics read the same.

# %%
finish("11")
