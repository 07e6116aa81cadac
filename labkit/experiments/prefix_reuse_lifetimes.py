"""Section 9: how long shared prefixes and long contexts stay in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from labkit.experiments.prefix_reuse import run_cached
from labkit.experiments.serve import Served
from labkit.memory.base import Span
from labkit.observe.recorder import RunRecorder
from labkit.observe.series import Series
from labkit.workload.base import RequestSpec
from labkit.workload.synthetic import synthetic_load
from labkit.workload.traces import find_trace, load_trace

# --- 9.1 the last reference -----------------------------------------------------------------------------------------------


def prefix_load(
    rng: np.random.Generator, *, rate: float, num_requests: int = 300, prefix_tokens: int = 1024
) -> list[RequestSpec]:
    """Requests with one system prompt of `prefix_tokens` and a question of their own (100 tokens); Poisson arrivals, outputs
    around 200 tokens."""
    times = np.cumsum(rng.exponential(1 / rate, num_requests)).tolist()
    outputs = np.clip(rng.lognormal(5.2, 0.6, num_requests), 8, 1500).astype(int).tolist()
    system, next_id, load = range(prefix_tokens), prefix_tokens, []
    for i, (at, output) in enumerate(zip(times, outputs)):
        prompt = [*system, *range(next_id, next_id + 100)]
        next_id += 100
        load.append(RequestSpec(f"r{i}", at, len(prompt), output, output, prompt_token_ids=prompt))
    return load


class _FirstBlockWatch(RunRecorder):
    """Who holds the first block of the prompts: `stays` gets (from, until, end of its writer, end of the last that used it)."""

    def __init__(self) -> None:
        super().__init__()
        self.first_block: dict[str, int] = {}
        self.open: dict[int, tuple[float, list[str]]] = {}
        self.stays: list[tuple[float, float, list[str]]] = []

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        live = scheduler.kv.pool.refs
        for admitted in plan.admitted:
            if admitted.request_id not in outcome.finished:
                block = scheduler.kv.block_table(admitted.request_id)[0]
                self.open.setdefault(block, (start_s, []))[1].append(admitted.request_id)
        for block in [b for b in self.open if not live[b]]:
            begin_s, users = self.open.pop(block)
            self.stays.append((begin_s, end_s, users))


@dataclass(frozen=True)
class Residency:
    """Stays of the first block of the system prompt in memory that is held: from the first request that names it to the
    moment when nobody does. `writer_s` is the life of the request that began a stay, `stay_s` the stay (means, seconds)."""

    writer_s: float
    stay_s: float
    longest_s: float
    num_stays: int
    mean_alive: float
    ends_with_the_last: bool
    run: Served

    def outlives_its_writer(self) -> bool:
        """Stays are twice as long as their writers live, and each ends with the last of its users: claim 9.1."""
        return self.ends_with_the_last and self.stay_s > 2 * self.writer_s


def residency(requests: Sequence[RequestSpec], *, prefix: str, capacity_tokens: int = 400_000) -> Residency:
    """Serve `requests` in an ample pool and follow the first block of their prompts."""
    watch = _FirstBlockWatch()
    run = run_cached(requests, capacity_tokens=capacity_tokens, prefix=prefix, block_size=16, recorder=watch)
    records = watch.requests
    ends = [max(records[u].finish_s or math.inf for u in users) for _, _, users in watch.stays]
    writers = [(records[users[0]].finish_s or math.inf) - start for start, _, users in watch.stays]
    lengths = [end - start for start, end, _ in watch.stays]
    lives = [r.finish_s - r.admission_s for r in records.values() if r.finish_s and r.admission_s is not None]
    return Residency(
        writer_s=float(np.mean(writers)),
        stay_s=float(np.mean(lengths)),
        longest_s=max(lengths),
        num_stays=len(lengths),
        mean_alive=sum(lives) / run.totals.end_s,
        ends_with_the_last=all(abs(e - stay[1]) < 1e-9 for e, stay in zip(ends, watch.stays)),
        run=run,
    )


class _LayoutWatch(RunRecorder):
    """The pool's layout after every `every`-th step."""

    def __init__(self, every: int):
        super().__init__()
        self.every = every
        self.looks: list[tuple[float, list[Span]]] = []

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        if self.num_steps % self.every == 0:
            self.looks.append((end_s, scheduler.kv.layout()))


def layouts(
    requests: Sequence[RequestSpec], *, prefix: str, capacity_tokens: int, every: int = 8
) -> list[tuple[float, list[Span]]]:
    """`(time, layout)` along a run, for a player."""
    watch = _LayoutWatch(every)
    run_cached(requests, capacity_tokens=capacity_tokens, prefix=prefix, block_size=16, recorder=watch)
    return watch.looks


# --- 9.2 a few long requests ----------------------------------------------------------------------------------------------


def long_context_load(num_requests: int, rng: np.random.Generator) -> tuple[list[RequestSpec], str]:
    """The Mooncake conversation trace with all its prompts (the longest has 121K tokens), four times as slow as recorded: one GPU's
    share. Without the trace, synthetic requests with its length statistics."""
    path = find_trace("mooncake-conversation")
    if path is None:
        requests = synthetic_load("mooncake-conversation", num_requests, rng)
        origin = (
            f"Load: {num_requests:,} synthetic requests with the lengths of the Mooncake conversation trace."
        )
    else:
        requests = load_trace(path, num_requests)
        origin = f"Load: the first {num_requests:,} requests of the trace {path.name}, long prompts included."
    return [replace(r, arrival_s=4 * r.arrival_s, prefix_hashes=None) for r in requests], origin


def of_mean_length(requests: Sequence[RequestSpec]) -> list[RequestSpec]:
    """The control: as many requests at the same times, all of the mean length."""
    prompt = round(float(np.mean([r.num_prompt_tokens for r in requests])))
    output = round(float(np.mean([r.num_output_tokens for r in requests])))
    return [replace(r, num_prompt_tokens=prompt, num_output_tokens=output) for r in requests]


class _HoldWatch(RunRecorder):
    """Block-seconds held by each request, read at every tenth step."""

    def __init__(self) -> None:
        super().__init__(Series(10))
        self.block_s: dict[str, float] = {}
        self._since_s = 0.0

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        if self.num_steps % 10:
            return
        lasted, self._since_s = end_s - self._since_s, end_s
        for request_id in scheduler.running:
            held = lasted * len(scheduler.kv.block_table(request_id))
            self.block_s[request_id] = self.block_s.get(request_id, 0.0) + held


@dataclass(frozen=True)
class Holders:
    """Share of requests and of block-seconds by class of prompt length, and of the longest fifth of the requests."""

    by_class: dict[str, dict[str, float]]
    longest_fifth: float
    run: Served

    def few_hold_most(self) -> bool:
        """The longest fifth of the requests hold more than half of the block-seconds: claim 9.2."""
        return self.longest_fifth > 0.5


def holders(requests: Sequence[RequestSpec], *, capacity_tokens: int = 400_000) -> Holders:
    """Serve `requests` without a prefix cache and add up who holds the pool."""
    watch = _HoldWatch()
    run = run_cached(requests, capacity_tokens=capacity_tokens, prefix="off", recorder=watch)
    ranked = sorted(requests, key=lambda r: -r.num_prompt_tokens)
    total = sum(watch.block_s.values())
    held = [watch.block_s.get(r.request_id, 0.0) / total for r in ranked]
    by_class = {
        name: {"requests": 0.0, "block-seconds held": 0.0} for name in ("up to 4K", "4K to 16K", "over 16K")
    }
    for r, share in zip(ranked, held):
        row = by_class[_length_class(r)]
        row["requests"] += 1 / len(ranked)
        row["block-seconds held"] += share
    return Holders(by_class, sum(held[: len(held) // 5]), run)


def _length_class(spec: RequestSpec) -> str:
    if spec.num_prompt_tokens <= 4096:
        return "up to 4K"
    return "4K to 16K" if spec.num_prompt_tokens <= 16_384 else "over 16K"


def short_ttft_s(run: Served, max_prompt_tokens: int = 4096) -> float:
    """Mean TTFT of the requests with short prompts."""
    times = [r.ttft_s for r in run.recorder.requests.values() if r.num_prompt_tokens <= max_prompt_tokens]
    return float(np.mean([t for t in times if t is not None]))
