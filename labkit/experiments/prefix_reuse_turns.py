"""Section 9.3: conversations, whose keys and values are wanted again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labkit.experiments.prefix_reuse import BYTES_PER_TOKEN, hit_share, run_cached
from labkit.experiments.serve import Served
from labkit.kv.paged import PagedKVCache
from labkit.observe.block_watch import pooled
from labkit.workload.base import RequestSpec
from labkit.workload.sessions import SessionLoad, session_load


def chat_load(
    num_sessions: int, rng: np.random.Generator, *, think_s: float = 20.0, mean_turns: float = 5.0
) -> list[RequestSpec]:
    """Sessions of `mean_turns` turns on average, `think_s` apart."""
    shape = SessionLoad(session_rate=0.5, mean_turns=mean_turns, think_s=think_s, prefix_tokens=256)
    return session_load(shape, num_sessions, rng)


def answers_of(requests: Sequence[RequestSpec]) -> dict[str, list[int]]:
    """What each turn will answer, read from the prompt of the turn after it; a last turn's answer is its own."""
    after: dict[str, RequestSpec] = {}
    answers, fresh = {}, 1 << 40
    for r in reversed(requests):
        following = after.get(r.session_id or "")
        if following is not None and following.prompt_token_ids is not None:
            start = r.num_prompt_tokens
            answers[r.request_id] = list(following.prompt_token_ids[start : start + r.num_output_tokens])
        else:
            answers[r.request_id] = list(range(fresh, fresh + r.num_output_tokens))
            fresh += r.num_output_tokens
        after[r.session_id or ""] = r
    return answers


def strangers(requests: Sequence[RequestSpec]) -> list[RequestSpec]:
    """The control: the same lengths at the same times, every prompt by somebody new."""
    fresh, alone = 1 << 44, []
    for r in requests:
        alone.append(
            replace(r, prompt_token_ids=range(fresh, fresh + r.num_prompt_tokens), session_id=r.request_id)
        )
        fresh += r.num_prompt_tokens
    return alone


@dataclass(frozen=True)
class Hot:
    """Of the blocks that a finished turn left idle in the cache: the share that somebody asked for again, how long it was
    idle before (quantiles, seconds), and how long a turn itself runs (median, seconds)."""

    wanted_again: float
    idle_s: Mapping[str, float]
    turn_s: float
    hit_share: float
    ttft_s: float
    run: Served

    def hot_state(self) -> bool:
        """More than half of what a turn leaves is wanted again, after an idle time longer than the turn: claim 9.3."""
        return self.wanted_again > 0.5 and self.idle_s["median"] > self.turn_s


def hotness(requests: Sequence[RequestSpec], *, prefix: str = "hash", capacity_tokens: int = 400_000) -> Hot:
    """Serve turns whose answers are the next turn's prompt, and follow what they leave behind."""
    run = run_cached(
        requests, capacity_tokens=capacity_tokens, prefix=prefix, block_size=16, outputs=answers_of(requests)
    )
    watch = run.recorder.blocks
    assert watch is not None
    assert isinstance(run.kv, PagedKVCache)
    gaps = pooled(watch.reuse_gaps_s)
    num_left = len(gaps) + watch.num_evicted + run.kv.num_evictable_blocks
    records = [r for r in run.recorder.requests.values() if r.finish_s is not None]
    quantiles = np.quantile(gaps, [0.25, 0.5, 0.9]) if len(gaps) else np.zeros(3)
    return Hot(
        wanted_again=len(gaps) / num_left if num_left else 0.0,
        idle_s=dict(zip(("quarter", "median", "nine tenths"), quantiles.tolist())),
        turn_s=float(np.median([r.e2e_s for r in records if r.e2e_s is not None])),
        hit_share=hit_share(run),
        ttft_s=float(np.mean([r.ttft_s for r in records if r.ttft_s is not None])),
        run=run,
    )


def kept_for(hot: Hot, seconds: Sequence[float]) -> dict[str, float]:
    """Share of the idle times that are over within each of `seconds`: what a cache would still hold if it threw idle
    blocks away after that time."""
    watch = hot.run.recorder.blocks
    assert watch is not None
    gaps = pooled(watch.reuse_gaps_s)
    return {f"{s:g} s": float((gaps <= s).mean()) if len(gaps) else 0.0 for s in seconds}


def session_bytes(requests: Sequence[RequestSpec]) -> float:
    """Mean KV bytes of a session's last prompt: what one conversation keeps hot."""
    last = {r.session_id: r.num_prompt_tokens for r in requests}
    return float(np.mean(list(last.values()))) * BYTES_PER_TOKEN
