"""Section 9.4: prompts of RAG and agents are fixed in part. Where reuse stops, and what the border costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.experiments.prefix_reuse import run_cached
from labkit.observe.recorder import RunRecorder
from labkit.workload.base import RequestSpec
from labkit.workload.lmcache_lengths import load_lmcache_lengths
from labkit.workload.traces import find_trace

AGENT_TRACE = "lmcache-agents"

# --- loads: prompts put together from parts ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """One request as its template sees it: `(content, num_tokens)` of each part, in order. Equal contents, equal tokens."""

    request_id: str
    arrival_s: float
    parts: tuple[tuple[str, int], ...]
    num_output_tokens: int = 32


def rag_prompts(
    rng: np.random.Generator, *, num_requests: int = 200, num_chunks: int = 60, retrieved: int = 4
) -> list[Parts]:
    """System prompt and tool definitions (fixed, 1,013 tokens together), `retrieved` chunks in the order of their score (popular
    ones more often; 90 to 420 tokens each, as texts are), the question."""
    lengths = rng.integers(90, 420, num_chunks).tolist()
    popularity = 1 / np.arange(1, num_chunks + 1)
    popularity /= popularity.sum()
    requests, at = [], 0.0
    for i in range(num_requests):
        at += float(rng.exponential(1.0))
        chosen = rng.choice(num_chunks, retrieved, replace=False, p=popularity).tolist()
        chunks = tuple((f"chunk {c}", lengths[c]) for c in chosen)
        fixed = (("system", 371), ("tools", 642))
        requests.append(Parts(f"q{i}", at, (*fixed, *chunks, (f"question {i}", int(rng.integers(12, 80))))))
    return requests


def padded(requests: Sequence[Parts], block_size: int) -> list[Parts]:
    """The same parts, each filled up to whole blocks: the template knows where blocks end."""
    return [
        Parts(
            r.request_id,
            r.arrival_s,
            tuple((name, -(-size // block_size) * block_size) for name, size in r.parts),
            r.num_output_tokens,
        )
        for r in requests
    ]


def specs_of(requests: Sequence[Parts]) -> list[RequestSpec]:
    """Token ids for the parts: equal contents have equal tokens, whoever uses them."""
    first: dict[str, int] = {}
    next_id, specs = 0, []
    for r in requests:
        prompt: list[int] = []
        for name, size in r.parts:
            if name not in first:
                first[name], next_id = next_id, next_id + size
            prompt += range(first[name], first[name] + size)
        specs.append(
            RequestSpec(
                r.request_id, r.arrival_s, len(prompt), r.num_output_tokens, r.num_output_tokens, prompt_token_ids=prompt
            )
        )  # fmt: skip
    return specs


def agent_load(
    rng: np.random.Generator, *, num_sessions: int = 40, max_prompt_tokens: int = 8192
) -> tuple[list[RequestSpec], str]:
    """Steps of agent sessions: each prompt repeats the beginning of the one before and goes on with something new.

    From the recorded lengths (four characters a token) where they are at hand. The loader marks equal blocks of 16 of its
    tokens, so asking it for sixteenths of a token gives one mark a token: the border to the token. Sessions start a
    few seconds apart; the file has no common clock.
    """
    path = find_trace(AGENT_TRACE)
    if path is None:
        return _synthetic_agents(rng, num_sessions), (
            f"Agents: {num_sessions} synthetic sessions; the trace {AGENT_TRACE} is not on this machine."
        )
    steps = load_lmcache_lengths(path, chars_per_token=4 / 16)
    names = list(dict.fromkeys(r.session_id for r in steps))
    picked = [names[i] for i in rng.permutation(len(names))[:num_sessions]]
    starts = dict(zip(picked, np.cumsum(rng.exponential(5.0, len(picked))).tolist()))
    load = [
        _exact(r, starts[r.session_id])
        for r in steps
        if r.session_id in starts and r.prefix_hashes and len(r.prefix_hashes) <= max_prompt_tokens
    ]
    load.sort(key=lambda r: (r.arrival_s, r.request_id))
    return load, f"Agents: {len(load):,} steps of {len(starts)} sessions with the lengths of {path.name}."


def _exact(step: RequestSpec, start_s: float) -> RequestSpec:
    tokens = list(step.prefix_hashes or ())
    output = max(1, step.num_output_tokens // 16)
    return RequestSpec(
        step.request_id, start_s + step.arrival_s, len(tokens), output, output, prompt_token_ids=tokens,
        session_id=step.session_id, kind=step.kind,
    )  # fmt: skip


def _synthetic_agents(rng: np.random.Generator, num_sessions: int) -> list[RequestSpec]:
    """Ten steps; a step keeps all but a last part of what was said (now and then it starts over) and adds some 500 tokens."""
    load, next_id, start_s = [], 0, 0.0
    for session in range(num_sessions):
        start_s += float(rng.exponential(5.0))
        said: list[int] = []
        for step in range(10):
            kept = len(said) if rng.random() < 0.7 else int(rng.integers(0, len(said) + 1))
            new = 20 + int(rng.exponential(500))
            said = [*said[:kept], *range(next_id, next_id + new)]
            next_id += new
            load.append(
                RequestSpec(
                    f"a{session}-{step}", start_s + 4.0 * step, len(said), 80, 80, prompt_token_ids=said, session_id=f"a{session}",
                )
            )  # fmt: skip
    return sorted(load, key=lambda r: r.arrival_s)


# --- what is reusable, and what is reused -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Border:
    """Tokens of all prompts: equal to the beginning of an earlier prompt (`shared`), really hit (`hit`). `inside` is the share
    of the borders between shared and new that lie inside a block."""

    block_size: int
    num_prompt_tokens: int
    num_shared_tokens: int
    num_hit_tokens: int
    inside: float

    @property
    def extra_prefill(self) -> float:
        """Shared tokens that were computed again, for each token that is really new."""
        return (self.num_shared_tokens - self.num_hit_tokens) / (
            self.num_prompt_tokens - self.num_shared_tokens
        )

    def stops_inside(self) -> bool:
        """Most borders lie inside a block, and prefill grows by a fiftieth at least: the predicate of claim 9.4."""
        return self.inside > 0.5 and self.extra_prefill > 0.02


def borders(
    requests: Sequence[RequestSpec],
    block_sizes: Sequence[int],
    *,
    prefix: str = "hash",
    partial_hits: bool = False,
) -> dict[int, Border]:
    """Serve `requests` one after another (so that everything earlier is there) in an ample pool, once a block size."""
    alone = [_at(r, 1000.0 * i) for i, r in enumerate(requests)]
    num_prompt = sum(r.num_prompt_tokens for r in requests)
    shared = shared_tokens(requests)
    stops = [s for s in shared if s]
    found = {}
    for size in block_sizes:
        run = run_cached(
            alone, capacity_tokens=num_prompt + 2 * size * (len(requests) + 1), block_size=size, prefix=prefix,
            prefix_options={"partial_hits": True} if partial_hits else None, max_num_batched_tokens=1 << 20,
            recorder=RunRecorder(),
        )  # fmt: skip
        inside = sum(s % size > 0 for s in stops) / len(stops) if stops else 0.0
        found[size] = Border(size, num_prompt, sum(shared), run.totals.num_hit_tokens, inside)
    return found


def shared_tokens(requests: Sequence[RequestSpec]) -> list[int]:
    """For each prompt: how many of its tokens, all but the last, are the beginning of an earlier one. A tree over tokens that
    never forgets: what reuse could be at best, whatever blocks do."""
    seen: set[tuple[int, int]] = set()
    numbers: dict[tuple[int, int], int] = {}
    shared = []
    for r in requests:
        node, matched, still = 0, 0, True
        for token in r.prompt_token_ids or ():
            edge = (node, token)
            still = still and edge in seen
            matched += still
            seen.add(edge)
            node = numbers.setdefault(edge, len(numbers) + 1)
        shared.append(min(matched, r.num_prompt_tokens - 1))
    return shared


def known_text(requests: Sequence[Parts]) -> dict[str, float]:
    """Shares of all prompt tokens: reused at the beginning; seen before but standing behind something new (which no prefix
    cache can use); new."""
    seen_parts: set[str] = set()
    seen_paths: set[tuple[str, ...]] = set()
    reused = elsewhere = total = 0
    for r in requests:
        path: tuple[str, ...] = ()
        for name, size in r.parts:
            path = (*path, name)
            total += size
            if path in seen_paths:
                reused += size
            elif name in seen_parts:
                elsewhere += size
            seen_paths.add(path)
            seen_parts.add(name)
    return {
        "at the beginning: reused": reused / total,
        "known, but behind something new": elsewhere / total,
        "new": 1 - (reused + elsewhere) / total,
    }


def _at(spec: RequestSpec, at_s: float) -> RequestSpec:
    return RequestSpec(
        spec.request_id, at_s, spec.num_prompt_tokens, 1, 1, prompt_token_ids=spec.prompt_token_ids
    )
