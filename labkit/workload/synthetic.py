"""Synthetic load with the published statistics of public traces, from fitted parameters (`labkit/data/fits.json`).

Lengths are two-lognormal mixtures; arrivals are gamma, hyperexponential, Poisson, or Poisson counts per 3 s tick. The
file also says how well they fit (KS distance). Azure conversation prompts are spiky and no smooth fit is good
(KS 0.15): where a trace is at hand, `resample` is the honest choice. Prompts here share nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.workload.base import RequestSpec

#: load name -> (prefix of the length fits, key of the arrival fit)
LOADS = {
    "azure-conv": ("azure_conv", "azure_conv"),
    "azure-code": ("azure_code", "azure_code"),
    "mooncake-conversation": ("mooncake_conversation", "mooncake_conversation"),
    "mooncake-synthetic": ("mooncake_synthetic", "mooncake_synthetic"),
}


def synthetic_load(
    name: str, num_requests: int, rng: np.random.Generator, *, rate_scale: float = 1.0
) -> list[RequestSpec]:
    """`num_requests` requests that look like trace `name`; `rate_scale=2` brings them twice as fast.

    Same generator state, same bytes. Raises `LabError` for an unknown name or numbers that are not positive.
    """
    if name not in LOADS:
        raise LabError(f"unknown synthetic load {name!r}; choose one of: {', '.join(sorted(LOADS))}")
    if num_requests < 1 or not rate_scale > 0:
        raise LabError(f"num_requests is {num_requests} and rate_scale {rate_scale}; both must be above 0")
    lengths, arrivals = LOADS[name]
    fits = load_fits()
    prompts = sample_lengths(fits[f"{lengths}_prompt"], num_requests, rng)
    outputs = sample_lengths(fits[f"{lengths}_output"], num_requests, rng)
    times = sample_arrivals(fits["arrivals"][arrivals], num_requests, rng) / rate_scale
    return _requests(times, prompts, outputs, kind=f"synthetic {name}")


def resample(
    requests: Sequence[RequestSpec], num_requests: int, rng: np.random.Generator, *, rate_scale: float = 1.0
) -> list[RequestSpec]:
    """A longer or shorter load with the very lengths of `requests`: (prompt, output) pairs are drawn with replacement,
    and so are the gaps between arrivals. What requests share, and slow drift, is lost."""
    if len(requests) < 2 or num_requests < 1 or not rate_scale > 0:
        raise LabError("resampling needs at least two requests, num_requests above 0 and rate_scale above 0")
    picks = rng.integers(0, len(requests), num_requests)
    gaps = np.diff([r.arrival_s for r in requests])
    times = np.concatenate([[0.0], np.cumsum(rng.choice(gaps, num_requests - 1))]) / rate_scale
    prompts = np.array([r.num_prompt_tokens for r in requests])[picks]
    outputs = np.array([r.num_output_tokens for r in requests])[picks]
    return _requests(times, prompts, outputs, kind="resampled")


def sample_lengths(fit: Mapping[str, Any], num: int, rng: np.random.Generator) -> np.ndarray:
    """`[num]` token counts in `[1, clip]` from a fit's two-lognormal mixture."""
    mixture = fit["mix2"]
    weights = np.asarray(mixture["w"], dtype=float)
    part = rng.choice(len(weights), size=num, p=weights / weights.sum())
    drawn = rng.lognormal(np.asarray(mixture["mu"])[part], np.asarray(mixture["sigma"])[part])
    return np.clip(np.rint(drawn), 1, mixture["clip"]).astype(np.int64)


def sample_arrivals(fit: Mapping[str, Any], num: int, rng: np.random.Generator) -> np.ndarray:
    """`[num]` arrival times in seconds, the first at 0 (for ticks: in the first tick)."""
    kind = fit["kind"]
    if kind.startswith("poisson counts"):
        tick_s, counts = 3.0, np.zeros(0, dtype=np.int64)
        while counts.sum() < num:
            counts = np.concatenate([counts, rng.poisson(fit["mean"], max(8, num // 8))])
        return np.repeat(np.arange(len(counts)) * tick_s, counts)[:num]
    if kind.startswith("gamma"):
        gaps = rng.gamma(fit["gamma_k"], 1.0 / (fit["rate"] * fit["gamma_k"]), num - 1)
    elif kind == "hyperexponential":
        weights = np.asarray(fit["w"], dtype=float)
        part = rng.choice(len(weights), size=num - 1, p=weights / weights.sum())
        gaps = rng.exponential(np.asarray(fit["means_s"])[part])
    elif kind == "poisson":
        gaps = rng.exponential(1.0 / fit["rate"], num - 1)
    else:
        raise LabError(f"unknown kind of arrivals {kind!r} in fits.json")
    return np.concatenate([[0.0], np.cumsum(gaps)])


@cache
def load_fits() -> dict[str, Any]:
    """The fitted parameters, with their KS distances, as shipped."""
    return json.loads(resources.files("labkit").joinpath("data/fits.json").read_text(encoding="utf-8"))


def _requests(times: np.ndarray, prompts: np.ndarray, outputs: np.ndarray, kind: str) -> list[RequestSpec]:
    rows = zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return [RequestSpec(f"r{i}", t, p, o, kind=kind) for i, (t, p, o) in enumerate(rows)]
