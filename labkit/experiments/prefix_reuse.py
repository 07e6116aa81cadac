"""Section 9: what a prefix cache saves, and what it does to memory. The loads, and one runner."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.experiments.serve import STEP_COST, Served
from labkit.kv.base import Admission
from labkit.kv.paged import PagedKVCache
from labkit.kv.prefix import make_prefix_cache
from labkit.models import get_model
from labkit.observe.block_watch import BlockWatch, pooled
from labkit.observe.recorder import RunRecorder
from labkit.observe.series import Series
from labkit.serving.base import Executor
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.serving.forced_outputs import ForcedOutputs
from labkit.serving.schedulers import make_scheduler
from labkit.workload.base import RequestSpec
from labkit.workload.traces import find_trace, load_trace

#: KV bytes of one token of Llama-3.1-8B, for every run of this section
BYTES_PER_TOKEN = get_model("Llama-3.1-8B").kv_bytes_per_token()
TRACE = "mooncake-conversation"

# --- loads ------------------------------------------------------------------------------------------------------------


def shared_load(
    num_requests: int, rng: np.random.Generator, *, max_prompt_tokens: int = 4096
) -> tuple[list[RequestSpec], str]:
    """The first `num_requests` prompts of the Mooncake conversation trace with at most `max_prompt_tokens`, and a sentence
    that says so; without the trace, `conversations`."""
    path = find_trace(TRACE)
    if path is None:
        load = conversations(num_requests, rng, max_prompt_tokens=max_prompt_tokens)
        return load, (
            f"Load: {num_requests:,} synthetic requests in conversations; the trace {TRACE} is not on this machine "
            f"(labkit traces fetch {TRACE})."
        )
    requests = [r for r in load_trace(path) if r.num_prompt_tokens <= max_prompt_tokens][:num_requests]
    return requests, (
        f"Load: the first {len(requests):,} requests of the trace {path.name} with at most {max_prompt_tokens:,} prompt "
        "tokens, with the trace's own marks of which 512-token blocks are equal."
    )


def conversations(
    num_requests: int, rng: np.random.Generator, *, max_prompt_tokens: int = 4096, rate: float = 0.9
) -> list[RequestSpec]:
    """A stand-in for the trace: everybody has one system prompt of 512 tokens; a conversation begins with a prompt
    around 1,000 tokens and goes on (three turns on average, a minute apart) with some 600 more a turn."""
    requests: list[RequestSpec] = []
    next_hash, start_s = 1, 0.0
    while len(requests) < 2 * num_requests:
        start_s += float(rng.exponential(3 / rate))
        hashes, length, at = [0], 512 + int(rng.lognormal(6.9, 0.7)), start_s
        for turn in range(int(rng.geometric(1 / 3))):
            if length > max_prompt_tokens:
                break
            num_new = length // 512 - len(hashes)
            hashes = [*hashes, *range(next_hash, next_hash + num_new)]
            next_hash += num_new
            requests.append(
                RequestSpec(
                    f"c{len(requests)}", at, length, min(1500, 1 + int(rng.lognormal(5.5, 0.8))), prefix_hashes=hashes,
                    prefix_block_size=512, kind=f"turn {turn}",
                )
            )  # fmt: skip
            length += int(rng.lognormal(6.2, 0.6))
            at += float(rng.exponential(60.0))
    return sorted(requests, key=lambda r: r.arrival_s)[:num_requests]


def nothing_shared(requests: Sequence[RequestSpec]) -> list[RequestSpec]:
    """The control: the same lengths and times, every block with content of its own (a cache keeps it, nobody asks)."""
    fresh, alone = 1 << 40, []
    for r in requests:
        num = len(r.prefix_hashes or ())
        alone.append(dataclasses.replace(r, prefix_hashes=range(fresh, fresh + num)))
        fresh += num
    return alone


# --- one runner for the section -----------------------------------------------------------------------------------------


class DearKVCache(PagedKVCache):
    """What a short prompt leaves in the cache is dear (priority 1) for `ttl_s` seconds: it costs few blocks to keep."""

    ttl_s: float | None = None
    short_tokens = 2048

    def admit(
        self,
        request_id: str,
        num_tokens: int,
        *,
        max_tokens: int,
        token_ids: Sequence[int] | None = None,
        block_keys: Sequence[Hashable] | None = None,
        final_tokens: int | None = None,
        priority: int = 0,
        ttl_s: float | None = None,
    ) -> Admission:
        known = len(block_keys or ()) * self.block_size if token_ids is None else len(token_ids)
        dear = self.ttl_s is not None and known <= self.short_tokens
        return super().admit(
            request_id, num_tokens, max_tokens=max_tokens, token_ids=token_ids, block_keys=block_keys,
            final_tokens=final_tokens, priority=int(dear), ttl_s=self.ttl_s if dear else None,
        )  # fmt: skip


def run_cached(
    requests: Sequence[RequestSpec],
    *,
    capacity_tokens: int,
    block_size: int = 64,
    prefix: str = "hash",
    prefix_options: Mapping[str, Any] | None = None,
    ttl_s: float | None = None,
    outputs: Mapping[str, Sequence[int]] | None = None,
    recorder: RunRecorder | None = None,
    max_num_batched_tokens: int = 2048,
) -> Served:
    """Serve `requests` on a paged cache with a prefix cache ("off", "hash", "radix"), by the lab's scheduler.

    `outputs` gives the tokens that each request will sample (then outputs can be found again too). Without a `recorder`
    of the caller's own the run keeps a row of the series for every tenth step and the lives of all blocks.
    """
    kv = DearKVCache(
        capacity_tokens // block_size,
        BYTES_PER_TOKEN,
        block_size=block_size,
        prefix=make_prefix_cache(prefix, block_size, **dict(prefix_options or {})),
    )
    kv.ttl_s = ttl_s
    scheduler = make_scheduler(
        "lab",
        kv,
        max_model_len=capacity_tokens // block_size * block_size,
        record_chunks=outputs is not None,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    executor: Executor = LinearStepCost(**STEP_COST)
    if outputs is not None:
        executor = ForcedOutputs(executor, outputs)
    recorder = RunRecorder(Series(10)) if recorder is None else recorder
    totals = simulate(scheduler, executor, requests, recorder)
    return Served(prefix, totals, recorder, kv, scheduler)


def hit_share(run: Served) -> float:
    """Tokens found at admission over tokens found or computed as prompt (admissions after a preemption included)."""
    num_prompt = sum(r.num_prompt_tokens for r in run.recorder.requests.values() if r.admission_s is not None)
    return run.totals.num_hit_tokens / num_prompt if num_prompt else 0.0


# --- 9.0 saves prefill, changes lifetimes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reuse:
    """One run: prompt tokens computed, and how long blocks lived from being taken to being free again (seconds)."""

    num_prefill_tokens: int
    hit_share: float
    block_life_s: float
    run: Served

    def saves_and_lives_longer(self, plain: Reuse) -> bool:
        """A tenth of the prefill saved, and blocks that live at least three times as long: the predicate of claim 9.0."""
        return (
            self.num_prefill_tokens < 0.9 * plain.num_prefill_tokens
            and self.block_life_s > 3 * plain.block_life_s
        )


def reuse_of(requests: Sequence[RequestSpec], prefix: str, *, capacity_tokens: int) -> Reuse:
    """Run `requests` and look at both. The life of a block is a median; blocks still there at the end are counted with
    the age that they have."""
    run = run_cached(requests, capacity_tokens=capacity_tokens, prefix=prefix)
    watch = run.recorder.blocks
    assert watch is not None
    return Reuse(
        num_prefill_tokens=sum(r.num_prompt_tokens for r in requests) - run.totals.num_hit_tokens,
        hit_share=hit_share(run),
        block_life_s=float(np.median(np.concatenate([pooled(watch.lifetimes_s), _ages(watch, run)]))),
        run=run,
    )


def _ages(watch: BlockWatch, run: Served) -> np.ndarray:
    prefix = watch.pool.prefix
    held = [b for b, refs in enumerate(watch.pool.refs) if refs or (prefix is not None and prefix.holds(b))]
    return run.totals.end_s - watch.born[held]
