"""The metrics of a serving engine's memory, by name: unit, definition, formula. docs/metrics.md is made of this table.

Five groups: capacity, fragmentation, lifetime, scheduling, user. Instants come first (docs/metrics.md); every latency is a
difference of two of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Group = Literal["capacity", "fragmentation", "lifetime", "scheduling", "user"]

#: instants, in the order in which they can come; seconds on the load's clock
INSTANTS = {
    "arrival": "the load sends the request",
    "admission": "start of the first step that includes it",
    "prefill start": "start of the first step that computes a token of its prompt; the admission instant",
    "first token": "end of the step that samples its first token",
    "every token": "end of the step that samples it",
    "finish": "end of the step that samples its last token",
    "free": "the last block table that named a block is gone: after the step that finished or preempted its request",
    "reclaim": "the block can be given to anybody: its last reference has left and no event is pending",
    "evict": "an idle cached block loses its content, because somebody needs the room",
}


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """`name` as it is said; `formula` in the lab's own field names."""

    name: str
    group: Group
    unit: str
    definition: str
    formula: str


class Metric(Enum):
    """Every metric; the value is its `MetricInfo`."""

    # capacity
    WEIGHTS = MetricInfo(
        "weights", "capacity", "bytes", "what the model's parameters take on a rank", "ledger: kind weights"
    )
    KV = MetricInfo(
        "KV",
        "capacity",
        "bytes",
        "the pool of keys and values: live, cached and free",
        "kv_live + kv_cached + kv_free",
    )
    WORKSPACE = MetricInfo(
        "workspace",
        "capacity",
        "bytes",
        "attention and GEMM workspace, activations, graphs",
        "ledger: kinds workspace + activations",
    )
    ALLOCATOR_RESERVED = MetricInfo(
        "allocator reserved bytes",
        "capacity",
        "bytes",
        "what the allocator holds from the device",
        "stats.reserved_bytes",
    )
    ALLOCATOR_ACTIVE = MetricInfo(
        "allocator active bytes",
        "capacity",
        "bytes",
        "allocated, and freed ranges that wait for an event",
        "stats.active_bytes",
    )
    ALLOCATABLE_BLOCKS = MetricInfo(
        "allocatable blocks",
        "capacity",
        "blocks",
        "blocks a new request could take now",
        "(kv_free + kv_cached) / block bytes",
    )
    # fragmentation
    FREE_BLOCKS = MetricInfo(
        "free blocks",
        "fragmentation",
        "blocks",
        "blocks that nobody holds and nobody can find",
        "kv_free / block bytes",
    )
    LARGEST_RUN = MetricInfo(
        "largest contiguous run",
        "fragmentation",
        "bytes",
        "the longest free span one request could get",
        "kv_largest_free",
    )
    FREE_BY_SIZE = MetricInfo(
        "free distribution by size class",
        "fragmentation",
        "bytes by power of two",
        "free bytes by the size of the span they lie in",
        "sum of free spans with 2^k <= size < 2^(k+1)",
    )
    WASTE_INSIDE = MetricInfo(
        "waste inside blocks",
        "fragmentation",
        "share",
        "held by requests and empty",
        "1 - kv_token / kv_live, over time",
    )
    FAILED_ALLOCATIONS = MetricInfo(
        "failed block allocations",
        "fragmentation",
        "count",
        "appends and admissions that found no room",
        "NoSpace + refused admit calls; allocators: num_ooms",
    )
    # lifetime
    MEAN_LIFETIME = MetricInfo(
        "mean request lifetime",
        "lifetime",
        "s",
        "how long a request holds memory",
        "mean(finish - admission)",
    )
    LONG_SHARE = MetricInfo(
        "share of long requests",
        "lifetime",
        "share",
        "requests that hold memory longer than ten times the median",
        "count(lifetime > 10 x median) / count",
    )
    PREFIX_RESIDENCY = MetricInfo(
        "residency of prefix-cache objects",
        "lifetime",
        "s",
        "from taken to evicted, of blocks that the prefix cache gave up",
        "mean(evict - taken)",
    )
    REFERENCE_COUNTS = MetricInfo(
        "reference-count distribution",
        "lifetime",
        "share by count",
        "block-seconds at each reference count",
        "seconds at count c / all block-seconds",
    )
    RECLAIM_DELAY = MetricInfo(
        "reclaim delay",
        "lifetime",
        "s",
        "what sharing adds: from the first holder that left to the last",
        "mean(reclaim - first holder gone)",
    )
    # scheduling
    REFUSAL_RATE = MetricInfo(
        "admission refusal rate",
        "scheduling",
        "share",
        "requests refused on arrival or given up",
        "(num_refused + num_dropped) / num_requests",
    )
    PREFILL_WAIT = MetricInfo(
        "prefill wait", "scheduling", "s", "waiting for the first step", "admission - arrival"
    )
    DECODE_WAIT = MetricInfo(
        "decode wait",
        "scheduling",
        "s",
        "time between tokens that a request spends not decoding: prefills of others, preemption",
        "(finish - first token) - tokens x fastest gap",
    )
    ACTIVE_SEQUENCES = MetricInfo(
        "active sequences", "scheduling", "count", "sequences in a step", "mean over time of num_running"
    )
    BATCH_OCCUPANCY = MetricInfo(
        "batch occupancy",
        "scheduling",
        "share",
        "active sequences of those allowed",
        "num_running / max_num_seqs",
    )
    # user
    TTFT = MetricInfo("TTFT", "user", "s", "time to first token", "first token - arrival")
    TPOT = MetricInfo(
        "TPOT",
        "user",
        "s",
        "time per output token after the first, a mean over one request; ITL pools all gaps instead",
        "(finish - first token) / (outputs - 1)",
    )
    TOKENS_PER_S = MetricInfo(
        "tokens/s",
        "user",
        "tokens/s",
        "output tokens of finished requests in the time of the run",
        "sum(outputs) / elapsed",
    )
    LATENCY = MetricInfo(
        "P50/P95/P99 latency",
        "user",
        "s",
        "percentiles of the whole time of a request",
        "percentiles(finish - arrival)",
    )
    OOM_COUNT = MetricInfo(
        "OOM count",
        "user",
        "count",
        "allocations that failed for good: requests given up and allocator errors",
        "num_dropped + num_ooms",
    )
    BEFORE_AFTER_RESTART = MetricInfo(
        "performance before and after a restart",
        "user",
        "ratio",
        "the same figure in the last window before and the first after",
        "P95 TTFT before / after",
    )

    @property
    def info(self) -> MetricInfo:
        return self.value


def metric(name: str) -> Metric:
    """A metric by its name ("batch occupancy"). Raises `LabError` that lists the names."""
    from labkit.errors import LabError

    for member in Metric:
        if member.info.name == name:
            return member
    raise LabError(f"unknown metric {name!r}; choose one of: {', '.join(m.info.name for m in Metric)}")
