"""Section 13: one bad service, and the six remedies applied to it in turn.

The load is chat and documents. The service is judged by its promise: a chat gets its first token within 2 s and the others within
60 ms each; a document has 10 s for the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from labkit.experiments.serve import Served, serve
from labkit.experiments.watching import steady_load
from labkit.models import get_gpu, get_model
from labkit.observe.percentiles import percentiles
from labkit.observe.records import RequestRecord
from labkit.planning.lifetime import LifetimeBudget, lifetime_budget, load_of_trace
from labkit.planning.planner import make_plan
from labkit.planning.request import PlanRequest
from labkit.serving.admission import BlockAdmission, Refusal
from labkit.serving.request import Request
from labkit.serving.space import Space
from labkit.workload.base import RequestSpec

BYTES_PER_TOKEN = 131_072
#: seconds to the first token by kind, and seconds a token after it
SLA_TTFT_S, SLA_TPOT_S = {"chat": 2.0, "document": 10.0}, 0.060


def chats_and_documents(
    requests: Sequence[RequestSpec],
    rng: np.random.Generator,
    *,
    num_chats: int = 600,
    rate: float = 5.0,
    together: int = 8,
    every_s: float = 40.0,
    document_tokens: int = 9000,
) -> list[RequestSpec]:
    """Steady chats with lengths from `requests` (clients allow 1,024 tokens), and `together` documents at once every `every_s`.
    `together=0`: none; `together=1` with a sixth of the time between them is the same work, spread."""
    chats = [
        dataclasses.replace(r, kind="chat", max_output_tokens=max(1024, r.num_output_tokens))
        for r in steady_load(requests, num_chats, rate, rng)
    ]
    sizes = rng.uniform(0.8, 1.2, (1000, max(1, together))) * document_tokens
    documents = [
        RequestSpec(f"d{burst}-{i}", at + 0.05 * i, int(sizes[burst, i]), 300, 512, kind="document")
        for burst, at in enumerate(np.arange(every_s / 3, num_chats / rate, every_s).tolist())
        for i in range(together)
    ]
    return sorted([*chats, *documents], key=lambda r: r.arrival_s)


@dataclass(frozen=True)
class Service:
    """One configuration. The default is the bad one: one contiguous piece for each request, admitted by counting requests.
    `options` are those of the lab's scheduler; `admission` may also be a class without arguments."""

    kv: str = "reserve-pow2"
    capacity_tokens: int = 60_000
    options: dict[str, Any] = field(
        default_factory=lambda: {"admission": "requests", "max_requests": 64, "batching": "prefill-first"}
    )

    def with_options(self, **changes: Any) -> Service:
        """The same with other scheduler options; None takes one away."""
        merged = {**self.options, **changes}
        return dataclasses.replace(self, options={k: v for k, v in merged.items() if v is not None})


@dataclass(frozen=True)
class Judged:
    """What users got. `attainment`: share of all requests that were served within the promise; by kind too."""

    attainment: float
    by_kind: dict[str, float]
    ttft_p95_s: float
    num_preempted: int
    mean_usage: float
    run: Served

    def steadier_than(self, other: Judged, by: float = 0.05) -> bool:
        """At least `by` more of the requests within the promise: the predicate of the remedies."""
        return keeps_more(self, other, by)

    @property
    def in_trouble(self) -> bool:
        return self.attainment < 0.9


def keeps_more(one: Judged | Tuning, other: Judged | Tuning, by: float) -> bool:
    """Is the attainment of `one` higher by more than `by`, a share of the requests?"""
    return one.attainment > other.attainment + by


def judge(service: Service, requests: Sequence[RequestSpec]) -> Judged:
    """Serve `requests` and hold the service to its promise. A request that was refused or dropped did not get it."""
    options = dict(service.options)
    admission = options.get("admission")
    if callable(admission):
        options["admission"] = admission()  # it counts what runs, so every run has its own
    run = serve(
        service.kv,
        requests,
        capacity_tokens=service.capacity_tokens,
        bytes_per_token=BYTES_PER_TOKEN,
        max_model_len=12_288,
        every=20,
        **options,
    )
    records = list(run.recorder.requests.values())
    good = [r for r in records if _kept(r)]
    frame = run.recorder.series_frame()
    last = max(r.arrival_s for r in records)
    busy = frame[frame["end_s"] <= last]
    kinds = sorted({r.kind for r in records})
    return Judged(
        attainment=len(good) / len(records),
        by_kind={k: sum(r.kind == k for r in good) / sum(r.kind == k for r in records) for k in kinds},
        ttft_p95_s=percentiles(r.ttft_s for r in records)["p95"] or 0.0,
        num_preempted=run.totals.num_preempted,
        mean_usage=float((busy["kv_live_bytes"] / run.kv.stats().capacity_bytes).mean()),
        run=run,
    )


def _kept(record: RequestRecord) -> bool:
    return (
        record.finish_s is not None
        and record.dropped is None
        and (record.ttft_s or 0.0) <= SLA_TTFT_S[record.kind]
        and (record.tpot_s or 0.0) <= SLA_TPOT_S
    )


# --- 13.1 budgets --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budgeted:
    """Two budgets for one load on one pool, and what then happened."""

    budget: LifetimeBudget
    after: Judged

    @property
    def capacity_fits(self) -> bool:
        """The usual sum: mean number of requests times mean length."""
        return self.budget.private_blocks <= self.budget.pool_blocks

    @property
    def lifetimes_fit(self) -> bool:
        return self.budget.headroom >= 0

    def only_lifetimes_saw_it(self) -> bool:
        """Capacity said yes, lifetimes said no, and there was trouble: the predicate of claim 13.1."""
        return self.capacity_fits and not self.lifetimes_fit and self.after.in_trouble


def budget_for(requests: Sequence[RequestSpec], capacity_tokens: int) -> LifetimeBudget:
    """The terms come from the load itself; the mean residence from a run with room to spare."""
    roomy = judge(Service("paged", 2_000_000, {}), requests).run
    stays = [
        (r.finish_s or 0.0) - (r.admission_s or 0.0)
        for r in roomy.recorder.requests.values()
        if r.finish_s is not None
    ]
    plan = make_plan(PlanRequest(get_model("Llama-3.1-8B"), get_gpu("A100-80GB"), max_model_len=12_288))
    pool = dataclasses.replace(plan, num_usable_blocks=capacity_tokens // plan.block_size)
    return lifetime_budget(pool, load_of_trace(requests, float(np.mean(stays))))


def room_for_lifetimes(budget: LifetimeBudget, block_size: int = 16) -> int:
    """Tokens of the pool that the budget asks for."""
    return (budget.pool_blocks - min(0, budget.headroom)) * block_size


# --- 13.4 admission on four things at once ---------------------------------------------------------------------------------


class AdmitTogether(BlockAdmission):
    """Blocks with headroom, tokens, context length and kind of session, all four at once.

    blocks    what is known must fit, and `headroom` of the pool stays free for those that grow
    tokens    all that runs may hold at most `max_tokens_share` of the pool when its outputs come (prompt + `expected`)
    context   long contexts (over `long_tokens`) together hold at most `long_share` of the pool
    kind      requests of `background` kinds join only while less than `background_share` of the pool is taken
    """

    unit = "blocks"

    def __init__(
        self,
        *,
        headroom: float = 0.05,
        max_tokens_share: float = 0.95,
        expected: int = 200,
        long_tokens: int = 4096,
        long_share: float = 0.65,
        background: Sequence[str] = ("document",),
        background_share: float = 0.85,
    ):
        super().__init__(headroom=headroom)
        self.max_tokens_share, self.expected = max_tokens_share, expected
        self.long_tokens, self.long_share = long_tokens, long_share
        self.background, self.background_share = tuple(background), background_share
        self.promised = self.long_promised = 0

    def refusal(
        self,
        request: Request,
        chunk: int,
        num_hit_tokens: int,
        space: Space,
        num_running: int,
        num_tokens: int,
    ) -> Refusal | None:
        found = super().refusal(request, chunk, num_hit_tokens, space, num_running, num_tokens)
        if found is not None or not num_running:
            return found
        pool = space.num_blocks * space.block_size
        needed = self._promise(request)
        if self.promised + needed > self.max_tokens_share * pool:
            return Refusal("tokens", needed, self.max_tokens_share * pool - self.promised)
        if self._is_long(request) and self.long_promised + needed > self.long_share * pool:
            return Refusal("long_contexts", needed, self.long_share * pool - self.long_promised)
        if request.spec.kind in self.background and self.promised + needed > self.background_share * pool:
            return Refusal("background", needed, self.background_share * pool - self.promised)
        return None

    def joined(self, request: Request, space: Space) -> None:
        super().joined(request, space)
        request.committed_tokens = self._promise(request)
        self.promised += request.committed_tokens
        self.long_promised += request.committed_tokens * self._is_long(request)

    def left(self, request: Request, space: Space) -> None:
        self.promised -= request.committed_tokens
        self.long_promised -= request.committed_tokens * self._is_long(request)
        request.committed_tokens = 0

    def _promise(self, request: Request) -> int:
        return request.num_known_tokens + max(0, self.expected - request.num_output_tokens)

    def _is_long(self, request: Request) -> bool:
        return request.num_prompt_tokens > self.long_tokens


# --- 13.6 for the promise instead of a full GPU ----------------------------------------------------------------------------


#: shares of the pool that admission may promise away; above 1 it counts on requests that end early
FILLS = (0.7, 0.85, 1.0, 1.3)


@dataclass(frozen=True)
class Tuning:
    """One setting of a sweep, and what came of it under each load. Attainment and usage are means over the loads, as shares:
    where the long requests of one load fall decides more than the setting does."""

    fill: float
    judged: Sequence[Judged]

    @property
    def attainment(self) -> float:
        return sum(judged.attainment for judged in self.judged) / len(self.judged)

    @property
    def mean_usage(self) -> float:
        return sum(judged.mean_usage for judged in self.judged) / len(self.judged)

    def keeps_more_than(self, other: Tuning, by: float = 0.05) -> bool:
        """`Judged.steadier_than`, of the means."""
        return keeps_more(self, other, by)


def filled(service: Service, fill: float) -> Service:
    """`service` with an admission that promises away up to `fill` of the pool, to long contexts and documents as well; no
    headroom, and above 1 nothing set aside for outputs."""
    admission = partial(
        AdmitTogether,
        headroom=0.0,
        expected=200 if fill <= 1 else 0,
        max_tokens_share=fill,
        long_share=fill,
        background_share=fill,
    )
    return service.with_options(admission=admission, max_requests=None)


def sweep_fills(service: Service, *loads: Sequence[RequestSpec]) -> list[Tuning]:
    """The same service at each of `FILLS`, under each of `loads`."""
    return [Tuning(fill, [judge(filled(service, fill), load) for load in loads]) for fill in FILLS]


def fullest(tunings: Sequence[Tuning]) -> Tuning:
    """Tuned for a full GPU: the highest mean usage."""
    return max(tunings, key=lambda t: t.mean_usage)


def most_kept(tunings: Sequence[Tuning]) -> Tuning:
    """Tuned for the promise."""
    return max(tunings, key=lambda t: t.attainment)


# --- the six in turn -------------------------------------------------------------------------------------------------------

#: admission that asks the cache whether the prompt fits now
BY_BLOCKS: dict[str, Any] = {"admission": "blocks", "max_requests": None}
#: a step budget and slots of their own for long prompts, and a queue in which nobody waits behind another class
POOLS: dict[str, Any] = {"batching": "pools", "blocked": "skip"}
#: admission on blocks, tokens, context length and kind
TOGETHER: dict[str, Any] = {"admission": AdmitTogether, "max_requests": None}


def in_turn(service: Service, lifetime_tokens: int) -> dict[str, Service]:
    """The bad service, and what it is after each remedy that changes the configuration. The fourth gives back the memory that
    the first one took."""
    sized = dataclasses.replace(service, capacity_tokens=lifetime_tokens)
    blocks = dataclasses.replace(sized, kv="paged").with_options(**BY_BLOCKS)
    pools = blocks.with_options(**POOLS)
    together = pools.with_options(**TOGETHER)
    return {
        "bad": service,
        "1 sized for lifetimes": sized,
        "2 blocks": blocks,
        "3 pools": pools,
        "4 admission on all": together,
        "4 and the memory given back": dataclasses.replace(together, capacity_tokens=service.capacity_tokens),
    }
