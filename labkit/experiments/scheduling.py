"""Section 8: the same trace under other scheduling decisions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.experiments.churn import AllocatorMemory, Churn, ChurnRun, Holding
from labkit.experiments.dynamics import Curve
from labkit.experiments.serve import Served, serve
from labkit.memory import make_allocator
from labkit.observe.percentiles import percentiles
from labkit.workload.base import RequestSpec

#: decisions of claim 8.1: question -> options of the lab's scheduler
DECISIONS: dict[str, dict[str, Any]] = {
    "continuous, chunked": {},
    "static batches": {"batching": "static"},
    "prefill before decode": {"batching": "prefill-first"},
    "decode before prefill": {"batching": "decode-first", "min_decoding": 16},
    "short prompts first": {"order": "shortest-prompt"},
    "long and short apart": {"batching": "pools", "long_prompt": 2048, "max_long": 4},
    "admission sets the maximum aside": {"reserve": "all"},
    "admission by requests": {"admission": "requests", "max_requests": 24},
}


def decide(
    requests: Sequence[RequestSpec],
    options: Mapping[str, Any],
    *,
    capacity_tokens: int,
    bytes_per_token: int,
    kv: str = "paged",
    every: int = 4,
) -> Served:
    """Serve `requests` with the decisions `options`."""
    return serve(
        kv,
        requests,
        capacity_tokens=capacity_tokens,
        bytes_per_token=bytes_per_token,
        max_model_len=16_384,
        every=every,
        **options,
    )


def curve_of(run: Served) -> Curve:
    """KV held by live requests over time."""
    frame = run.recorder.series_frame()
    return Curve(frame["end_s"].to_numpy(), frame["kv_live_bytes"].to_numpy(dtype=float), run)


# --- 8.2 long and short mixed -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixture:
    """One load on contiguous memory. `spoiled_share`: of the arrivals at which at least half of the memory was free, the
    share at which no free span was longer than a quarter of it."""

    spoiled_share: float
    run: ChurnRun

    def good_space_shrinks(self) -> bool:
        return self.spoiled_share > 0.02


def mixture(holdings: Sequence[Holding], capacity: int) -> Mixture:
    """Run `holdings` on first fit."""
    run = Churn(AllocatorMemory(make_allocator("first-fit", capacity)), on_failure="drop").feed(holdings)
    half_free = np.array(run.free) >= 0.5 * capacity
    no_good_span = np.array(run.largest_free) < 0.25 * capacity
    return Mixture(float((half_free & no_good_span).sum() / max(1, half_free.sum())), run)


def long_and_short(
    rng: np.random.Generator, *, bytes_per_token: int, num_long: int = 60, num_minutes: int = 10
) -> tuple[list[Holding], list[Holding]]:
    """Short requests (200 to 1,200 tokens, 3 to 9 s) in waves, 30 a second for ten seconds of each minute and 2 a second
    for the rest; long ones (2,000 to 6,000 tokens, one to three minutes) that append: eight times they move to a piece
    that is 512 tokens longer."""
    short = []
    for minute in range(num_minutes):
        for start, rate, lasts in ((0, 30, 10), (10, 2, 50)):
            for at in 60 * minute + start + np.sort(rng.uniform(0, lasts, rng.poisson(rate * lasts))):
                size = int(rng.integers(200, 1200)) * bytes_per_token
                short.append(Holding(float(at), float(rng.uniform(3, 9)), size, "request"))
    long = []
    for at in rng.uniform(0, 54 * num_minutes, num_long).tolist():
        tokens, piece_s = int(rng.integers(2000, 6000)), float(rng.uniform(60, 200)) / 8
        for step in range(8):
            overlap_s = 0.02 if step < 7 else 0.0
            size = (tokens + 512 * step) * bytes_per_token
            long.append(Holding(at + step * piece_s, piece_s + overlap_s, size, "session"))
    return short, merged(long)


def merged(*loads: Sequence[Holding]) -> list[Holding]:
    return sorted((holding for load in loads for holding in load), key=lambda holding: holding.arrival_s)


# --- 8.3 a burst of very long prompts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Burst:
    """One window of a run. TTFT of requests that arrived in it, tokens generated in it a second, free blocks at the worst."""

    ttft_p95_s: float
    output_tokens_per_s: float
    lowest_free_share: float
    run: Served

    def worse_than(self, calm: Burst) -> bool:
        """TTFT at least three times as long, throughput down by at least a fifth, and the free blocks gone."""
        return (
            self.ttft_p95_s > 3 * calm.ttft_p95_s
            and self.output_tokens_per_s < 0.8 * calm.output_tokens_per_s
            and self.lowest_free_share < 0.5 * calm.lowest_free_share
        )


def with_burst(
    requests: Sequence[RequestSpec], *, at_s: float, num_prompts: int = 12, num_tokens: int = 12_000
) -> list[RequestSpec]:
    """Add `num_prompts` prompts of `num_tokens` at `at_s`, one every 100 ms."""
    burst = [
        RequestSpec(f"burst{i}", at_s + 0.1 * i, num_tokens, 64, 64, kind="burst") for i in range(num_prompts)
    ]
    return sorted([*requests, *burst], key=lambda spec: spec.arrival_s)


def window(run: Served, start_s: float, end_s: float) -> Burst:
    """What the ordinary requests (not those of the burst) met between two instants."""
    records = [r for r in run.recorder.requests.values() if r.kind != "burst"]
    here = [r.ttft_s for r in records if start_s <= r.arrival_s < end_s]
    frame = run.recorder.series_frame()
    part = frame[(frame["end_s"] >= start_s) & (frame["end_s"] < end_s)]
    capacity = run.kv.stats().capacity_bytes
    return Burst(
        ttft_p95_s=percentiles(here)["p95"] or 0.0,
        output_tokens_per_s=float(part["num_decode_requests"].sum() / (end_s - start_s)),
        lowest_free_share=float(part["kv_free_bytes"].min() / capacity),
        run=run,
    )


# --- 8.4 three questions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One row of a comparison. `goodput` is requests a second that met the SLA (first token within 2 s, 60 ms a token)."""

    name: str
    goodput: float
    num_preempted: int
    num_lost_tokens: int
    num_dropped: int
    num_truncated: int
    ttft_p95_s: float | None
    run: Served


def outcome(
    name: str, requests: Sequence[RequestSpec], *, capacity_tokens: int, bytes_per_token: int, **options: Any
) -> Outcome:
    """Serve and judge by the SLA; requests that were dropped or cut short did not meet it."""
    run = decide(
        requests, options, capacity_tokens=capacity_tokens, bytes_per_token=bytes_per_token, every=20
    )
    asked = {r.request_id: r.num_output_tokens for r in requests}
    records = list(run.recorder.requests.values())
    whole = [r for r in records if r.finish_s is not None and r.num_output_tokens >= asked[r.request_id]]
    good = [r for r in whole if (r.ttft_s or 0.0) <= 2.0 and (r.tpot_s or 0.0) <= 0.060]
    finished = [r for r in records if r.finish_s is not None]
    return Outcome(
        name=name,
        goodput=len(good) / run.totals.end_s,
        num_preempted=run.totals.num_preempted,
        num_lost_tokens=run.totals.num_recomputed_tokens,
        num_dropped=run.totals.num_dropped,
        num_truncated=len(finished) - len(whole),
        ttft_p95_s=percentiles(r.ttft_s for r in finished)["p95"],
        run=run,
    )


def spread(outcomes: Sequence[Outcome]) -> float:
    """(best − worst) / best goodput: how much the choice matters."""
    goodputs = [o.goodput for o in outcomes]
    return (max(goodputs) - min(goodputs)) / max(goodputs)


def class_of(spec: RequestSpec) -> str:
    """Four classes by prompt (1,500 tokens) and output (250 tokens)."""
    prompt = "long" if spec.num_prompt_tokens > 1500 else "short"
    output = "long" if spec.num_output_tokens > 250 else "short"
    return f"{prompt} prompt, {output} output"


def amplification(
    requests: Sequence[RequestSpec], *, capacity_tokens: int, bytes_per_token: int
) -> dict[str, tuple[float, float]]:
    """For each class: its share of all tokens, and the share of lost (recomputed) tokens that goes away when it is left
    out. A class whose second number is above its first amplifies trouble."""
    options = {"capacity_tokens": capacity_tokens, "bytes_per_token": bytes_per_token}
    lost = outcome("all", requests, **options).num_lost_tokens
    tokens = dict.fromkeys(sorted({class_of(r) for r in requests}), 0)
    for r in requests:
        tokens[class_of(r)] += r.num_prompt_tokens + r.num_output_tokens
    result = {}
    for name in tokens:
        without = outcome(name, [r for r in requests if class_of(r) != name], **options)
        result[name] = (
            tokens[name] / sum(tokens.values()),
            1 - without.num_lost_tokens / lost if lost else 0.0,
        )
    return result


def with_client_limit(requests: Sequence[RequestSpec], max_output_tokens: int = 1024) -> list[RequestSpec]:
    """What clients really send: the output length is not known, a round maximum is (longer outputs keep their own)."""
    return [
        dataclasses.replace(r, max_output_tokens=max(max_output_tokens, r.num_output_tokens))
        for r in requests
    ]


def faster(requests: Sequence[RequestSpec], factor: float) -> list[RequestSpec]:
    """The same requests, arriving `factor` times as fast."""
    return [dataclasses.replace(r, arrival_s=r.arrival_s / factor) for r in requests]
