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
# # 14. Telling it in an interview as someone who has done it
#
# **The question.** *"Our GPUs have memory free and the service refuses requests. What do you do?"* Everybody can name paged
# attention. How do people sound who have been there, and how would you prove that they are right?

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
import pandas as pd


from labkit.experiments.interview import (
    calm_load,
    each_step_explains_some,
    memory_for,
    predictions,
    remainders,
    service_load,
)
from labkit.experiments.proofs.prefix import serve_with_pinned
from labkit.teach import claim, finish, predict, setup
from labkit.teach.quiz import STEPS, choose, load_questions, prove
from labkit.teach.quiz_interview import ARGUMENT, BONUS, draw_interview, rubric
from labkit.teach.quiz_notebook import show_quiz
from labkit.viz import Slider, SliderPanel
from labkit.viz.charts import draw_bars, draw_tradeoff, number

lab = setup(scale, device, seed)
pd.set_option("display.max_colwidth", None)
questions = load_questions()

# %% [markdown]
# ## 14.1 Two answers, as predictions
#
# An answer is worth what it predicts. The **shallow** one names a remedy and expects it to work. The **deep** one names the
# quantity that decides whether the remedy works *here*, and looks at it first. Five remedies; each answer says beforehand
# between which values a measurement will lie.
#
# The situations below are the ones in which a remedy disappoints. The control is the same five where all is ample: there
# both answers are right, and nothing tells them apart. That is why the shallow one survives load tests.

# %%
guess = predict("How many of the five does the shallow answer get right?", low=0, high=5)
guess

# %%
hard, easy = predictions(seed, hard=True), predictions(seed, hard=False)
guess.compare(sum(case.shallow_right for case in hard))


def shown(cases):
    rows = [
        {
            "remedy": case.name,
            "measured": case.quantity,
            "shallow says": "{:.3g} to {:.3g}".format(*case.shallow),
            "deep looks at": case.decides,
            "deep says": "{:.3g} to {:.3g}".format(*case.deep),
            "it was": round(float(case.measured), 3),
            "shallow right": case.shallow_right,
            "deep right": case.deep_right,
        }
        for case in cases
    ]
    return pd.DataFrame(rows)


shown(hard)

# %%
shown(easy)

# %%
draw_bars(
    {
        "where the remedy disappoints": {
            "shallow": sum(case.shallow_right for case in hard),
            "deep": sum(case.deep_right for case in hard),
        },
        "where all is ample (control)": {
            "shallow": sum(case.shallow_right for case in easy),
            "deep": sum(case.deep_right for case in easy),
        },
    },
    ylabel="predictions that came out, of 5",
    title="the deep answer is right in both worlds",
)

# %%
claim(
    "14.1",
    "In all five situations the deep answer's prediction comes out and the shallow one's fails.",
    held=all(case.tells_apart() for case in hard),
    control=any(case.tells_apart() for case in easy),
    deep_right=sum(case.deep_right for case in hard),
    shallow_right=sum(case.shallow_right for case in hard),
    shallow_right_where_ample=sum(case.shallow_right for case in easy),
    **{f"measured_{number}": float(case.measured) for number, case in enumerate(hard, 1)},
)

# %% [markdown]
# ## 14.2 The order of the argument
#
# Six steps, and each is a reason for the next:
#
# 1. what is **static** and what is **dynamic**: the sum on paper, and what it leaves out;
# 2. **capacity, fragmentation, lifetimes**: three different ways to run out;
# 3. why **contiguous** caches cannot have it both ways;
# 4. what **blocks** change, and what they do not;
# 5. how **scheduling, prefix caches and long sessions** decide what comes back when;
# 6. which **metrics** tell the cases apart, and which experiment is the **proof**.
#
# First on one service: real lengths, two requests in a hundred belong to long sessions, memory is seven tenths of the
# peak demand. How much of the work is still turned away after each part of the argument has been applied? The control is a load with the same
# mean demand whose requests are all alike: there the last two parts have nothing left to explain.

# %%
left_over = predict("What share of the work is turned away when everybody reserves the maximum?", unit="%")
left_over

# %%
load = service_load(lab.rng(1), lab.pick(ci=2000, lab=12000))
memory = memory_for(load)
real, calm = remainders(load, memory), remainders(calm_load(load), memory)
left_over.compare(100 * real[0].refused_share)
draw_bars(
    {
        one.step: {"real load": 100 * one.refused_share, "even load (control)": 100 * other.refused_share}
        for one, other in zip(real, calm)
    },
    ylabel="% of the work turned away",
    title="each part of the argument explains some, and leaves something for the next",
)

# %% [markdown]
# Now step by step, each with its proof. A proof is a small run with a predicate that must hold, and a control on which the
# same predicate must be false.

# %%
argument = {step: [prove(questions[name], seed) for name in names] for step, names in ARGUMENT.items()}
pd.DataFrame(
    [
        {
            "step": f"{step}. {STEPS[step][0]}",
            "asked": proven.question.question["en"],
            "shows": proven.shows.holds,
            "control": proven.control.holds,
        }
        for step, row in argument.items()
        for proven in row
    ]
)

# %%
steps = [proven for row in argument.values() for proven in row]
claim(
    "14.2",
    "The argument runs in its order: every step has a proof that holds, and on one service each part leaves less to explain.",
    held=all(proven.shows.holds for proven in steps) and each_step_explains_some(real),
    control=any(proven.control.holds for proven in steps) or each_step_explains_some(calm),
    num_proofs=len(steps),
    **{one.step.replace(" ", "_").replace(",", ""): one.refused_share for one in real},
)

# %% [markdown]
# ## 14.3 Four bonus points
#
# Said in one sentence each, they show that somebody has looked. Each has an experiment.


# %%
def rounded(figures):
    """Three digits are enough to read."""
    lists = {name: value if isinstance(value, list) else [value] for name, value in figures.items()}
    return ", ".join(f"{name} {' and '.join(map(number, values))}" for name, values in lists.items())


bonus = {point: prove(questions[name], seed) for point, name in BONUS.items()}
for point, proven in bonus.items():
    proof = proven.question.proof
    print(f"{point}\n  {proof.line(proof.shows)}")
    print(f"  shows:   {rounded(proven.shows.figures)}\n  control: {rounded(proven.control.figures)}\n")

# %% [markdown]
# The first one is the hardest to believe, so here it is as a curve: pin more and more of 24 system prompts. Hits rise; what
# is left for private blocks falls. In a tight pool goodput (requests a second that meet the SLA, the promise about first and
# later tokens) collapses *while the hit rate looks better than ever*.

# %%
pinned = [0, 6, 11, 14, 16]
pools = {"12,000 tokens": 12_000, "60,000 tokens (control)": 60_000}
runs = {name: [serve_with_pinned(lab.rng(3), n, tokens) for n in pinned] for name, tokens in pools.items()}
draw_tradeoff(
    {
        name: [(100 * run.hit_ratio, run.goodput, f"{run.num_pinned}") for run in row]
        for name, row in runs.items()
    },
    xlabel="prefix hit rate (%)",
    ylabel="requests/s that met the SLA",
    title="more hits, fewer good answers (labels: pinned prompts)",
)

# %%
claim(
    "14.3",
    "Each of the four bonus points shows in its experiment, and in none of the controls.",
    held=all(proven.shows.holds for proven in bonus.values()),
    control=any(proven.control.holds for proven in bonus.values()),
    hit_ratio=bonus["a high hit rate is not efficiency"].shows.figures["hit_ratio"],
    goodput=bonus["a high hit rate is not efficiency"].shows.figures["goodput"],
    gain_of_8_bit_weights=bonus["quantisation need not raise concurrency"].shows.figures["gain"],
    refused_before_restart=bonus["recovery on restart points to accumulated state"].shows.figures[
        "refused_before"
    ],
    refused_after_restart=bonus["recovery on restart points to accumulated state"].shows.figures[
        "refused_after"
    ],
)

# %% [markdown]
# **Explain.** A remedy moves one quantity. Whether that helps depends on which quantity binds. The shallow answer leaves this
# out, so it is right exactly when nothing binds, and that is when nobody asks.
#
# **Try it.** How many prompts can be pinned before goodput falls, in which pool, at which rate?


# %%
def pinned_panel(pool, pinned, rate, figure=None):
    rng = [lab.rng(3), lab.rng(3)]
    none = serve_with_pinned(rng[0], 0, pool * 1000, num_requests=100, rate=rate)
    many = serve_with_pinned(rng[1], pinned, pool * 1000, num_requests=100, rate=rate)
    name = f"{pinned} pinned"
    return draw_bars(
        {
            "hit rate": {"none pinned": 100 * none.hit_ratio, name: 100 * many.hit_ratio},
            "preemptions for 100 requests": {"none pinned": none.num_preempted, name: many.num_preempted},
            "goodput, none pinned = 100": {"none pinned": 100, name: 100 * many.goodput / none.goodput},
        },
        ylabel="%",
        title=f"{many.private_blocks} blocks are left for private tokens",
        figure=figure,
    )


SliderPanel(
    pinned_panel,
    {
        "pool": Slider(12, 11, 40, 1, label="pool (thousand tokens)"),
        "pinned": Slider(14, 0, 16, 1, label="pinned prompts"),
        "rate": Slider(8, 2, 16, 1, label="requests a second"),
    },
    title="Hits against room",
)

# %% [markdown]
# ## The mock interview
#
# A path in the order of the argument, one question a step. Answer aloud; then read the rubric and give yourself a level.
# `labkit quiz --interview` does the same in a terminal, in English or Chinese (`--lang zh`), and offers to run each proof.

# %%
interview = draw_interview(seed)
for question in interview.path:
    print(f"{question.step}. {question.question['en']}\n   {question.question['zh']}")
    print(
        "\n".join(f"      {line}" for line in [*rubric(question), f"answer: {question.answer['en']}"]), "\n"
    )

# %%
# your own marks go here: none, shallow, good or deep
marks = dict.fromkeys([question.id for question in interview.path], "good")
for question_id, level in marks.items():
    interview.score(question_id, level)
print(interview.report())

# %% [markdown]
# And four questions to click on (there are more: `choose(questions, topic="metrics")`).

# %%
show_quiz(choose(questions, topic="bonus"))

# %% [markdown]
# ## In an interview
#
# *"So what would you do first?"* Shallow: names a remedy. Good: asks what is refused, when, and what is free then. Deep: says
# which number would change the plan, and which run produces it, before touching anything.
#
# **Exercises** (in `exercises/`): 15 (six incidents: name the cause and the evidence), 16 (beat the built-in policy under an SLA).
#
# ## In five lines
#
# 1. An answer is a prediction; otherwise it is a list of words.
# 2. The deep answer names the quantity that decides, and looks at it first.
# 3. Where memory is ample every answer is right, so a calm load test proves nothing.
# 4. The order matters: each step explains what the one before left over.
# 5. Hit rate, weight bytes, a restart and a request limit are not what they seem.
#
# **What would change my mind:** a service on which a remedy, applied without looking, kept its promise under pressure.

# %%
finish("14")
