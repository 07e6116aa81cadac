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
# # 6. What PagedAttention and the block manager solve
#
# **The question.** Operating systems stopped asking for contiguous memory decades ago. If a KV cache is cut into blocks
# that may lie anywhere, what is solved, what is not, and what does the indirection cost?

# %% tags=["parameters"]
scale = "ci"
device = "auto"
seed = 0

# %%
from labkit.errors import LabError
from labkit.experiments.churn import AllocatorMemory, BlockMemory, Churn, holdings_of
from labkit.experiments.harms import peak_demand, with_long_sessions
from labkit.experiments.machine_code import lookup_in_machine_code
from labkit.experiments.paged_kv import (
    block_size_costs,
    counts_blocks,
    fork_and_leave,
    judge,
    paged_equals_contiguous,
    share_free,
    trades,
)
from labkit.memory import make_allocator
from labkit.models import get_model
from labkit.teach import claim, finish, predict, setup
from labkit.units import format_bytes
from labkit.viz import Series, Slider, SliderPanel, draw_layout, draw_timeline
from labkit.viz.charts import draw_bars, draw_tradeoff
from labkit.workload.traces import load_or_synthetic

lab = setup(scale, device, seed)
model = get_model("Llama-3.1-8B")
bytes_per_token = model.kv_bytes_per_token()
BLOCK_SIZE = 16
block_bytes = BLOCK_SIZE * bytes_per_token
requests, origin = load_or_synthetic("azure-conv", lab.pick(ci=3000, lab=19366), lab.rng(1))
holdings = with_long_sessions(
    holdings_of(requests, bytes_per_token=bytes_per_token, seconds_per_token=0.03), lab.rng(2)
)
print(origin, f"A block of {BLOCK_SIZE} tokens is {format_bytes(block_bytes)}.")

# %% [markdown]
# ## 6.0 The same attention, wherever the blocks lie
#
# A **block table** says where each logical block of a request lives. The kernel walks it. Six requests (lengths around
# block borders on purpose) get their keys and values once in one piece and once in blocks dealt out at random.

# %%
same = paged_equals_contiguous(lab.rng(3))
wrong = paged_equals_contiguous(lab.rng(3), swap_two_entries=True)
print(f"{same.num_blocks} blocks, {same.num_neighbours} of them beside their logical neighbour")
print(
    f"largest error, paged against contiguous: {same.max_error:.2e}; with two table entries swapped: {wrong.max_error:.2f}"
)

# %%
claim(
    "6.0",
    "Attention through a block table equals attention over a contiguous cache, wherever the blocks lie.",
    held=same.same_output(),
    control=wrong.same_output(),
    max_error=same.max_error,
    max_error_with_two_entries_swapped=wrong.max_error,
    blocks=same.num_blocks,
    neighbours=same.num_neighbours,
)

# %% [markdown]
# ## 6.1 Any free block serves any request
#
# The load of section 3 again: each request holds the KV of its whole length while it decodes. Memory is 70 % of the peak
# demand, so some must be refused. How many of them *although enough bytes were free*, if each lies in one piece, and how many
# in blocks?

# %%
guess = predict(
    f"Refusals with enough bytes free, out of {len(holdings):,} placements, each in one piece?",
    low=0,
    high=300,
)
guess

# %%
capacity = int(0.7 * peak_demand(holdings))
middle = [holdings[len(holdings) // 2].arrival_s]
on_blocks = Churn(BlockMemory(capacity, block_bytes), on_failure="drop").feed(
    holdings, snapshot_times_s=middle
)
contiguous = Churn(AllocatorMemory(make_allocator("first-fit", capacity)), on_failure="drop").feed(
    holdings, snapshot_times_s=middle
)
guess.compare(contiguous.num_fragmentation_failures)
draw_bars(
    {
        "contiguous (first fit)": {
            "enough bytes free": contiguous.num_fragmentation_failures,
            "really full": len(contiguous.failures) - contiguous.num_fragmentation_failures,
        },
        "blocks": {
            "enough bytes free": on_blocks.num_fragmentation_failures,
            "really full": len(on_blocks.failures) - on_blocks.num_fragmentation_failures,
        },
    },
    ylabel="placements refused",
    title="why placements were refused",
)

# %%
draw_layout(on_blocks.snapshots[0][1], title="blocks: free ones everywhere, and every one of them usable")

# %%
claim(
    "6.1",
    "In a pool of equal blocks nothing is refused while enough is free: external fragmentation is gone.",
    held=on_blocks.num_fragmentation_failures == 0,
    control=contiguous.num_fragmentation_failures == 0,
    refused_on_blocks=len(on_blocks.failures),
    refused_contiguous=len(contiguous.failures),
    contiguous_with_room_to_spare=contiguous.num_fragmentation_failures,
)

# %% [markdown]
# ## 6.2 Reclaim by block, by reference count, and copy on write
#
# A request of 100 tokens is forked (two samples of one prompt). Both tables point at the same seven blocks. The copy writes
# one token into the last, partly filled block, so that block is copied first. Then the parent ends, then the copy.

# %%
forked, apart = fork_and_leave(share=True), fork_and_leave(share=False)
draw_bars(
    {
        "both alive": {"forked": forked.held_together, "sent twice": apart.held_together},
        "the parent has ended": {"forked": forked.held_after_parent, "sent twice": apart.held_after_parent},
        "the copy has ended": {"forked": forked.held_after_child, "sent twice": apart.held_after_child},
    },
    ylabel="blocks held",
    title=f"{forked.shared_blocks} blocks are shared; {forked.copied_tokens} tokens were copied when one of the two wrote",
)

# %%
claim(
    "6.2",
    "A block is freed by the last table that names it; a shared, partly filled one is copied before it is written.",
    held=forked.by_reference_count(),
    control=apart.by_reference_count(),
    shared_blocks=forked.shared_blocks,
    held_after_parent_ended=forked.held_after_parent,
    tokens_copied=forked.copied_tokens,
)

# %% [markdown]
# ## 6.3 A budget that is never wrong
#
# An admission rule makes a promise: what I admit will fit, what I refuse would not have. Two rules are asked before every
# placement and compared with what then happens: *count the blocks it needs* (on a pool of blocks), and *admit while 5 % of
# memory is free* (on contiguous memory). A more careful 15 % stands beside them: it refuses what would have fitted, and still
# admits what does not fit, since a percentage knows nothing of the longest span.

# %%
by_block = judge(BlockMemory(capacity, block_bytes), counts_blocks(block_bytes), holdings)
by_share = judge(AllocatorMemory(make_allocator("first-fit", capacity)), share_free(5), holdings)
by_larger_share = judge(AllocatorMemory(make_allocator("first-fit", capacity)), share_free(15), holdings)
draw_bars(
    {
        name: {
            "admitted, did not fit": judged.num_false_yes,
            "refused, would have fitted": judged.num_false_no,
        }
        for name, judged in {
            "count the blocks": by_block,
            "5 % free": by_share,
            "15 % free": by_larger_share,
        }.items()
    },
    ylabel="wrong decisions",
    title=f"wrong decisions out of {by_block.num_asked:,}",
)

# %%
claim(
    "6.3",
    "Counting blocks is right about every admission; a percentage of free memory is not.",
    held=by_block.never_wrong,
    control=by_share.never_wrong,
    decisions=by_block.num_asked,
    wrong_by_share=by_share.num_false_yes + by_share.num_false_no,
    wrong_by_larger_share=by_larger_share.num_false_yes + by_larger_share.num_false_no,
)

# %% [markdown]
# ## 6.4 The price
#
# Three things are paid. **Block-table bytes**: one entry a block. **Address translation**: the entry must be loaded before
# the address of the block is known, once for each block, KV head and layer, in every decode step. **Waste inside the last
# block**: half a block a request on average. The first two fall with the block size, the third grows.

# %%
block_sizes = [1, 8, 16, 32, 64, 128, 256]
alive = [r.num_prompt_tokens + r.num_output_tokens for r in requests[:100]]
costs = block_size_costs(
    alive,
    block_sizes,
    bytes_per_token=bytes_per_token,
    num_layers=model.num_layers,
    num_kv_heads=model.num_kv_heads,
)
even = block_size_costs([4096] * 100, block_sizes, bytes_per_token=bytes_per_token)
draw_tradeoff(
    {
        "lengths of the trace": [
            (cost.table_loads / len(alive), cost.waste_bytes / 2**20, str(cost.block_size)) for cost in costs
        ],
        "all 4,096 (control)": [
            (cost.table_loads / 100, cost.waste_bytes / 2**20, str(cost.block_size)) for cost in even
        ],
    },
    xlabel="block-table loads a request and decode step",
    ylabel="empty in last blocks, 100 requests (MiB)",
    title="numbers at the points: block size in tokens",
    logx=True,
)

# %% [markdown]
# The control is a load whose length is a multiple of every block size: nothing is ever empty, and the largest block is simply
# best. Real lengths are not so kind.
#
# What the compiler makes of a lookup: the decode kernels of this lab, compiled ahead of time for an H100 (no GPU is needed
# for that). A shape like `bf16 d128 g4 b16` reads: 16-bit keys and values, heads of 128, four query heads to a KV head, blocks
# of 16. `LDGSTS.128 x 32`: 32 instructions in the program that copy 128 bits a thread from global to shared memory.
# The paged kernels load table entries (32 bits) before the addresses of the keys and values are known; the keys and values
# themselves move 16 bytes a thread either way. Instructions are counted in the program text, not over a run: how often a loop
# is unrolled differs between the kernels, so compare which kinds of loads there are and how wide, not how many.

# %%
try:
    machine_code = lookup_in_machine_code()
except LabError as error:  # no Triton on this machine
    machine_code = str(error)
machine_code

# %%
claim(
    "6.4",
    "Smaller blocks waste less and need more table entries and loads, at every step: block size is a trade.",
    held=trades(costs),
    control=trades(even),
    not_measured=""
    if lab.device == "cuda"
    else "The kernel-time half was not measured: no GPU (labkit kernels bench). Table loads, bytes and machine instructions are counted.",
    waste_mib={str(c.block_size): c.waste_bytes / 2**20 for c in costs},
    table_bytes={str(c.block_size): c.table_bytes for c in costs},
)

# %% [markdown]
# **Explain.** The hotel stopped selling adjoining rooms. A party of eight takes any eight keys and a list that says in
# which order to walk. No hole can be too small, because every hole is a multiple of the only size there is. What is left
# is bookkeeping (the list), a detour (read the list first), and the last room of each party, which may be half empty.
#
# **Try it**: block size and memory, on the trace.


# %%
def block_panel(block_size, memory, figure=None):
    load = holdings[:800]
    run = Churn(
        BlockMemory(int(memory / 100 * peak_demand(load)), block_size * bytes_per_token), on_failure="drop"
    ).feed(load)
    asked = sum(holding.size for holding in load)
    given = (
        sum(-(-holding.size // (block_size * bytes_per_token)) for holding in load)
        * block_size
        * bytes_per_token
    )
    return draw_timeline(
        [Series("free", run.times_s, run.free)],
        title=f"blocks of {block_size}: {run.num_dropped} refused, all of them really full; "
        f"{100 * (1 - asked / given):.1f} % of what is held is the empty rest of a last block",
        figure=figure,
    )


SliderPanel(
    block_panel,
    {
        "block_size": Slider(16, 8, 256, 8, label="block size (tokens)"),
        "memory": Slider(90, 50, 150, 5, label="memory (% of the peak demand)"),
    },
    title="Blocks on the trace",
)

# %% [markdown]
# ## In an interview
#
# *"What does PagedAttention buy you?"* Shallow: no fragmentation. Good: no *external* fragmentation, reclaim by block,
# sharing by reference count, copy on write, and an admission rule that can be exact. Deep: names the price (table bytes,
# a dependent load, the last block), says how block size trades them and which sizes real systems use and why, and knows
# what paging does **not** solve: a pool that is truly full, prefixes that stay, requests that grow after they were admitted.
#
# **Exercises** (in `exercises/`): 07 (block table), 08 (reference counts and copy on write), 13 and 14 (the Triton kernels).
#
# ## In five lines
#
# 1. Logical order lives in a table, physical place is free.
# 2. One size of hole means no hole is too small.
# 3. A block is freed by its last reference, and copied before a shared one is written.
# 4. Needed blocks against free blocks is an exact admission test.
# 5. The price is a table, a dependent load and half a block.
#
# **What would change my mind:** a load on which a contiguous cache with virtual memory (one address range, granules mapped
# on demand) needs less than blocks do. The cache is there: `make_kv_cache("virtual", ...)`.

# %%
finish("06")
