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
# # 12. Five situations that are easy to misjudge
#
# **The question.** A server is slow, or refuses, and the first explanation that comes to mind fits. So do three others. What
# evidence tells them apart?
#
# Every cause below is made to happen: a fault is planted in a served load, and its operator's evidence is written to files
# (`/metrics` pages, a log, `torch.cuda.memory_stats`, nvidia-smi). Then the doctor of this lab gets the files, and nothing else.

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
import numpy as np
import pandas as pd

from labkit.experiments.situations import held_back, hit_rate_and_pressure, holds_for_most, situation
from labkit.teach import claim, finish, predict, setup
from labkit.viz import Choice, Series, Slider, SliderPanel, draw_timeline
from labkit.viz.charts import draw_bars

lab = setup(scale, device, seed)
pd.set_option("display.max_colwidth", None)


def table(cases):
    """One row a cause: what users feel, what nvidia-smi shows, and the verdicts."""
    return pd.DataFrame(
        {
            "cause": case.cause,
            "P95 of TTFT without, s": round(case.incident.ttft_p95_without_s, 2),
            "with, s": round(case.incident.ttft_p95_s, 2),
            "nvidia-smi": f"{case.reading_percent} %",
            "verdict of all evidence": case.diagnosis.verdict,
            "of nvidia-smi alone": case.from_smi_alone.verdict,
        }
        for case in cases
    )


def reasons(cases):
    """The numbers that carried each verdict, as they were compared."""
    return pd.DataFrame(
        {
            "verdict": case.diagnosis.verdict,
            "what is seen": sign.says,
            "value": f"{sign.value:.3g}",
            "compared with": f"{sign.op} {sign.threshold:g}",
        }
        for case in cases
        for sign in case.diagnosis.findings[0].evidence
    )


def three_draws(name, first):
    """The cases that are shown and two more of each cause, on other loads and servers."""
    return [first, situation(name, seed, 1), situation(name, seed, 2)]


def num_named(draws):
    """In how many of the draws each cause was named."""
    return {f"named_{cases[0].kind}": sum(case.is_named for case in cases) for cases in zip(*draws)}


SHORT = {
    "contiguous_fragmentation": "fragmented",
    "pool_held_by_long_requests": "long requests",
    "late_prefix_release": "late references",
    "reserved_high_active_low": "allocator cache",
    "idle_sessions_left_behind": "idle sessions",
}


def usage_lines(cases):
    """KV usage of each case over its own time."""
    return draw_timeline(
        [
            Series(
                SHORT[case.kind],
                case.evidence.series["time_s"],
                100 * case.evidence.series["kv_usage"],
                unit="% of the pool",
            )
            for case in cases
        ],
        title="KV usage: look at the lull in the middle and at the rest after the end",
    )


# %% [markdown]
# ## 12.1 Memory is not full, and admission keeps failing

# %%
guess = predict(
    "Which of the four shows in the pool's usage when nobody runs at all?",
    options=[
        "no contiguous room",
        "pool held by long requests",
        "shared prefixes released late",
        "allocator reserved high, active low",
    ],
)
guess

# %%
refusing = situation("12.1", seed)
guess.compare("shared prefixes released late")
table(refusing)

# %%
usage_lines(refusing)

# %%
reasons(refusing)

# %% [markdown]
# The four look alike from outside and are four different sentences inside: *no span is long enough*; *a few long requests hold
# the pool and go on decoding*; *nobody runs and memory stays in use for minutes*; *the allocator keeps what nobody uses, and
# fails*. nvidia-smi knows none of them: it shows what is reserved. No doctor is always right (about one verdict in a hundred is
# wrong), so each claim here draws every cause three times, on other loads and servers, and wants most of the draws named.

# %%
draws = three_draws("12.1", refusing)
claim(
    "12.1",
    "Memory not full and admission failing has four causes that the evidence separates.",
    held=holds_for_most(draws, lambda case: case.is_named),
    control=holds_for_most(draws, lambda case: case.is_named_by_smi),
    **num_named(draws),
    **{f"p95_{case.kind}_s": case.incident.ttft_p95_s for case in refusing},
)

# %% [markdown]
# ## 12.2 Fine when fresh, worse after a while
#
# The first eighth of the requests meets a fresh server. The hour of the claim is compressed into minutes here: what ages a
# server is requests, not time.

# %%
slower = predict(
    "How many times longer does the worst later eighth wait for its first tokens, at most?",
    low=1, high=100, unit="times",
)  # fmt: skip
slower

# %%
ageing = situation("12.2", seed)
early_late = {case.cause: case.ttft_early_and_late_s() for case in ageing}
slower.compare(max(late / early for early, late in early_late.values()))
draw_bars(
    {
        cause: {"first eighth of the requests": early, "worst later eighth": late}
        for cause, (early, late) in early_late.items()
    },
    ylabel="mean TTFT (s)",
    title="a fresh server, and the same server later",
)

# %%
reasons(ageing)


# %%
draws = three_draws("12.2", ageing)
claim(
    "12.2",
    "Latency worse after an hour has four causes that the evidence separates.",
    held=holds_for_most(draws, lambda case: case.is_named and case.gets_worse()),
    control=holds_for_most(draws, lambda case: case.is_named_by_smi and case.gets_worse()),
    **num_named(draws),
    **{f"times_worse_{case.kind}": late / early for case, (early, late) in zip(ageing, early_late.values())},
)

# %% [markdown]
# ## 12.3 Quantised, and concurrency hardly rises
#
# Weights in 8 or 4 bits save gigabytes. Whether they become requests is decided by the ledger that the server prints when it
# starts, and by what the head of the queue waits for.

# %%
guess = predict(
    "All three queues wait. In how many of them is the KV pool itself full?",
    options=["none", "one", "two", "all three"],
)
guess

# %%
quantised = situation("12.3", seed)
pool_full = sum(case.signal("kv_bound") == 1 for case in quantised)
guess.compare(["none", "one", "two", "all three"][pool_full])
pd.DataFrame(
    {
        "cause": case.cause,
        "bits of a weight": int(case.signal("weight_bits")),
        "bits of a key": int(case.signal("kv_bits")),
        "workspace, % of what the server holds": round(100 * case.signal("workspace_share")),
        "waits without room, %": round(100 * case.signal("waits_without_room")),
        "waits with room, %": round(100 * case.signal("waits_with_room")),
        "verdict": case.diagnosis.verdict,
    }
    for case in quantised
)

# %%
draws = three_draws("12.3", quantised)
claim(
    "12.3",
    "Quantised, yet hardly more concurrency: three causes that the ledger separates.",
    held=holds_for_most(draws, lambda case: case.is_named),
    control=holds_for_most(draws, lambda case: case.is_named_by_smi),
    **num_named(draws),
    workspace_share=quantised[1].signal("workspace_share"),
    waits_with_room=quantised[2].signal("waits_with_room"),
)

# %% [markdown]
# ## 12.4 The hit rate rises, and so do out-of-memory events
#
# The same requests on the same pool three times: without a prefix cache, with one that gives way when somebody needs room, and
# with one that keeps what it has. *Pressure* counts preemptions and seconds in which the head of the queue waits for memory.

# %%
more = predict(
    "The cache that keeps: pressure a request, where the pool without a cache has none?",
    low=0,
    high=5,
    unit="events a request",
)
more

# %%
none, gives_way, keeps = hit_rate_and_pressure(lab.rng(4))
more.compare(keeps.pressure)
draw_timeline(
    [
        Series(label, [row.time_s for row in keeps.run.rows], [100 * row.values[name] / keeps.run.capacity_tokens for row in keeps.run.rows], unit="% of the pool")
        for label, name in (("live", "kv_live_tokens"), ("cached", "kv_cached_tokens"), ("free", "kv_free_tokens"))
    ],
    title=f"the cache that keeps: {100 * keeps.hit_ratio:.0f} % hits, {keeps.pressure:.2f} events a request",
)  # fmt: skip

# %%
claim(
    "12.4",
    "A higher hit rate can bring more out-of-memory: shared state squeezes private decode space.",
    held=keeps.more_hits_and_more_pressure(none),
    control=gives_way.more_hits_and_more_pressure(none),
    hit_ratio=keeps.hit_ratio,
    pressure_none=none.pressure,
    pressure_gives_way=gives_way.pressure,
    pressure_keeps=keeps.pressure,
    ttft_p95_keeps_s=keeps.ttft_p95_s,
    ttft_p95_gives_way_s=gives_way.ttft_p95_s,
)

# %% [markdown]
# The hit rate of the two caches is nearly the same. It says nothing about the difference; evictions beside waiting requests do.
#
# ## 12.5 Everything recovers on a restart
#
# A restart wipes the allocator's cache, the layout of the pool, references that nobody drops, and sessions that nobody closes.
# That it helps says *that* something accumulates, not *what*.

# %%
guess = predict(
    "Which one still counts sequences as running when nobody asks anything?",
    options=["allocator cache growth", "pool fragmentation", "late reclaim", "sessions left behind"],
)
guess

# %%
healed = situation("12.5", seed)
guess.compare("sessions left behind")
usage_lines(healed)

# %%
reasons(healed)

# %%
draws = three_draws("12.5", healed)
claim(
    "12.5",
    "What a restart heals has four causes that the evidence separates.",
    held=holds_for_most(draws, lambda case: case.is_named and case.is_felt),
    control=holds_for_most(draws, lambda case: case.is_named_by_smi and case.is_felt),
    **num_named(draws),
    **{f"p95_{case.kind}_s": case.incident.ttft_p95_s for case in healed},
)

# %% [markdown]
# **Explain.** Three places give causes away. *The rest*: with nobody running, whatever is still held is held by something else,
# and how long it stays says by what. *The head of the queue*: what it needs against what is free, evictable, and in one piece.
# *The ledger*: what was decided at start. A busy average hides all three, and nvidia-smi has none.
#
# **Try it**: one fault and how much of the pool it may take; watch the lull and the end.


# %%
def fault_panel(fault, held, figure=None):
    run = held_back(np.random.default_rng(seed + 1), fault, held / 100, num_requests=150)
    times = [row.time_s for row in run.rows]
    return draw_timeline(
        [
            Series("KV usage", times, [100 * row.values["kv_usage"] for row in run.rows], unit="%"),
            Series("running", times, [row.values["num_running"] for row in run.rows], unit="requests"),
            Series("waiting", times, [row.values["num_waiting"] for row in run.rows], unit="requests"),
        ],
        title=f"P95 of TTFT {run.ttft_p95_s:.2f} s, {run.num_preempted} preemptions",
        figure=figure,
    )


SliderPanel(
    fault_panel,
    {
        "fault": Choice("leak", ["nothing", "leak", "idle sessions", "slow reclaim", "late prefixes"]),
        "held": Slider(60, 0, 85, 5, label="at most held (% of the pool)"),
    },
    title="Who holds memory when nobody runs?",
)

# %% [markdown]
# ## In an interview
#
# *"Latency is fine after a restart and bad two hours later. What do you look at?"* Shallow: restart it every night. Good: what
# is held with nobody running, and whether it grows. Deep: tells by that what it is. It stays for seconds (reclaim), for minutes
# with prefix hits (references), for ever and counted as running (sessions), for ever and counted by nobody (leak); or nothing is
# held in the pool and the allocator's reserved bytes grow.
#
# **Exercise** (in `exercises/`): 15 (six incidents: name the cause and the evidence).
#
# ## In five lines
#
# 1. One symptom has four causes; the first that fits is not evidence.
# 2. Measure at rest: what is held by nobody cannot be load.
# 3. Log the head of the queue: needed, free, evictable, largest span.
# 4. Read the ledger before buying memory.
# 5. A hit rate without evictions and waits beside it says nothing.
#
# **What would change my mind:** two of these causes with the same evidence in all three places.

# %%
finish("12")
