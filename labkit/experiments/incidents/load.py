"""The load of an incident: lengths of a public trace, arrivals in two busy stretches with a lull between them.

A lull is what makes memory honest: when nobody runs, what is still held is held by something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from labkit.errors import LabError
from labkit.workload.base import RequestSpec
from labkit.workload.traces import load_or_synthetic

TRACES = ("azure-conv", "azure-code", "mooncake-conversation")
#: tokens of one shared-prefix key of the load (a multiple of the cache's 16)
KEY_TOKENS = 64
LULL_S = 70.0
#: a step of the simulated server: 25 ms, and this much for each scheduled token, so that prompts take a third of the time
BASE_MS = 25.0


@dataclass(frozen=True)
class Load:
    """`requests` in order of arrival; `ends_s` is the last arrival, `per_token_ms` the price of a scheduled token."""

    requests: list[RequestSpec]
    ends_s: float
    lull_s: tuple[float, float]
    per_token_ms: float
    mean_tokens: float
    rate: float


@cache
def lengths_of(trace: str) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output lengths of the first 3,000 requests of a trace (or of its synthetic stand-in)."""
    if trace not in TRACES:
        raise LabError(f"unknown trace {trace!r}; choose one of: {', '.join(TRACES)}")
    requests, _ = load_or_synthetic(trace, 3000, np.random.default_rng(7))
    return (
        np.array([r.num_prompt_tokens for r in requests]),
        np.array([max(2, r.num_output_tokens) for r in requests]),
    )


def make_load(
    rng: np.random.Generator,
    trace: str,
    *,
    num_requests: int = 360,
    shares_prefixes: bool = False,
    burst: bool = False,
    long_prompts: bool = False,
) -> Load:
    """Two busy stretches of Poisson arrivals. Lengths are drawn in pairs from the trace.

    burst         one request in eight arrives within six seconds of the second stretch
    long_prompts  one request in thirty has a prompt six times the usual
    """
    prompts, outputs = lengths_of(trace)
    picks = rng.integers(0, len(prompts), num_requests)
    prompt, output = prompts[picks].astype(float), outputs[picks]
    per_token_ms = float(min(0.05, 6.5 / prompt.mean() * 8))
    if long_prompts:
        chosen = rng.random(num_requests) < 1 / 30
        prompt[chosen] = np.maximum(prompt[chosen], 6 * prompt.mean())
    # a third of the time goes into prompts; the rest into decoding steps that all running requests share
    rate = float(rng.uniform(0.22, 0.34)) / (prompt.mean() * per_token_ms * 1e-3)
    rate = min(rate, 24.0 / (float(output.mean()) * 0.03))
    gaps = rng.exponential(1 / rate, num_requests)
    times = np.cumsum(gaps)
    half = num_requests // 2
    lull = (float(times[half - 1]), float(times[half - 1] + LULL_S))
    times[half:] += LULL_S
    if burst:
        start = int(rng.integers(half + 20, num_requests - num_requests // 8 - 20))
        some = slice(start, start + num_requests // 8)
        times[some] = times[start] + np.sort(rng.uniform(0, 6, num_requests // 8))
        times = np.sort(times)
    groups = rng.integers(0, 10, num_requests)
    requests = []
    for i in range(num_requests):
        tokens = int(prompt[i])
        keys = _keys(i, int(groups[i]), tokens) if shares_prefixes else None
        requests.append(
            RequestSpec(
                f"r{i}",
                float(times[i]),
                tokens,
                int(output[i]),
                max_output_tokens=max(int(output[i]), 1024),
                prefix_hashes=keys,
                prefix_block_size=KEY_TOKENS if keys else 0,
            )
        )
    mean_tokens = float(prompt.mean() + output.mean() / 2)
    return Load(requests, float(times[-1]), lull, per_token_ms, mean_tokens, rate)


def _keys(number: int, group: int, num_tokens: int) -> list[int]:
    """The first third of a prompt is its group's system prompt, the rest its own."""
    num_full = num_tokens // KEY_TOKENS
    num_shared = num_full // 3
    shared = [group * 100_000 + i for i in range(num_shared)]
    return shared + [(number + 100) * 100_000 + i for i in range(num_shared, num_full)]
